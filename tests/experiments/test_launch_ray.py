"""Runs on a Ray cluster; most of it on a real one, of two workers on this machine."""

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

from vcotta.experiments import launch_ray
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.experiments.grid import run_specs
from vcotta.experiments.launch_ray import RayLauncher
from vcotta.models import save_weights
from vcotta.runs.run import RECORDS
from vcotta.runs.spec import RunSpec

pytestmark = pytest.mark.filterwarnings("ignore:The frost photographs")


def test_a_run_that_a_lost_worker_still_holds_is_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(launch_ray, "PATIENCE", (0.0, 0.0))
    tries: list[int] = []

    def job(free_after: int = 2) -> None:
        tries.append(1)
        if len(tries) <= free_after:
            raise BlockingIOError("held")

    launch_ray._work(job, ["vcotta", "reproduce"])
    assert len(tries) == 3
    assert sys.argv == ["vcotta", "reproduce"]
    tries.clear()
    with pytest.raises(BlockingIOError, match="held"):
        launch_ray._work(lambda: job(free_after=9), [])
    assert len(tries) == 3


def test_a_machine_that_lacks_something_is_named() -> None:
    class RayError(Exception):
        pass

    class TaskUnschedulableError(RayError):
        pass

    def failing(_: object) -> None:
        raise RayError("trace\nModuleNotFoundError: No module named 'vcotta'")

    def gone(_: object) -> None:
        raise TaskUnschedulableError

    here = launch_ray._versions()
    exceptions = SimpleNamespace(RayError=RayError, TaskUnschedulableError=TaskUnschedulableError)

    def answer(get: Callable[[object], Any]) -> str:
        return launch_ray._answer(SimpleNamespace(get=get, exceptions=exceptions), None)

    assert answer(lambda _: (here, [])) == ""
    assert answer(gone) == ""
    assert "does not see /shared/runs" in answer(lambda _: (here, ["/shared/runs"]))
    assert "but it has vcotta 0.0" in answer(lambda _: ("vcotta 0.0", []))
    assert "No module named 'vcotta'" in answer(failing)


def test_without_ray_the_message_says_what_to_install(monkeypatch, tmp_path) -> None:
    real = builtins.__import__

    def no_ray(name: str, *rest: Any) -> Any:
        return real("no_ray" if name == "ray" else name, *rest)

    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(builtins, "__import__", no_ray)
    with pytest.raises(ValueError, match=r"pip install ray"):
        run_specs([RunSpec("bn")], tmp_path, launcher=RayLauncher())


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "[::1]:{}", "127.0.0.1:port"])
def test_an_address_that_does_not_answer_is_reported_at_once(address, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with socket.socket() as taken:  # a port that is not listened to
        taken.bind(("127.0.0.1", 0))
        launcher = RayLauncher(address.format(taken.getsockname()[1]))
        with pytest.raises(ConnectionError, match=r"Expected a Ray cluster at .*ray start"):
            run_specs([RunSpec("bn")], tmp_path, launcher=launcher)


def test_a_cluster_that_refuses_the_connection_is_reported_with_a_remedy(tmp_path, monkeypatch) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("InvalidAuthToken")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=refuse))
    with pytest.raises(ConnectionError, match=r"InvalidAuthToken.*RAY_AUTH_TOKEN_PATH.*--address local"):
        run_specs([RunSpec("bn")], tmp_path, launcher=RayLauncher())


@pytest.mark.parametrize("address", [None, "auto", "local"])
def test_an_address_without_a_port_is_left_to_ray(address) -> None:
    launch_ray.knock(address)


def test_marks_are_seen_while_they_last_and_then_gone(tmp_path) -> None:
    with launch_ray._marks([tmp_path / "new"]) as marks:
        assert launch_ray._look_around(marks) == (launch_ray._versions(), [])
        Path(marks[0]).unlink()
        assert launch_ray._look_around(marks)[1] == [str(tmp_path / "new")]
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
        pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
        yield from _cluster()


def _cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    made.workers = [made.add_node(num_cpus=1) for _ in range(2)]
    made.wait_for_nodes()
    yield made
    made.shutdown()


@pytest.fixture
def weights(tmp_path, monkeypatch) -> Path:
    """An untrained network, and a cache of its own."""
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    save_weights(find_benchmark("digits").build(None), tmp_path / "plain.safetensors")
    return tmp_path / "plain.safetensors"


def two(weights: Path, **more: Any) -> list[RunSpec]:
    """Two runs of 150 batches, with momentum, a teacher, views and randomness in their state."""
    options: dict[str, Any] = {"options": {"views": 2}, "limit": 100, "batch_size": 10, "weights": weights, **more}
    return [RunSpec("cotta", seed=seed, **options) for seed in range(2)]


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
    """Waits until a run is half-way and has been saved, then calls `kill`, once."""

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


def check_same(ours: Path, theirs: Path, specs: list[RunSpec]) -> None:
    for spec in specs:
        assert (ours / spec.key / RECORDS).read_bytes() == (theirs / spec.key / RECORDS).read_bytes()
        assert not (ours / spec.key / "checkpoints").exists()


def resumed(folder: Path) -> list[int]:
    return [place["batch"] for place in json.loads((folder / "manifest.json").read_text())["resumed"]]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the worker's process in /proc")
def test_a_killed_worker_and_a_lost_machine_leave_the_records_of_the_local_launcher(cluster, weights, tmp_path) -> None:
    specs = two(weights)
    run_specs(specs, tmp_path / "local")
    told: list[tuple[int, int, float]] = []
    on_ray = {"launcher": RayLauncher(cluster.address), "report": lambda *line: told.append(line)}
    on_ray["checkpoint_seconds"] = 0.0

    out = tmp_path / "killed"
    killer = Killer(out / specs[0].key, lambda pid: os.kill(pid, signal.SIGKILL))
    run_specs(specs, out, **on_ray)
    assert killer.killed
    check_same(out, tmp_path / "local", specs)
    assert resumed(out / specs[0].key) == [60]
    assert resumed(out / specs[1].key) == []
    assert told[-1] == (300, 300, 2)
    manifest = json.loads((out / specs[0].key / "manifest.json").read_text())
    assert manifest["command"] == [Path(sys.argv[0]).name, *sys.argv[1:]]

    out = tmp_path / "lost"

    def lose_the_machine_of(pid: int) -> None:
        """Take away the machine whose raylet started the process."""
        raylet = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        (node,) = (node for node in cluster.workers if node.all_processes["raylet"][0].process.pid == raylet)
        cluster.remove_node(node, allow_graceful=False)

    killer = Killer(out / specs[1].key, lose_the_machine_of)
    run_specs(specs, out, **on_ray)
    assert killer.killed
    check_same(out, tmp_path / "local", specs)
    assert resumed(out / specs[1].key)[-1] >= 60


@pytest.mark.slow
def test_a_failing_run_stops_the_grid_with_its_reason_and_a_missing_gpu_is_reported(cluster, weights, tmp_path) -> None:
    launcher = RayLauncher(cluster.address)
    with pytest.raises(ValueError, match="Did you mean 'digits'"):
        run_specs([RunSpec("tent", "digit", limit=5)], tmp_path / "out", launcher=launcher)
    with pytest.raises(RuntimeError, match="Expected a machine with a CPU and a GPU"):
        run_specs(two(weights, device="cuda"), tmp_path / "out", launcher=launcher)
