"""Warm-ups that were interrupted and go on from their checkpoint."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from vcotta import Runtime, WarmUpConfig, warm_up
from vcotta.bayes import load_warmed
from vcotta.bayes.held_back import HeldBack
from vcotta.data import batches
from vcotta.nn import epoch_state

LOADERS = {
    "a list that ends with one image": lambda x, y: [(x[:20], y[:20]), (x[20:40], y[20:40]), (x[40:41], y[40:41])],
    "a loader of its own order": lambda x, y: batches(
        (x * 255).byte().permute(0, 2, 3, 1).numpy(), y.numpy(), 20, shuffle_seed=1
    ),
    "a DataLoader that shuffles": lambda x, y: DataLoader(TensorDataset(x, y), 20, shuffle=True),
}


@pytest.mark.parametrize(
    ("kind", "stop_at", "channels_last"),
    [
        *((kind, 0.6, False) for kind in LOADERS),
        ("a loader of its own order", 0.1, False),  # before anything was kept
        ("a loader of its own order", 0.6, True),
    ],
)
def test_an_interrupted_warm_up_equals_one_that_was_not(
    kind, stop_at, channels_last, source, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(epoch_state, "_PAUSE", 0.0)
    monkeypatch.setattr(epoch_state, "_SHARE", 0)
    x, y = (torch.cat(parts) for parts in zip(*source, strict=True))
    path, loader, heard = tmp_path / "warming", LOADERS[kind](x, y), []

    def warm(data, **more) -> nn.Module:
        runtime = Runtime(channels_last=channels_last)
        return warm_up(dropping(), data, WarmUpConfig(epochs=4, lr=1e-2), runtime=runtime, **more)

    def stop(step: int, steps: int, loss: float) -> None:
        heard.append(step)
        if step > stop_at * 4 * len(loader):
            raise KeyboardInterrupt

    whole = warm(LOADERS[kind](x, y), progress=False)
    with pytest.raises(KeyboardInterrupt):
        warm(loader, progress=stop, checkpoint=path)
    assert path.exists() == (stop_at > 0.25)
    again: list[int] = []
    resumed = warm(LOADERS[kind](x, y), progress=lambda step, *_: again.append(step), checkpoint=path)
    assert (again[0] > 1) == (stop_at > 0.25)  # from the last whole epoch on
    assert again[0] <= heard[-1]
    ours, theirs = (list(net.state_dict().values()) for net in (resumed, whole))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def dropping() -> nn.Module:
    """A network that draws random numbers, in the mode in which a training leaves it."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.3), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).train()


