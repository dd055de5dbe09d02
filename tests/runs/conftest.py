from __future__ import annotations

from pathlib import Path

import pytest

from .small_run import checkpoints, run


@pytest.fixture
def whole(tmp_path) -> bytes:
    """The records of a run that nothing disturbed."""
    run(tmp_path / "whole", every=None)
    return (tmp_path / "whole" / "records.jsonl").read_bytes()


@pytest.fixture
def stopped(tmp_path) -> Path:
    """The folder of a run that failed after seven of eight batches, with checkpoints after four and six."""

    def fail(done: int, *_: object) -> None:
        if done == 7:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        run(tmp_path / "run", progress=fail)
    assert checkpoints(tmp_path / "run") == ["4.safetensors", "6.safetensors"]
    return tmp_path / "run"
