"""Cells on a Ray cluster; most of it on a real one, of two workers on this machine."""

from __future__ import annotations

import builtins
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vcotta.experiments import ray_launcher
from vcotta.experiments.benchmark import find_benchmark
from vcotta.experiments.cells import Cell
from vcotta.experiments.grid import run_cells
from vcotta.experiments.networks import Weights
from vcotta.experiments.ray_launcher import RayLauncher
from vcotta.models import save_weights
from vcotta.runs import RECORDS

pytestmark = pytest.mark.filterwarnings("ignore:The frost photographs")


def test_a_run_that_a_lost_worker_still_holds_is_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(ray_launcher, "PATIENCE", (0.0, 0.0))
    tries: list[int] = []

    def job(free_after: int = 2) -> None:
        tries.append(1)
        if len(tries) <= free_after:
            raise BlockingIOError("held")

    ray_launcher._work(job, ["vcotta", "reproduce"])
    assert len(tries) == 3
    assert sys.argv == ["vcotta", "reproduce"]
    tries.clear()
    with pytest.raises(BlockingIOError, match="held"):
        ray_launcher._work(lambda: job(free_after=9), [])
    assert len(tries) == 3


def test_a_machine_that_lacks_something_is_told() -> None:
    class RayError(Exception):
        pass

    class TaskUnschedulableError(RayError):
        pass

    def failing(_: object) -> None:
        raise RayError("trace\nModuleNotFoundError: No module named 'vcotta'")

    def gone(_: object) -> None:
        raise TaskUnschedulableError

    here = ray_launcher._versions()
    exceptions = SimpleNamespace(RayError=RayError, TaskUnschedulableError=TaskUnschedulableError)

    def answer(get: Callable[[object], Any]) -> str:
        return ray_launcher._answer(SimpleNamespace(get=get, exceptions=exceptions), None)

    assert answer(lambda _: (here, [])) == ""
    assert answer(gone) == ""
    assert "does not see /shared/runs" in answer(lambda _: (here, ["/shared/runs"]))
    assert "but it has vcotta 0.0" in answer(lambda _: ("vcotta 0.0", []))
    assert "No module named 'vcotta'" in answer(failing)


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path) -> None:
    real = builtins.__import__

    def no_ray(name: str, *rest: Any) -> Any:
        return real("no_ray" if name == "ray" else name, *rest)

    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(builtins, "__import__", no_ray)
    with pytest.raises(ValueError, match=r"vcotta\[cluster\]"):
        run_cells([Cell("bn", "digits", "bn")], tmp_path, launcher=RayLauncher())


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "[::1]:{}", "127.0.0.1:port"])
def test_an_address_where_nobody_answers_is_told_at_once(address, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with socket.socket() as taken:  # a port that is not listened to
        taken.bind(("127.0.0.1", 0))
        launcher = RayLauncher(address.format(taken.getsockname()[1]))
        with pytest.raises(ConnectionError, match=r"Expected a Ray cluster at .*ray start"):
            run_cells([Cell("bn", "digits", "bn")], tmp_path, launcher=launcher)


def test_a_cluster_of_this_machine_that_lets_nobody_in_is_told_with_a_way_around_it(tmp_path, monkeypatch) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("InvalidAuthToken")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=refuse))
    with pytest.raises(ConnectionError, match=r"InvalidAuthToken.*RAY_AUTH_TOKEN_PATH.*--address local"):
        run_cells([Cell("bn", "digits", "bn")], tmp_path, launcher=RayLauncher())


@pytest.mark.parametrize("address", [None, "auto", "local"])
def test_an_address_without_a_port_is_left_to_ray(address) -> None:
    ray_launcher._knock(address)


def test_marks_are_seen_while_they_last_and_then_gone(tmp_path) -> None:
    with ray_launcher._marks([tmp_path / "new"]) as marks:
        assert ray_launcher._look_around(marks) == (ray_launcher._versions(), [])
        Path(marks[0]).unlink()
        assert ray_launcher._look_around(marks)[1] == [str(tmp_path / "new")]
    assert list((tmp_path / "new").iterdir()) == []


# On a real cluster.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Any]:
    """A head that runs nothing, and two machines of one CPU each, as far as Ray can tell; entered with a token."""
    token = tmp_path_factory.mktemp("ray") / "token"  # or Ray would leave one in the home folder
    token.write_text(secrets.token_hex(32))
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {"MODE": "token", "TOKEN_PATH": str(token)}.items():
            patch.setenv(f"RAY_AUTH_{key}", value)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'vcotta[cluster]'")
        yield from _cluster()


