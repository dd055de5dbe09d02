from __future__ import annotations

import math
import re
import threading
from typing import ClassVar

import pytest
import torch
from torch import nn

from vcotta import Runtime, WarmUpConfig, build_adapter, to_variational, warm_up
from vcotta._util.tensorfile import read_state
from vcotta.bayes import is_variational, kl_divergence, load_warmed, sampling, save_warmed, variational_parameters
from vcotta.nn.rng import OwnRng


def test_it_returns_a_variational_network_in_eval_and_mean_mode_and_leaves_the_model_alone(tiny, source) -> None:
    model = tiny()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    net = warm_up(model, source, WarmUpConfig(epochs=1), progress=False)
    assert is_variational(net)
    assert not net.training
    assert not any(p.requires_grad for p in net.parameters())
    assert torch.equal(net(source[0][0]), net(source[0][0]))
    assert not is_variational(model)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_it_lowers_the_loss_under_noise(tiny, source) -> None:
    config = WarmUpConfig(epochs=30, lr=1e-2, views=False)
    losses: list[float] = []
    warm_up(tiny(), source, config, progress=lambda step, steps, loss: losses.append(loss))
    assert len(losses) == 30 * 6
    assert sum(losses[-6:]) < 0.7 * sum(losses[:6])


def test_without_a_step_it_returns_the_prior(tiny, source) -> None:
    net = warm_up(tiny(), source, WarmUpConfig(epochs=1, lr=0.0, sigma_travel=0.0), progress=False)
    assert kl_divergence(net, to_variational(tiny())).item() == 0


def test_more_source_data_lets_the_posterior_move_further_from_the_prior(tiny, source) -> None:
    def distance(size: int) -> float:
        config = WarmUpConfig(kl_weight=None, epochs=15, lr=5e-3, views=False, source_size=size)
        return kl_divergence(warm_up(tiny(), source, config, progress=False), to_variational(tiny())).item()

    assert distance(1) < 0.5 * distance(10_000)


def test_batch_norm_statistics_are_those_of_the_mean_network(tiny, source) -> None:
    net = warm_up(tiny(), source, WarmUpConfig(epochs=2, lr=1e-2, sigma_ratio=2.0), progress=False)
    with torch.no_grad():
        h = torch.stack([net.conv1(x).mean((0, 2, 3)) for x, _ in source]).mean(0)
    assert torch.allclose(net.norm1.running_mean, h, atol=1e-5)


def test_it_is_reproducible_and_disturbs_no_random_numbers(tiny, source) -> None:
    before = torch.get_rng_state()
    first = warm_up(tiny(), source, WarmUpConfig(epochs=1), progress=False)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    second = warm_up(tiny(), source, WarmUpConfig(epochs=1), progress=False)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    other = warm_up(tiny(), source, WarmUpConfig(epochs=1, seed=1), progress=False)
    assert not torch.equal(first.fc.weight, other.fc.weight)


class Watched(nn.Sequential):
    """A network whose copies, too, tell what they were shown."""

    shown: ClassVar[list[torch.Tensor]] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.shown.append(images)
        return super().forward(images)


@pytest.mark.parametrize("views", [True, False])
def test_augmix_mixes_the_views_that_the_network_is_shown(views, source) -> None:
    model = Watched(nn.Flatten(), nn.Linear(192, 4))

    def shown(augmix: bool) -> torch.Tensor:
        Watched.shown.clear()
        warm_up(model, source, WarmUpConfig(epochs=1, views=views, augmix=augmix), progress=False)
        return torch.cat(Watched.shown[1 : 1 + len(source)])  # after a try, and before what is for the statistics

    images, plain, mixed = torch.cat([x for x, _ in source]), shown(augmix=False), shown(augmix=True)
    assert torch.equal(plain, images) == (not views)
    assert mixed.shape == images.shape
    assert mixed.min() >= 0
    assert mixed.max() <= 1
    first = slice(0, len(source[0][0]))  # of the same views: they are drawn before the first mixtures
    assert (mixed != plain)[first].flatten(1).any(1).float().mean() > 0.8
    others = plain.flip(0)
    assert (mixed - plain)[first].abs().mean() < 0.5 * (mixed - others)[first].abs().mean()
    assert torch.equal(mixed, shown(augmix=True))


def test_the_saved_network_comes_back_with_its_settings(tiny, source, tmp_path) -> None:
    path = tmp_path / "deep" / "net.safetensors"
    net = warm_up(tiny(), source, WarmUpConfig(epochs=1), path=path, progress=False)
    assert read_state(path, "vcotta-warmed-1")["about"]["config"]["epochs"] == 1
    again = load_warmed(tiny(seed=7), path)
    assert not again.training
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), again.state_dict().values(), strict=True))
    with torch.random.fork_rng(), sampling(again):
        assert not torch.equal(again(source[0][0]), net(source[0][0]))