def test_an_interrupted_warm_up_is_judged_by_the_images_that_were_held_back_before(tiny, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(epoch_state, "_PAUSE", 0.0)
    monkeypatch.setattr(epoch_state, "_SHARE", 0)
    drawn = torch.Generator().manual_seed(0)
    x, y, path = torch.rand(160, 3, 8, 8, generator=drawn), torch.arange(160) % 4, tmp_path / "warming"

    def warm(**more) -> nn.Module:
        data = LOADERS["a loader of its own order"](x, y)
        return warm_up(tiny(), data, WarmUpConfig(epochs=3, held_back=0.5), **more)

    def stop(step: int, steps: int, loss: float) -> None:
        if step > 0.7 * steps:
            raise KeyboardInterrupt

    judges: list[torch.Tensor] = []
    go_back = HeldBack.go_back

    def noted(self: HeldBack, *arguments):
        judges.append(self.state_dict()["images"])
        return go_back(self, *arguments)

    monkeypatch.setattr(HeldBack, "go_back", noted)
    with pytest.raises(KeyboardInterrupt):
        warm(progress=stop, checkpoint=path)
    warm(progress=False, checkpoint=path), warm(progress=False)
    assert len(judges) == 2
    assert len(judges[0]) > 30
    assert torch.equal(*judges)


def test_a_warm_up_is_not_resumed_with_other_data(tiny, source, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(epoch_state, "_PAUSE", 0.0)
    config, path = WarmUpConfig(epochs=2), tmp_path / "warming"
    x, y = (torch.cat(parts) for parts in zip(*source, strict=True))
    kind = "a loader of its own order"
    warm_up(tiny(), LOADERS[kind](x, y), config, progress=False, checkpoint=path)
    for other in ((x.flip(0), y), (x, y.flip(0))):
        with pytest.raises(ValueError, match=r"other data: its images, labels or batch size differ\. Move it away"):
            warm_up(tiny(), LOADERS[kind](*other), config, progress=False, checkpoint=path)
    with pytest.raises(ValueError, match="batches is 5 there and 3 here"):
        warm_up(tiny(), LOADERS[kind](x[:50], y[:50]), config, progress=False, checkpoint=path)
    with pytest.raises(ValueError, match="other parts: loader is on one side only"):
        warm_up(tiny(), source[:5], config, progress=False, checkpoint=path)


def test_ctrl_c_in_a_warm_up_waits_for_the_end_of_the_epoch_and_keeps_it(tiny, source, tmp_path, press_ctrl_c) -> None:
    config, path = WarmUpConfig(epochs=3), tmp_path / "warming"

    def press(step, steps, loss):
        if step == 1:
            press_ctrl_c()

    with pytest.raises(KeyboardInterrupt, match="1 of 3 epochs are saved"):
        warm_up(tiny(), source, config, progress=press, checkpoint=path)
    resumed, whole = warm_up(tiny(), source, config, progress=False, checkpoint=path), warm_up(tiny(), source, config)
    assert all(torch.equal(value, whole.state_dict()[key]) for key, value in resumed.state_dict().items())


def test_ctrl_c_does_not_wait_for_the_end_of_a_long_epoch(
    tiny, source, tmp_path, press_ctrl_c, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(epoch_state, "_PAUSE", 0.0)
    monkeypatch.setattr(epoch_state, "_SHARE", 0)
    monkeypatch.setattr(epoch_state, "_GRACE", 0.0)
    config, path, seen = WarmUpConfig(epochs=3), tmp_path / "warming", []

    def press(step, steps, loss):
        seen.append(step)
        if step == len(source) + 2:  # in the second epoch
            press_ctrl_c()

    with pytest.raises(KeyboardInterrupt, match=r"1 of 3 epochs are saved: run the same .*Epoch 2 was not finished"):
        warm_up(tiny(), source, config, progress=press, checkpoint=path)
    assert seen[-1] == len(source) + 2
    assert "press again to stop at once" in capsys.readouterr().err
    resumed, whole = warm_up(tiny(), source, config, progress=False, checkpoint=path), warm_up(tiny(), source, config)
    assert all(torch.equal(value, whole.state_dict()[key]) for key, value in resumed.state_dict().items())


def test_ctrl_c_in_the_last_epoch_of_a_warm_up_waits_for_its_result(tiny, source, tmp_path, press_ctrl_c) -> None:
    path, checkpoint = tmp_path / "warm.safetensors", tmp_path / "warming"

    def press(step, steps, loss):
        if step == 1:
            press_ctrl_c()

    with pytest.raises(KeyboardInterrupt):
        warm_up(tiny(), source, WarmUpConfig(epochs=1), path=path, progress=press, checkpoint=checkpoint)
    whole, kept = warm_up(tiny(), source, WarmUpConfig(epochs=1)), load_warmed(tiny(), path)
    assert all(torch.equal(value, whole.state_dict()[key]) for key, value in kept.state_dict().items())


def test_a_checkpoint_of_another_warm_up_is_refused(tiny, source, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(epoch_state, "_PAUSE", 0.0)
    path = tmp_path / "warming"
    warm_up(tiny(), source, WarmUpConfig(epochs=2), progress=False, checkpoint=path)
    with pytest.raises(ValueError, match=r"other settings: config\.epochs is 2 there and 3 here"):
        warm_up(tiny(), source, WarmUpConfig(epochs=3), progress=False, checkpoint=path)
    with pytest.raises(ValueError, match="other settings: weights_sha256 is"):
        warm_up(tiny(seed=5), source, WarmUpConfig(epochs=2), progress=False, checkpoint=path)