def _cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    made.workers = [made.add_node(num_cpus=1) for _ in range(2)]
    made.wait_for_nodes()
    yield made
    made.shutdown()


@pytest.fixture
def weights(tmp_path, monkeypatch) -> Weights:
    """An untrained network, and a cache of its own."""
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    save_weights(find_benchmark("digits").build(None), tmp_path / "plain.safetensors")
    return Weights(tmp_path / "plain.safetensors")


def cells() -> list[Cell]:
    """Two runs of 150 batches, with momentum, a teacher, views and randomness in their state."""
    options = {"views": 2}
    return [Cell("cotta", "digits", "cotta", options, limit=100, batch_size=10, seed=seed) for seed in range(2)]


def writer_of(folder: Path) -> int:
    """The process that writes the run of a folder."""
    wanted = str(folder / RECORDS)
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and any(str(file.readlink()) == wanted for file in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:  # it ended, or is somebody else's
            continue
    raise ProcessLookupError(f"Nobody writes {wanted}.")


class Killer(threading.Thread):
    """Waits until a run is half-way and has been saved, then does what it was told, once."""

    def __init__(self, folder: Path, kill: Callable[[int], None]) -> None:
        super().__init__(daemon=True)
        self.folder, self.kill, self.killed = folder, kill, 0
        self.start()

    def run(self) -> None:
        records, give_up = self.folder / RECORDS, time.monotonic() + 300
        while not records.exists() or records.read_bytes().count(b"\n") < 75:
            if time.monotonic() > give_up:
                return
            time.sleep(0.02)
        pid = writer_of(self.folder)
        self.kill(pid)
        self.killed = pid


def check_same(ours: Path, theirs: Path) -> None:
    for cell in cells():
        assert (ours / cell.key / RECORDS).read_bytes() == (theirs / cell.key / RECORDS).read_bytes()
        assert not (ours / cell.key / "checkpoints").exists()


def resumed(folder: Path) -> list[int]:
    return [place["batch"] for place in json.loads((folder / "manifest.json").read_text())["resumed"]]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the worker's process in /proc")
def test_a_killed_worker_and_a_lost_machine_leave_the_records_of_the_local_launcher(cluster, weights, tmp_path) -> None:
    run_cells(cells(), tmp_path / "local", weights=weights)
    told: list[tuple[int, int, float]] = []
    on_ray = {"weights": weights, "launcher": RayLauncher(cluster.address), "report": lambda *line: told.append(line)}
    on_ray["checkpoint_seconds"] = 0.0

    out = tmp_path / "killed"
    killer = Killer(out / cells()[0].key, lambda pid: os.kill(pid, signal.SIGKILL))
    run_cells(cells(), out, **on_ray)
    assert killer.killed
    check_same(out, tmp_path / "local")
    assert resumed(out / cells()[0].key) == [60]
    assert resumed(out / cells()[1].key) == []
    assert told[-1] == (300, 300, 2)
    manifest = json.loads((out / cells()[0].key / "manifest.json").read_text())
    assert manifest["command"] == [Path(sys.argv[0]).name, *sys.argv[1:]]

    out = tmp_path / "lost"

    def lose_the_machine_of(pid: int) -> None:
        """Take away the machine whose raylet started the process."""
        raylet = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        (node,) = (node for node in cluster.workers if node.all_processes["raylet"][0].process.pid == raylet)
        cluster.remove_node(node, allow_graceful=False)

    killer = Killer(out / cells()[1].key, lose_the_machine_of)
    run_cells(cells(), out, **on_ray)
    assert killer.killed
    check_same(out, tmp_path / "local")
    assert resumed(out / cells()[1].key)[-1] >= 60


@pytest.mark.slow
def test_a_failing_cell_stops_the_grid_with_its_reason_and_a_missing_gpu_is_told(cluster, weights, tmp_path) -> None:
    launcher = RayLauncher(cluster.address)
    with pytest.raises(ValueError, match="Did you mean 'digits'"):
        run_cells([Cell("bad", "digit", "tent", limit=5)], tmp_path / "out", launcher=launcher)
    with pytest.raises(RuntimeError, match="Expected a machine with a CPU and a GPU"):
        run_cells(cells(), tmp_path / "out", launcher=launcher, device="cuda")
