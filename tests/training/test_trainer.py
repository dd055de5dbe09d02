import pytest
import torch
from torch import nn

from vcotta.data import batches, load_digits, to_tensor
from vcotta.experiments.benchmarks import DIGITS_TRAINING
from vcotta.models import ViT
from vcotta.models.wide_resnet import digits_network
from vcotta.nn import epoch_state
from vcotta.nn.runtime import Runtime
from vcotta.training.trainer import TrainConfig, _augmented, _cycle, _loss, train


def small_loader(seed=0):
    data = load_digits()[0]
    return batches(data.images[:100], data.labels[:100], 50, shuffle_seed=seed)


@pytest.mark.slow
def test_digits_network_reaches_a_few_per_cent_clean_error():
    source, test = load_digits()
    loader = batches(source.images, source.labels, 50, shuffle_seed=0)
    net = train(digits_network(0), loader, DIGITS_TRAINING)
    with torch.inference_mode():
        wrong = net(to_tensor(test.images)).argmax(1) != torch.from_numpy(test.labels)
    assert wrong.float().mean() < 0.04


def test_training_repeats_exactly_and_leaves_the_global_state_alone():
    before = torch.random.get_rng_state()
    one, two, other = (
        train(digits_network(0), small_loader(), TrainConfig(epochs=2, shift=2, seed=seed)).state_dict()
        for seed in (5, 5, 6)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not torch.equal(one["fc.weight"], other["fc.weight"])


def test_random_layers_follow_the_seed_not_the_global_state():
    def result():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3072, 10))
        return train(net, small_loader(), TrainConfig(epochs=1))[2].weight

    first = result()
    torch.rand(3)
    assert torch.equal(first, result())


def test_progress_hears_of_each_epoch_and_the_model_returns_ready_to_predict():
    heard = []
    net = digits_network(0)
    result = train(
        net, small_loader(), TrainConfig(epochs=3), progress=lambda done, of, loss: heard.append((done, of, loss))
    )
    assert result is net
    assert not any(module.training for module in net.modules())
    assert [(done, of) for done, of, _ in heard] == [(1, 3), (2, 3), (3, 3)]
    assert heard[-1][2] < heard[0][2]


def test_training_works_inside_no_grad():
    with torch.no_grad():
        net = train(digits_network(0), small_loader(), TrainConfig(epochs=1))
    assert not torch.equal(net.fc.weight, digits_network(0).fc.weight)


def test_learning_rate_rises_to_its_peak_and_falls_to_zero():
    rates = [_cycle(step, 100, 0.3) for step in range(100)]
    peak = rates.index(max(rates))
    assert max(rates) == pytest.approx(1, abs=0.01)
    assert 28 <= peak <= 31
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[0] < 0.05
    assert rates[-1] < 0.001
    assert 0 < _cycle(0, 1, 0.3) < 1


def states(*nets):
    return [list(net.state_dict().values()) for net in nets]


def test_interrupted_training_equals_uninterrupted_training(tmp_path, monkeypatch):
    monkeypatch.setattr(epoch_state, "_PAUSE", 0.0)
    monkeypatch.setattr(epoch_state, "_SHARE", 0)
    config, path = TrainConfig(epochs=4, shift=1, flip=True, augmix=True, seed=3), tmp_path / "training"
    whole = train(digits_network(0), small_loader(), config)

    def stop(done, epochs, loss):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(digits_network(0), small_loader(), config, progress=stop, checkpoint=path)
    heard = []
    resumed = train(
        digits_network(9), small_loader(), config, progress=lambda done, *_: heard.append(done), checkpoint=path
    )
    assert heard == [2, 3, 4]  # first where it goes on from
    assert all(torch.equal(a, b) for a, b in zip(*states(whole, resumed), strict=True))
    again = train(
        digits_network(8), small_loader(), config, progress=lambda done, *_: heard.append(done), checkpoint=path
    )
    assert heard == [2, 3, 4, 4]
    assert all(torch.equal(a, b) for a, b in zip(*states(whole, again), strict=True))


def test_ctrl_c_waits_for_the_end_of_the_epoch_and_keeps_it(tmp_path, capsys, press_ctrl_c):
    config, path = TrainConfig(epochs=4, seed=3), tmp_path / "training"

    def press(done, epochs, loss):
        if done == 1:
            press_ctrl_c()

    with pytest.raises(KeyboardInterrupt, match="2 of 4 epochs are saved: run the same command to continue"):
        train(digits_network(0), small_loader(), config, progress=press, checkpoint=path)
    assert "press again to stop at once" in capsys.readouterr().err
    resumed = train(digits_network(9), small_loader(), config, checkpoint=path)
    whole = train(digits_network(0), small_loader(), config)
    assert all(torch.equal(a, b) for a, b in zip(*states(whole, resumed), strict=True))