def test_a_model_in_train_mode_is_tried_without_its_noise_and_may_begin_with_one_image(source) -> None:
    small = nn.Sequential(nn.Conv2d(3, 4, 8), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 4)).train()
    x, y = source[0]
    steps: list[int] = []
    warm_up(small, [(x[:1], y[:1]), (x, y)], WarmUpConfig(epochs=1), progress=lambda step, *_: steps.append(step))
    assert steps == [1]


def test_settings_of_another_type_are_refused_by_name(tiny, source) -> None:
    with pytest.raises(TypeError, match="Expected `epochs` to be a whole number, but got '5'"):
        WarmUpConfig(epochs="5")
    with pytest.raises(ValueError, match=r"Expected `epochs` to be a whole number, but got 1\.5"):
        WarmUpConfig(epochs=1.5)
    with pytest.raises(TypeError, match="Expected `config` to be a WarmUpConfig, but got 5"):
        warm_up(tiny(), source, 5)


def test_foreign_truncated_and_mismatched_files_are_refused(tiny, tmp_path) -> None:
    path = tmp_path / "net.safetensors"
    save_warmed(to_variational(tiny()), path)
    with pytest.raises(
        ValueError, match=r"a warmed TinyNet in .* has shape \(4, \d+\) there and \(9, \d+\) in the network\."
    ):
        load_warmed(tiny(classes=9), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cannot be read"):
        load_warmed(tiny(), path)
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match=r"cannot be read: .* warm that up first: vcotta\.warm_up"):
        load_warmed(tiny(), path)
    with pytest.raises(FileNotFoundError):
        load_warmed(tiny(), tmp_path / "none.safetensors")


