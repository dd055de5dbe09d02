from __future__ import annotations

import math

import pytest
import torch

from vcotta.methods import BN, DeYO, DeYOConfig, deyo
from vcotta.methods.deyo import shuffle_patches
from vcotta.methods.parts.losses import entropy


def copies(adapter) -> list[torch.Tensor]:
    return [p.detach().clone() for p in adapter.networks["model"].parameters() if p.requires_grad]


def patches_of(image: torch.Tensor, count: int) -> list[tuple[float, ...]]:
    height, width = image.shape[1] // count, image.shape[2] // count
    cut = image.unfold(1, height, height).unfold(2, width, width)  # channels, rows, columns, height, width
    return sorted(tuple(cut[:, i, j].flatten().tolist()) for i in range(count) for j in range(count))


@pytest.mark.parametrize("size", [(8, 8), (16, 8)])
def test_shuffling_keeps_every_patch_and_moves_some(size, images) -> None:
    x = images(5, size=size)
    shuffled = shuffle_patches(x, 4)
    assert not torch.equal(x, shuffled)
    for before, after in zip(x, shuffled, strict=True):
        assert patches_of(before, 4) == patches_of(after, 4)


def test_every_image_is_shuffled_in_its_own_order(images) -> None:
    twins = images(1).expand(2, -1, -1, -1)
    one, other = shuffle_patches(twins, 4)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("size", [(9, 14), (3, 8), (1, 1)])
def test_any_size_can_be_shuffled(size, images) -> None:
    shuffled = shuffle_patches(images(size=size), 4)
    assert shuffled.shape == (6, 3, *size)
    assert 0 <= shuffled.min() <= shuffled.max() <= 1


def test_one_patch_is_the_image_itself_and_loses_nothing(tiny, images) -> None:
    assert torch.equal(shuffle_patches(images(), 1), images())
    adapter = DeYO(tiny("group"), DeYOConfig(entropy_margin=1.1, patches=1, drop=0.0, lr=0.1))
    before = copies(adapter)
    adapter(images())
    assert adapter.last["kept"] == 0  # a drop of 0 is not above 0
    assert all(map(torch.equal, before, copies(adapter)))


def test_without_a_sure_sample_there_is_no_second_pass_and_no_step(tiny, images) -> None:
    adapter = DeYO(tiny(), DeYOConfig(entropy_margin=0.0, drop=-1.0, lr=0.1))
    before = copies(adapter)
    assert torch.equal(adapter(images()), BN(tiny())(images()))
    assert (adapter.last["forwards"], adapter.last["backwards"], adapter.last["kept"]) == (1, 0, 0)
    assert all(map(torch.equal, before, copies(adapter)))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_samples_that_do_not_depend_on_their_shape_take_no_step(optimizer, tiny, images) -> None:
    adapter = DeYO(tiny(), DeYOConfig(entropy_margin=1.1, drop=1.0, lr=0.1, optimizer=optimizer))
    before = copies(adapter)
    for seed in range(2):
        adapter(images(seed=seed))
        assert adapter.last["skipped"] is False
    assert all(map(torch.equal, before, copies(adapter)))
    moments = [t for state in adapter.optimizer.state.values() for t in state.values()]
    assert not any(moment.any() for moment in moments)


def test_the_step_is_the_one_of_the_papers_formula(tiny, images, monkeypatch) -> None:
    def mirrored(images, patches):
        return images.flip(-1)

    def make():
        model = tiny()
        with torch.no_grad():
            model.fc.weight.mul_(8)  # entropies and drops of all sizes
        return model

    monkeypatch.setattr(deyo, "shuffle_patches", mirrored)
    adapter = DeYO(make(), DeYOConfig(lr=0.05, optimizer="sgd", entropy_margin=0.7, drop=0.01))
    net = make().train().requires_grad_(False)
    norms = [p.requires_grad_(True) for norm in (net.norm1, net.norm2) for p in norm.parameters()]
    sgd = torch.optim.SGD(norms, lr=0.05, momentum=0.9, nesterov=True)
    for seed in range(3):
        x = images(40, seed)
        adapter(x)
        log_probs = net(x).log_softmax(-1)
        h = entropy(log_probs)
        sure = h.detach() < 0.7 * math.log(4)
        with torch.no_grad():
            p = log_probs[sure].exp()
            rows, label = torch.arange(len(p)), p.argmax(-1)
            drop = p[rows, label] - net(x[sure].flip(-1)).softmax(-1)[rows, label]
        kept = drop > 0.01
        assert 0 < kept.sum() < sure.sum() < 40
        h = h[sure][kept]
        weights = (0.4 * math.log(4) - h.detach()).exp() + drop[kept].exp()
        assert (weights >= math.exp(-0.3 * math.log(4)) + math.exp(0.01)).all()
        loss = (weights * h).mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        assert adapter.last["kept"] == pytest.approx(kept.sum().item() / 40)
        assert adapter.last["loss"] == pytest.approx(loss.item(), rel=1e-3)
    for ours, theirs in zip(copies(adapter), norms, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"drop": 1.5}, {"patches": 0}, {"weight_margin": -0.1}, {"entropy_margin": -1.0}, {"lr": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DeYOConfig(**wrong)
