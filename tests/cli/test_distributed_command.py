"""`vcotta run --distributed`, started by torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vcotta
from vcotta.bayes import save_warmed
from vcotta.experiments.benchmarks import BENCHMARKS
from vcotta.runs.checkpoints import CHECKPOINTS
from vcotta.runs.run import Run

from ..distributed import free_port

SCRIPT = """
import vcotta.cli.runs
from vcotta.cli import main
vcotta.cli.runs.CHECKPOINT_SECONDS = 0.0
main()
"""


def save_network(folder: Path) -> None:
    """A network for the command that need be neither trained nor warmed up."""
    net = vcotta.to_variational(BENCHMARKS["digits"].build(None, seed=0))
    save_warmed(net, folder / "network.safetensors")


def command(folder: Path, out: Path, *more: str, processes: int = 0) -> subprocess.Popen[str]:
    """Start `vcotta run` on the digits, by itself or by torchrun."""
    script = folder / "run.py"
    script.write_text(SCRIPT)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--monitor-interval", "5"]
    start = [*torchrun, "--master-port", str(free_port())] if processes else []
    what = ["run", "--method", "vcotta", "--weights", str(folder / "network.safetensors"), "--precision", "fp64"]
    size = ["--corruptions", "fog,contrast", "--limit", "120", "--batch-size", "25", "--checkpoint-every", "1"]
    shared = ["--distributed"] if processes else []
    arguments = [*start, str(script), *what, *size, "--device", "cpu", "--out", str(out), *shared, *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def worker(process: subprocess.Popen[str], rank: int) -> int | None:
    """The process of a rank that torchrun started."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"\0RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{child}/environ").read_bytes():
            return int(child)
    return None


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_gives_the_run_of_one_process_even_if_a_worker_is_killed_on_the_way(rank, tmp_path) -> None:
    save_network(tmp_path)
    code, _, err = finish(command(tmp_path, tmp_path / "one"))
    assert code == 0, err
    out = tmp_path / "two"
    process = command(tmp_path, out, processes=2)
    while process.poll() is None and len(list((out / CHECKPOINTS).glob("[0-9]*"))) < 2:
        time.sleep(0.02)
    os.kill(worker(process, rank), signal.SIGKILL)
    code, _, err = finish(process)
    assert code != 0
    assert f"Error: Process {1 - rank} of 2 has lost another one" in err
    assert not (out / "summary.json").exists()
    code, printed, err = finish(command(tmp_path, out, "--resume", processes=2))
    assert code == 0, err
    assert printed.count("Means over corruptions") == 1
    alone, found = Run.load(tmp_path / "one"), Run.load(out)
    assert found.manifest["resumed"][0]["batch"] > 0
    for ours, theirs in zip(alone.records, found.records, strict=True):
        assert ours["predictions"] == theirs["predictions"]
        assert ours["nll"] == pytest.approx(theirs["nll"], abs=1e-5)


@pytest.mark.slow
def test_the_command_refuses_what_cannot_be_shared_and_says_how_to_start(tmp_path) -> None:
    save_network(tmp_path)
    code, _, err = finish(command(tmp_path, tmp_path / "run", "--distributed"))
    assert code == 2
    assert "Expected to be started by torchrun" in err
    code, _, err = finish(command(tmp_path, tmp_path / "run", "--method", "surgeon", "--distributed"))
    assert code == 2
    assert "choose one of source, bn, tent" in err
    assert "Traceback" not in err