def test_a_second_ctrl_c_does_not_wait(tmp_path, press_ctrl_c):
    def press(done, epochs, loss):
        press_ctrl_c()
        press_ctrl_c()

    with pytest.raises(KeyboardInterrupt):
        train(
            digits_network(0), small_loader(), TrainConfig(epochs=4), progress=press, checkpoint=tmp_path / "training"
        )
    assert not (tmp_path / "training").exists()


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    path, config = tmp_path / "training", TrainConfig(epochs=1)
    train(digits_network(0), small_loader(), config, checkpoint=path)
    with pytest.raises(ValueError, match="other settings"):
        train(digits_network(0), small_loader(), TrainConfig(epochs=2), checkpoint=path)
    with pytest.raises(ValueError, match="another network"):
        train(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), small_loader(), config, checkpoint=path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be read"):
        train(digits_network(0), small_loader(), config, checkpoint=path)


def test_a_checkpoint_of_other_images_is_refused_and_leaves_the_network_as_it_was(tmp_path):
    path, config, data = tmp_path / "training", TrainConfig(epochs=1), load_digits()[0]
    train(digits_network(0), batches(data.images[:50], data.labels[:50], 25), config, checkpoint=path)
    net = digits_network(1)
    with pytest.raises(ValueError, match="images, labels or batch size differ"):
        train(net, batches(data.images[50:100], data.labels[50:100], 25), config, checkpoint=path)
    assert all(torch.equal(a, b) for a, b in zip(*states(net, digits_network(1)), strict=True))


def test_labels_of_mixed_images_are_mixed_in_the_same_proportion():
    logits, labels, partner = torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), torch.tensor([1, 0, 3, 2])
    own, config = torch.tensor([1.0, 0.5, 0.2, 0.0]), TrainConfig(epochs=1, mixing=1.0, label_smoothing=0.3)
    targets = own[:, None] * nn.functional.one_hot(labels, 3) + (1 - own)[:, None] * nn.functional.one_hot(
        labels[partner], 3
    )
    by_hand = -((0.7 * targets + 0.3 / 3) * logits.log_softmax(1)).sum(1).mean()
    assert torch.allclose(_loss(logits, labels, config, partner, own), by_hand)


def test_a_transformers_recipe_trains_and_an_interrupted_training_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    monkeypatch.setattr(epoch_state, "_PAUSE", 0.0)
    monkeypatch.setattr(epoch_state, "_SHARE", 0)
    config = TrainConfig(epochs=4, lr=3e-3, optimizer="adamw", operations=1, mixing=0.5, label_smoothing=0.1)
    losses = []

    def make():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return ViT(patch=8, depth=1, width=16, heads=2)

    whole = train(make(), small_loader(), config, progress=lambda done, epochs, loss: losses.append(loss))
    assert losses[-1] < losses[0]

    def stop(done, epochs, loss):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(make(), small_loader(), config, progress=stop, checkpoint=tmp_path / "training")
    resumed = train(make(), small_loader(), config, checkpoint=tmp_path / "training")
    assert all(torch.equal(a, b) for a, b in zip(*states(whole, resumed), strict=True))


def test_augmix_and_mixing_are_refused_together():
    with pytest.raises(ValueError, match="Choose one of them"):
        TrainConfig(epochs=1, augmix=True, mixing=0.5)


def test_a_loss_that_is_not_finite_is_an_error():
    with pytest.raises(FloatingPointError, match="Lower `lr`"):
        train(digits_network(0), small_loader(), TrainConfig(epochs=3, lr=1e30))


def test_augmix_training_learns():
    losses = []
    config = TrainConfig(epochs=6, augmix=True, lr=0.05)
    train(digits_network(0), small_loader(), config, progress=lambda done, of, loss: losses.append(loss))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("sizes", [(4, 4, 4, 4, 4, 4, 4, 4, 4, 3), (4, 4), (4, 1, 4)])
def test_batches_that_augmix_mixes_together_keep_their_images_labels_and_order(sizes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        images = torch.rand(sum(sizes), 3, 8, 8)
        given = list(zip(images.split(sizes), torch.arange(sum(sizes)).split(sizes), strict=True))
        seen = list(_augmented(given, TrainConfig(epochs=1, augmix=True), Runtime()))
    whole = [batch for batch in given if len(batch[1]) > 1]
    assert len(seen) == len(whole)
    for (forms, labels), (plain, known) in zip(seen, whole, strict=True):
        assert torch.equal(labels, known)
        own, *mixtures = forms.chunk(3)
        assert torch.equal(own, plain)
        for mixture in mixtures:
            nearest = torch.cdist(mixture.flatten(1), images.flatten(1)).argmin(1)
            assert not torch.equal(mixture, plain)
            assert (nearest == known).float().mean() > 0.5


@pytest.mark.parametrize(
    "options", [{"epochs": 0}, {"lr": 0.0}, {"rise": 1.0}, {"shift": -1}, {"jsd": -1.0}, {"weight_decay": -1e-4}]
)
def test_wrong_settings_are_named(options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
        TrainConfig(**{"epochs": 1, **options})
