"""`vcotta serve --engine ray` on real clusters of this machine."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from vcotta._util.tensorfile import read_state
from vcotta.runs.checkpoints import KIND, newest_checkpoint
from vcotta.serve import load_bundle, save_bundle
from vcotta.serve.service import Service

from .conftest import same_state, small_bundle
from .test_server import TOKEN, Server

NAMES = [f"camera-{number}" for number in range(12)]


class Client:
    """A client of one stream, which sends a request after another and notes the answers."""

    def __init__(self, server: Server, stream: str, body: Callable[[int], bytes]) -> None:
        self.server, self.stream, self.body = server, stream, body
        self.answers: list[tuple[int, int, int]] = []  # seed of the images, status, changes

    def ask(self) -> int:
        seed, headers = len(self.answers), {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-npy"}
        path = f"{self.server.address}/v1/streams/{self.stream}/predict"
        try:
            with urllib.request.urlopen(urllib.request.Request(path, self.body(seed), headers), timeout=300) as answer:
                status, changes = answer.status, json.load(answer)["batch"]["changes"]
        except urllib.error.HTTPError as error:
            if error.code == 503 and b"is handing the stream" in error.read():
                time.sleep(float(error.headers["Retry-After"]))  # a slow machine took longer than the request waits
                return self.ask()
            status, changes = error.code, 0
        self.answers.append((seed, status, changes))
        return status

    @property
    def statuses(self) -> list[int]:
        return [status for _, status, _ in self.answers]

    @property
    def versions(self) -> list[int]:
        return [changes for _, status, changes in self.answers if status == 200]

    def history(self) -> list[int | None]:
        """Return the seeds of the steps that are in the state now, None for one that was not acknowledged."""
        of = {changes: seed for seed, status, changes in self.answers if status == 200}
        return [of.get(changes) for changes in range(1, self.versions[-1] + 1)]


class Load:
    """Clients that send until the block ends."""

    def __init__(self, clients: list[Client], pause: float = 0.02) -> None:
        self.clients, self.pause, self.ended = clients, pause, threading.Event()
        self.threads = [threading.Thread(target=self._send, args=(one,)) for one in clients]

    def _send(self, client: Client) -> None:
        while not self.ended.wait(self.pause):
            client.ask()

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()


def replicas_of(server: Server) -> dict[str, str]:
    """The replica of each stream, as the metrics have it."""
    found = re.findall(
        r'vcotta_stream_waiting_images\{replica="[^"]*-(\d+)",stream="([^"]*)"\}', server.read("/metrics")
    )
    return {stream: replica for replica, stream in found}


def pids(server: Server) -> set[str]:
    return set(re.findall(r'vcotta_info\{.*replica="[^"]*-(\d+)"', server.read("/metrics")))


def saved(server: Server) -> dict[str, int]:
    return {one["stream"]: one["saved"] for one in json.loads(server.read("/v1/streams"))["streams"]}


def until(what: Callable[[], bool], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if what():
                return
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
        time.sleep(0.2)
    raise AssertionError("it did not happen in time")


def lose_process(replicas: set[str]) -> str:
    """Kill one of the replicas, and return which."""
    os.kill(int(min(replicas)), signal.SIGKILL)
    return min(replicas)


TWO_MACHINES = """
from ray.cluster_utils import Cluster
size = {"object_store_memory": 100 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **size})
machines = [cluster.add_node(num_cpus=1, **size) for _ in range(2)]
cluster.wait_for_nodes()
print("address", cluster.address, flush=True)
input()
cluster.remove_node(machines[0], allow_graceful=False)
input()
cluster.shutdown()
"""


class TwoMachines:
    """A cluster of a head that runs nothing and two machines of one CPU each, as far as Ray can tell.

    It is in a process of its own, as Ray reads its token once a process.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-c", TWO_MACHINES]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if line.startswith("address"):
                self.address = line.split()[1]
                return
        raise AssertionError("the cluster did not start")

    def lose(self, replicas: set[str]) -> str:
        """Lose a machine, and return the replica that was there."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        lost: list[str] = []
        until(lambda: bool(lost.extend(pid for pid in replicas if not Path(f"/proc/{pid}").exists()) or lost))
        return lost[0]

    def stop(self) -> None:
        self.process.communicate("\n\n", timeout=300)


@pytest.fixture(scope="module")
def ray_serve() -> None:
    """Skip the test without Ray Serve, which must not be imported here: it would keep these settings."""
    done = subprocess.run([sys.executable, "-c", "import ray.serve"], capture_output=True)
    if done.returncode:
        pytest.skip("Ray Serve is not installed: pip install 'ray[serve]'")


@pytest.fixture
def cluster(ray_serve, tmp_path, monkeypatch) -> Iterator[TwoMachines]:
    """Two machines, entered with a token."""
    token = tmp_path / "ray-token"
    token.write_text(secrets.token_hex(32))
    for key, value in {"AUTH_MODE": "token", "AUTH_TOKEN_PATH": str(token), "USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(f"RAY_{key}", value)
    monkeypatch.setenv("RAY_worker_niceness", "0")
    made = TwoMachines()
    yield made
    made.stop()


@pytest.fixture
def start(ray_serve, tmp_path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def begin(bundle: Path, *options: str) -> Server:
        started.append(Server(bundle, tmp_path, "--engine", "ray", "--streams", "100", *options))
        return started[-1]

    yield begin
    for server in started:
        if server.process.poll() is None:  # the test has failed
            server.process.terminate()
            server.process.communicate(timeout=300)


def newest(folder: Path, client: Client) -> int:
    return newest_checkpoint(folder / "streams" / client.stream)


def state_folder(folder: Path, bundle: Path) -> Path:
    return folder / "state" / load_bundle(bundle).sha256[:12]


@pytest.mark.slow
def test_a_killed_replica_loses_no_saved_step_and_the_rest_is_told_to_the_clients(
    start, bundle, bundle_path, tmp_path, npy, images
) -> None:
    run_and_lose(start(bundle_path, "--checkpoint-seconds", "0.3"), lose_process, 2, bundle, tmp_path, npy, images)


@pytest.mark.slow
def test_streams_of_a_lost_machine_continue_on_another_one(
    cluster, start, bundle, bundle_path, tmp_path, npy, images
) -> None:
    server = start(bundle_path, "--checkpoint-seconds", "0.3", "--address", cluster.address)
    run_and_lose(server, cluster.lose, 1, bundle, tmp_path, npy, images)


def run_and_lose(server: Server, lose: Callable[[set[str]], str], left: int, bundle, tmp_path, npy, images) -> None:
    """Lose one of two replicas under load; check what all clients were answered, and the states at the end."""
    clients = [Client(server, name, lambda seed: npy(images(6, seed))) for name in NAMES]
    with Load(clients):
        until(lambda: len(replicas_of(server)) >= len(NAMES) and min(saved(server).values()) > 3)
        of = {name: pid for name, pid in replicas_of(server).items() if name in NAMES}
        assert len(set(of.values())) == 2  # every stream is on one of two replicas
        kept = saved(server)
        before = {one.stream: len(one.answers) for one in clients}
        killed = lose(set(of.values()))
        until(lambda: killed not in pids(server) and len(pids(server)) == left)
        after = {one.stream: len(one.answers) for one in clients}
        until(lambda: all(one.statuses[after[one.stream] :].count(200) > 5 for one in clients))
    assert server.stop(300) == 0, server.said
    told = Counter(status for one in clients for status in one.statuses)
    assert set(told) <= {200, 503}
    folder = tmp_path / "state" / bundle.sha256[:12]
    for one in clients:
        falls = [new for old, new in zip(one.versions, one.versions[1:], strict=False) if new != old + 1]
        if of[one.stream] == killed:
            assert len(falls) <= 1, (one.stream, one.versions)
            assert all(new > kept[one.stream] for new in falls), (one.stream, falls, kept[one.stream])
        else:
            assert not falls, (one.stream, one.versions)
        assert one.versions[-1] == newest(folder, one)
        assert len(one.answers) > before[one.stream]
    # The state of a stream is that of the steps its client knows of, in their order.
    known = [one for one in clients if None not in one.history()]
    lost = [one for one in known if of[one.stream] == killed]
    assert lost
    with Service(bundle, wait=0.0) as alone, Service(bundle, state=folder, wait=0.0) as resumed:
        for one in [lost[0], next(one for one in known if of[one.stream] != killed)]:
            for seed in one.history():
                alone.predict(images(6, seed), stream=one.stream).result(60)
            expected, found = (
                service.predict(images(6, 1000), stream=one.stream).result(60).answer.probabilities
                for service in (alone, resumed)
            )
            assert expected.equal(found)


@pytest.mark.slow
def test_a_fleet_answers_as_one_server_and_takes_a_new_bundle_without_an_error(
    start, bundle_path, tmp_path, npy, images
) -> None:
    (tmp_path / "one").mkdir()
    path, second = tmp_path / "model.bundle", tmp_path / "second.bundle"
    path.write_bytes(bundle_path.read_bytes())
    save_bundle(small_bundle(lr=0.02), second)
    server, alone = start(path, "--checkpoint-seconds", "0.3"), Server(path, tmp_path / "one", "--streams", "100")
    for seed in range(3):
        for name in NAMES[:4]:
            body = npy(images(6, seed))
            assert server.ask(f"/v1/streams/{name}/predict", body) == alone.ask(f"/v1/streams/{name}/predict", body)
    assert alone.stop() == 0
    processes = [server.process.pid, *map(int, pids(server))]
    assert len({os.getpriority(os.PRIO_PROCESS, process) for process in processes}) == 1
    clients = [Client(server, name, lambda seed: npy(images(6, seed))) for name in NAMES[:4]]
    old, new = state_folder(tmp_path, path), state_folder(tmp_path, second)
    with Load(clients, pause=0.1):
        until(lambda: all(len(one.answers) > 5 for one in clients))
        before = pids(server)
        second.replace(path)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: len(pids(server)) == 2 and not before & pids(server))
        until(lambda: "The bundle was updated" in server.log.read_text())
        until(lambda: all(newest(new, one) > 3 for one in clients))
    assert server.stop(300) == 0, server.said
    for one in clients:
        assert set(one.statuses) == {200}
        steps = [newest(folder, one) for folder in (old, new)]
        assert sum(steps) == 3 + len(one.answers)
        assert min(steps) > 3


@pytest.mark.slow
def test_replicas_are_added_while_requests_wait_and_no_step_is_lost(start, bundle_path, npy, images) -> None:
    server = start(bundle_path, "--replicas", "1", "--max-replicas", "2", "--wait-ms", "1000")
    clients = [Client(server, name, lambda seed: npy(images(1, seed))) for name in [*NAMES, *(f"{n}b" for n in NAMES)]]
    assert len(pids(server)) == 1
    with Load(clients):
        until(lambda: len(pids(server)) == 2)
        until(lambda: len(set(replicas_of(server).values())) == 2)
        seen = {one.stream: len(one.answers) for one in clients}
        until(lambda: all(len(one.answers) > seen[one.stream] + 2 for one in clients))
    assert server.stop(300) == 0, server.said
    for one in clients:
        assert one.versions == list(range(1, len(one.versions) + 1)), one.stream
        assert set(one.statuses) == {200}


def merges_of(server: Server) -> list[list[str]]:
    """The streams of each merge, as the log has them."""
    return [found.split(",") for found in re.findall(r" merge merged=(\S+) refused=", server.log.read_text())]


def networks_of(folder: Path, stream: str) -> dict:
    checkpoints = folder / "streams" / stream / "checkpoints"
    path = checkpoints / f"{newest_checkpoint(checkpoints.parent)}.safetensors"
    return read_state(path, KIND)["adapter"]["networks"]


@pytest.mark.slow
def test_streams_of_two_replicas_are_merged_under_load_and_after_a_kill_and_no_step_is_lost(
    start, tmp_path, npy, images
) -> None:
    path = tmp_path / "vcotta.bundle"
    settings = {"views": 1, "lr": 0.001, "statistics": "batch", "label_prior": False}  # small steps: none is flagged
    save_bundle(small_bundle("vcotta", **settings), path)
    server, folder = start(path, "--merge-every", "2", "--merge", "camera-*"), state_folder(tmp_path, path)
    clients = [Client(server, name, lambda seed: npy(images(6, seed))) for name in NAMES]
    apart = Client(server, "apart", lambda seed: npy(images(6, seed)))

    def merged_anew() -> bool:
        for one in clients:
            one.ask()
        try:
            merged = server.ask("/v1/merge", b"")["merged"]
        except urllib.error.HTTPError as error:
            if error.code != 409:  # they were just merged, but for one stream
                raise
            return False
        networks = [networks_of(folder, name) for name in merged]
        return len(merged) > len(NAMES) // 2 and all(same_state(one, networks[0]) for one in networks)

    with Load([*clients, apart], pause=0.1):
        until(lambda: len(merges_of(server)) >= 3 and len(apart.answers) > 5)
        of = {name: pid for name, pid in replicas_of(server).items() if name in NAMES}
    until(merged_anew)
    assert len({of[name] for name in merges_of(server)[-1]}) == 2
    known = {one["stream"]: one["changes"] for one in json.loads(server.read("/v1/streams"))["streams"]}
    for one in [*clients, apart]:
        assert set(one.statuses) == {200}
        assert known[one.stream] == len(one.answers) + sum(one.stream in merged for merged in merges_of(server))
    assert not any("apart" in merged for merged in merges_of(server))
    with Load(clients, pause=0.1):
        killed = lose_process(set(of.values()))
        until(lambda: killed not in pids(server) and len(pids(server)) == 2)
        seen = len(merges_of(server))
        until(lambda: len(merges_of(server)) >= seen + 2)
    until(merged_anew)
    for one in clients:
        assert set(one.statuses) <= {200, 503}
        if of[one.stream] != killed:
            assert one.versions == sorted(one.versions), one.stream
    assert server.stop(300) == 0, server.said
    assert not re.search(r"Z ERROR ", server.said)  # our own lines; Ray says which replica was lost