def test_wrong_settings_and_loaders_are_refused(tiny, source) -> None:
    for wrong in (
        {"source_size": 0},
        {"source_size": -1},
        {"epochs": 0},
        {"lr": -1.0},
        {"lr": float("inf")},
        {"statistics_images": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            WarmUpConfig(**wrong)
    with pytest.raises(ValueError, match="source_size"):
        warm_up(tiny(), iter(source), WarmUpConfig(epochs=1, kl_weight=None), progress=False)
    with pytest.raises(ValueError, match="empty after one pass"):
        warm_up(tiny(), iter(source), WarmUpConfig(epochs=2, source_size=96), progress=False)
    with pytest.raises(ValueError, match="none in epoch 1"):
        warm_up(tiny(), [], WarmUpConfig(source_size=1), progress=False)


BAD = {
    "bytes": (lambda x, y: ((255 * x).byte(), y), TypeError, "Scale bytes"),
    "not scaled": (lambda x, y: (255 * x, y), ValueError, "Divide by 255"),
    "labels out of range": (lambda x, y: (x, y + 4), ValueError, "0 to 3"),
    "other channels": (lambda x, y: (x[:, :1], y), ValueError, "does not take images of shape"),
    "float labels": (lambda x, y: (x, y.float()), TypeError, "whole numbers"),
    "labels of another length": (lambda x, y: (x, y[:5]), ValueError, "one per image"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_source_data_is_refused(case, tiny, source) -> None:
    spoil, error, text = BAD[case]
    with pytest.raises(error, match=text):
        warm_up(tiny(), [spoil(*batch) for batch in source], WarmUpConfig(epochs=1), progress=False)


def test_a_last_batch_of_one_image_is_left_out(tiny, source) -> None:
    x, y = source[0]
    short = [*source, (x[:1], y[:1])]
    steps: list[int] = []
    warm_up(tiny(), short, WarmUpConfig(epochs=1), progress=lambda step, *_: steps.append(step))
    assert steps == [1, 2, 3, 4, 5, 6]


class Endless(torch.utils.data.IterableDataset):
    def __init__(self, batches) -> None:
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def test_a_loader_that_does_not_know_its_length_will_do(tiny, source) -> None:
    loader = torch.utils.data.DataLoader(Endless(source), batch_size=None)
    assert is_variational(warm_up(tiny(), loader, WarmUpConfig(epochs=1, source_size=96), progress=False))


def test_attention_of_ones_own_is_left_as_points_on_request(images) -> None:
    class OwnAttention(nn.MultiheadAttention):
        pass

    class Attentive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.fc = OwnAttention(3, 1, batch_first=True), nn.Linear(3, 4)

        def forward(self, x):
            x = x.flatten(2).transpose(1, 2)
            return self.fc(self.attention(x, x, x)[0].mean(1))

    source = [(images(8), torch.arange(8) % 4)]
    with pytest.raises(ValueError, match=r"'attention'.*subclass"):
        warm_up(Attentive(), source, WarmUpConfig(epochs=1), progress=False)
    once = WarmUpConfig(epochs=1)
    for net in (
        warm_up(Attentive(), source, WarmUpConfig(epochs=1, unsupported="keep"), progress=False),
        warm_up(Attentive(), source, once, unsupported="keep", progress=False),
        build_adapter("vcotta", Attentive(), source=source, warmup=once, unsupported="keep").start,
        to_variational(Attentive(), unsupported="keep"),
    ):
        assert is_variational(net)
        assert not is_variational(net.attention)
    with pytest.raises(
        ValueError, match=r"unsupported='keep' in Python, `vcotta warmup --unsupported keep` at the command line"
    ):
        build_adapter("vcotta", Attentive(), source=source)


def test_progress_is_a_line_an_epoch_where_there_is_no_terminal(tiny, source, capsys) -> None:
    warm_up(tiny(), source, WarmUpConfig(epochs=2))
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"Warm-up: epoch 1 of 2, loss \d+\.\d{3}, \d+ s", lines[0])
    assert lines[-1].startswith("Warm-up: epoch 2 of 2")
    warm_up(tiny(), source, WarmUpConfig(epochs=2), progress=False)
    assert not capsys.readouterr().err


def test_loading_leaves_the_callers_network_alone(tiny, tmp_path) -> None:
    save_warmed(to_variational(tiny(seed=1)), tmp_path / "net")
    own = to_variational(tiny(seed=2))
    before = own.fc.weight.detach().clone()
    loaded = load_warmed(own, tmp_path / "net")
    assert torch.equal(own.fc.weight, before)
    assert not torch.equal(loaded.fc.weight, before)


class Overflow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float("inf")


def test_an_exploding_loss_stops_with_advice(source) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), Overflow())
    with pytest.raises(FloatingPointError, match="Lower `lr`"):
        warm_up(model, source, WarmUpConfig(epochs=1), progress=False)


def test_the_divergence_is_weighed_by_the_source_or_by_the_weights(tiny, source) -> None:
    def moved(kl_weight: float | None) -> float:
        config = WarmUpConfig(epochs=3, sigma_travel=0.0, kl_weight=kl_weight)
        net = warm_up(tiny(), source, config, progress=False)
        return kl_divergence(net, to_variational(tiny())).item()

    weights = sum(mean.numel() for _, mean, _ in variational_parameters(to_variational(tiny())))
    printed = moved(None)  # the paper's 1 / N, N = 96 here
    assert moved(weights / 96) == pytest.approx(printed, rel=1e-4)
    assert moved(0.01 * weights / 96) > printed > moved(100 * weights / 96)
    with pytest.raises(ValueError, match="kl_weight"):
        WarmUpConfig(kl_weight=-1.0)


class Huge(nn.Module):
    """Logits that float64 can hold and float32 cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 4)

    def forward(self, x):
        return 1e60 * self.fc(x.flatten(1))


def test_the_loss_is_computed_in_float64_if_asked_for(source) -> None:
    losses: list[float] = []
    config = WarmUpConfig(epochs=1, lr=0.0)
    warm_up(Huge(), source, config, runtime=Runtime(precision="fp64"), progress=lambda *told: losses.append(told[2]))
    assert losses
    assert all(1e50 < loss < math.inf for loss in losses)


def test_another_thread_has_its_turn_between_two_steps_of_a_warm_up(tiny, source) -> None:
    rng, turns = OwnRng(3), []

    def turn(step: int, steps: int, loss: float) -> None:
        thread = threading.Thread(target=lambda: turns.append(_draw(rng)), daemon=True)
        thread.start()
        thread.join(timeout=5)
        assert len(turns) == step

    expected = warm_up(tiny(), source, WarmUpConfig(epochs=2), progress=False).state_dict()
    found = warm_up(tiny(), source, WarmUpConfig(epochs=2), progress=turn).state_dict()
    assert len(turns) == 12
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def _draw(rng: OwnRng) -> float:
    with rng.scope():
        return torch.rand(()).item()


@pytest.mark.parametrize("extra", [(torch.arange(4),), ()], ids=["three", "images alone"])
def test_a_list_of_other_things_than_pairs_is_refused_with_what_to_give(tiny, extra) -> None:
    images = torch.rand(4, 3, 8, 8)
    source = [(images, torch.arange(4), *extra)] if extra else [images]
    with pytest.raises(TypeError, match=r"Expected source data to yield batches, \(images of shape"):
        warm_up(tiny(), source, WarmUpConfig(epochs=1), progress=False)
