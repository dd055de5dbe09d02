"""Checkpoints between epochs are written rarely enough, and restored only where they belong."""

from __future__ import annotations

import pytest
from torch import nn

from vcotta.nn import epoch_state
from vcotta.nn.epoch_state import EpochState


@pytest.fixture
def clock(monkeypatch):
    """A clock set by hand, which advances by ``saving`` when a checkpoint is written."""

    class Clock:
        now, saving, saved = 0.0, 0.0, 0

        def monotonic(self) -> float:
            return self.now

        def write_state(self, *_) -> None:
            self.now += self.saving
            self.saved += 1

    clock = Clock()
    monkeypatch.setattr(epoch_state, "time", clock)
    monkeypatch.setattr(epoch_state, "write_state", clock.write_state)
    return clock


@pytest.mark.parametrize(("saving", "pause"), [(1.0, 30.0), (9.0, 90.0)])
def test_saving_waits_half_a_minute_and_ten_times_as_long_as_it_takes(clock, tmp_path, saving, pause) -> None:
    clock.saving = saving
    state = EpochState(tmp_path / "state", "example-1", {"model": nn.Linear(2, 2)}, {})
    state.save(1)
    assert clock.saved == 0  # too soon
    clock.now = 30.0
    state.save(2)
    assert clock.saved == 1
    clock.now += pause - 0.1
    state.save(3)
    assert clock.saved == 1
    clock.now += 0.1
    state.save(4)
    assert clock.saved == 2
    state.save(5, now=True)
    assert clock.saved == 3


def test_without_a_file_nothing_is_saved_and_nothing_resumed() -> None:
    state = EpochState(None, "example-1", {"model": nn.Linear(2, 2)}, {})
    state.save(1, now=True)
    assert state.resume() == 0


def test_a_checkpoint_of_another_training_is_refused_with_what_differs(tmp_path) -> None:
    path, parts = tmp_path / "state", {"model": nn.Linear(2, 2)}
    EpochState(path, "example-1", parts, {"lr": 0.1}).save(1, now=True)
    with pytest.raises(ValueError, match=r"lr is 0\.1 there and 0\.2 here\. .*move it away"):
        EpochState(path, "example-1", parts, {"lr": 0.2}).resume()
    with pytest.raises(ValueError, match=r"another network or other data: .* has shape"):
        EpochState(path, "example-1", {"model": nn.Linear(3, 2)}, {"lr": 0.1}).resume()
    with pytest.raises(ValueError, match="other parts: optimizer is on one side only"):
        EpochState(path, "example-1", parts | {"optimizer": nn.Linear(2, 2)}, {"lr": 0.1}).resume()
    with pytest.raises(ValueError, match="its kind is 'example-1'"):
        EpochState(path, "example-2", parts, {"lr": 0.1}).resume()


def test_an_interrupted_epoch_that_could_not_be_saved_is_reported_so(tmp_path, monkeypatch, press_ctrl_c) -> None:
    monkeypatch.setattr(epoch_state, "write_state", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left")))
    state = EpochState(tmp_path / "state", "example-1", {"model": nn.Linear(2, 2)}, {})

    def press() -> None:
        with state.interruptible(3) as after_epoch:
            press_ctrl_c()
            after_epoch(1)

    with (
        pytest.warns(UserWarning, match="could not be saved"),
        pytest.raises(KeyboardInterrupt, match="1 of 3 epochs were done and could not be saved"),
    ):
        press()


def test_a_full_disk_gives_a_warning_and_stops_nothing(tmp_path, monkeypatch) -> None:
    def full(*_) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(epoch_state, "write_state", full)
    with pytest.warns(UserWarning, match=r"after 2 epochs could not be saved: .*No space left.* The work continues"):
        EpochState(tmp_path / "state", "example-1", {"model": nn.Linear(2, 2)}, {}).save(2, now=True)


def test_ctrl_c_waits_ten_seconds_for_a_long_epoch_and_longer_for_one_that_would_be_lost(
    clock, tmp_path, press_ctrl_c
) -> None:
    state = EpochState(tmp_path / "state", "example-1", {"model": nn.Linear(2, 2)}, {})

    def stop(done: int) -> None:
        with state.interruptible(3):
            state.after_batch(done, 3)
            press_ctrl_c()
            for clock.now in (100.0, 109.0, 111.0):
                state.after_batch(done, 3)

    with pytest.raises(KeyboardInterrupt, match=r"Nothing is saved\. Epoch 1 was not finished and is not kept"):
        stop(0)
    assert clock.now == 111
    with pytest.raises(KeyboardInterrupt) as waited:  # at the end of the block: the first epoch is not in the file
        stop(1)
    assert not waited.value.args
    state.save(1, now=True)
    with pytest.raises(KeyboardInterrupt, match="1 of 3 epochs are saved"):
        stop(1)


def test_a_damaged_checkpoint_is_refused_in_whole_sentences(tmp_path) -> None:
    (tmp_path / "state").write_text("not ours")
    with pytest.raises(ValueError, match=r"[^.]\. Move it away\.$"):
        EpochState(tmp_path / "state", "test-1", {"model": nn.Linear(2, 2)}, {}).resume()
