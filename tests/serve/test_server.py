"""`vcotta serve` as a real process: HTTP, signals, kill and restart."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from vcotta import Guard
from vcotta._util.tensorfile import read_state
from vcotta.serve import save_bundle

from .conftest import same_state, small_bundle

pytestmark = pytest.mark.slow
TOKEN = "a-token-for-the-tests"
LATE = ("--checkpoint-seconds", "3600")  # no checkpoint while the test runs, however long that takes


class Server:
    """A server process that listens."""

    def __init__(self, bundle: Path, folder: Path, *options: str) -> None:
        token = folder / "token"
        if not token.exists():
            token.touch(0o600)
            token.write_text(TOKEN)
        command = [
            sys.executable,
            "-m",
            "vcotta",
            "serve",
            str(bundle),
            "--port",
            "0",
            "--state",
            str(folder / "state"),
        ]
        self.log = folder / "log"
        with self.log.open("w") as log:  # a pipe that nobody reads fills up, and the server waits
            self.process = subprocess.Popen(
                [*command, "--token-file", str(token), *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if found := re.search(r"Listening on (http://\S+)", line):
                self.address = found[1]
                return
        raise AssertionError(self.said + self.log.read_text())

    def read(self, path: str) -> str:
        with urllib.request.urlopen(self.address + path, timeout=120) as answer:
            return answer.read().decode()

    def ask(self, path: str, body: bytes | None = None) -> dict:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-npy"}
        with urllib.request.urlopen(urllib.request.Request(self.address + path, body, headers), timeout=120) as answer:
            return json.load(answer)

    def stop(self, seconds: float = 120) -> int:
        self.process.send_signal(signal.SIGTERM)
        self.said += self.process.communicate(timeout=seconds)[0] + self.log.read_text()
        return self.process.returncode


def newest(folder: Path) -> dict:
    path = max((folder / "state" / "checkpoints").iterdir(), key=lambda path: int(path.stem))
    return read_state(path, "vcotta-run-1")["adapter"]


def test_a_restarted_server_ends_in_the_state_of_one_that_never_stopped(bundle_path, tmp_path, npy, images) -> None:
    bodies = [npy(images(6, seed)) for seed in range(6)]
    answers, folders = [], [tmp_path / name for name in ("whole", "parts")]
    for folder, parts in zip(folders, ([bodies], [bodies[:2], bodies[2:5], bodies[5:]]), strict=True):
        folder.mkdir()
        received = []
        for part in parts:
            server = Server(bundle_path, folder)
            received += [server.ask("/v1/predict", body) for body in part]
            assert server.ask("/v1/state")["changes"] == len(received)
            assert server.stop() == 0, server.said
            assert f"(version {len(received)})" in server.said
        answers.append(received)
    assert answers[0] == answers[1]
    assert same_state(newest(folders[0]), newest(folders[1]))


def test_a_request_that_was_begun_before_the_signal_is_answered(bundle_path, tmp_path, npy, images) -> None:
    server, body = Server(bundle_path, tmp_path), npy(images(6))
    port = int(server.address.rpartition(":")[2])
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    client.putrequest("POST", "/v1/predict")
    lines = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-npy", "Content-Length": len(body)}
    for name, value in lines.items():
        client.putheader(name, value)
    client.endheaders(body[:1000])
    while "vcotta_open_requests 1.0" not in server.read("/metrics"):
        pass
    server.process.send_signal(signal.SIGTERM)
    with suppress(ConnectionError):
        while True:  # until it accepts no new connections
            socket.create_connection(("127.0.0.1", port)).close()
    client.send(body[1000:])
    assert json.load(client.getresponse())["batch"]["step"] == 1
    client.close()
    assert server.stop() == 0, server.said
    assert newest(tmp_path)["counters"]["steps"] == 1


def test_a_killed_server_continues_from_its_latest_checkpoint(bundle_path, tmp_path, npy, images) -> None:
    server = Server(bundle_path, tmp_path, "--checkpoint-seconds", "0.1")
    for seed in range(3):
        server.ask("/v1/predict", npy(images(6, seed)))
    place = tmp_path / "state" / "checkpoints" / "3.safetensors"
    for _ in range(1200):
        if place.exists():
            break
        threading.Event().wait(0.05)
    server.process.kill()
    server.process.communicate()
    server = Server(bundle_path, tmp_path)
    assert server.ask("/v1/state")["changes"] == 3
    assert server.stop() == 0


def test_a_killed_server_continues_every_stream_from_its_own_latest_checkpoint(
    bundle_path, tmp_path, npy, images
) -> None:
    names = ("a", "b", "c")
    server = Server(bundle_path, tmp_path, "--checkpoint-seconds", "0.1", "--streams", "4")
    for count, name in enumerate(names, 1):
        for seed in range(count):
            server.ask(f"/v1/streams/{name}/predict", npy(images(6, seed)))

    def saved() -> dict[str, tuple[int, int]]:
        return {one["stream"]: (one["changes"], one["saved"]) for one in server.ask("/v1/streams")["streams"]}

    expected = {"default": (0, 0), "a": (1, 1), "b": (2, 2), "c": (3, 3)}
    for _ in range(1200):
        if saved() == expected:
            break
        threading.Event().wait(0.05)
    server.process.kill()
    server.process.communicate()
    server = Server(bundle_path, tmp_path, "--streams", "4")
    assert saved() == expected
    answers = [server.ask(f"/v1/streams/{name}/predict", npy(images(6, 3)))["batch"]["step"] for name in names]
    assert answers == [2, 3, 4]
    assert server.stop() == 0
    assert "and 3 other streams" in server.said


def test_a_server_that_saves_before_it_answers_loses_no_acknowledged_step_to_a_kill_under_load(
    bundle_path, tmp_path, npy, images
) -> None:
    server = Server(bundle_path, tmp_path, "--checkpoint-seconds", "0", "--wait-ms", "0")
    acknowledged = dict.fromkeys("abc", 0)

    def send(name: str) -> None:
        with suppress(OSError, http.client.HTTPException):  # it was killed
            while True:
                acknowledged[name] = server.ask(f"/v1/streams/{name}/predict", npy(images(6)))["batch"]["changes"]

    clients = [threading.Thread(target=send, args=(name,)) for name in acknowledged]
    for client in clients:
        client.start()
    while min(acknowledged.values()) < 5:
        assert all(client.is_alive() for client in clients)
        threading.Event().wait(0.01)
    server.process.kill()
    server.process.communicate()
    for client in clients:
        client.join()
    server = Server(bundle_path, tmp_path)
    kept = {one["stream"]: one["changes"] for one in server.ask("/v1/streams")["streams"]}
    for name, changes in acknowledged.items():
        assert kept[name] in (changes, changes + 1)  # one answer may have been on its way
    assert server.stop() == 0


def test_many_signals_do_not_prevent_saving_the_state(bundle_path, tmp_path, npy, images) -> None:
    server = Server(bundle_path, tmp_path)
    server.ask("/v1/predict", npy(images(6)))
    for _ in range(20):
        server.process.send_signal(signal.SIGINT)
    assert server.stop() == 0, server.said
    assert newest(tmp_path)["counters"]["steps"] == 1


def test_a_signal_during_the_exit_is_not_a_failure(bundle_path, tmp_path) -> None:
    server = Server(bundle_path, tmp_path)
    server.process.send_signal(signal.SIGTERM)
    server.said += server.process.stdout.readline()
    assert server.stop() == 0
    assert "Stopped" in server.said


def test_the_exit_code_is_1_if_the_state_could_not_be_saved(bundle_path, tmp_path, npy, images) -> None:
    server = Server(bundle_path, tmp_path, *LATE)
    server.ask("/v1/predict", npy(images(6)))
    (tmp_path / "state" / "checkpoints").write_text("no folder")
    assert server.stop() == 1
    assert "could not be saved" in server.said.splitlines()[-1]


def test_every_line_that_a_real_server_writes_on_standard_error_is_json(tmp_path, npy, images) -> None:
    settings = asdict(Guard(overconfidence=0.0, window=1))
    save_bundle(replace(small_bundle(lr=0.1), guard=settings), tmp_path / "a.bundle")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o644)  # which is answered with a warning
    server = Server(tmp_path / "a.bundle", tmp_path, "--log-format", "json", *LATE)
    for seed in range(3):
        server.ask("/v1/predict", npy(images(6, seed)))
    with socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2]))) as raw:
        raw.sendall(b"no http at all\r\n\r\n")
        assert raw.recv(4096).startswith(b"HTTP/1.1 400")
    server.read("/healthz")
    (tmp_path / "state" / "checkpoints").write_text("no folder")
    assert server.stop() == 1
    events = [json.loads(line) for line in server.log.read_text().splitlines()]
    requests = [event for event in events if event["event"] == "request"]
    actions = [event for event in events if event["event"] == "guard"]
    assert [(event["path"], event["status"], event["images"]) for event in requests] == [
        *[("/v1/predict", 200, 6)] * 3,
        ("/healthz", 200, 0),
    ]
    assert actions
    assert all(event["causes"] == ["overconfidence"] and event["action"] == "pull" for event in actions)
    assert {name for event in actions for name in event["requests"]} <= {event["id"] for event in requests}
    messages = [event["message"] for event in events if event["event"] == "message"]
    assert messages[0].startswith("Other users of this machine can read the token")
    assert messages[1] == "Invalid HTTP request received."
    assert "could not be saved" in messages[-1]
    assert TOKEN not in server.said


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--log-format", "xml"], "log_format"),
        (["--host", "0.0.0.0"], "token"),
        (["--token-file", "no/such/file"], "no/such/file"),
        (["--max-queue", "3"], "queue"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(bundle_path, options, reason) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vcotta", "serve", str(bundle_path), *options],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_port_in_use_is_one_line_and_exit_code_2(bundle_path, tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "vcotta", "serve", str(bundle_path), "--state", str(tmp_path), "--port", port],
            capture_output=True,
            text=True,
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: Expected to listen on 127.0.0.1, port {port}, but another program")
    assert len(done.stderr.splitlines()) == 1


def test_a_file_that_is_not_a_bundle_is_refused(tmp_path) -> None:
    path = tmp_path / "a.bundle"
    path.write_bytes(b"nonsense")
    done = subprocess.run([sys.executable, "-m", "vcotta", "serve", str(path)], capture_output=True, text=True)
    assert (done.returncode, "cannot be read" in done.stderr) == (2, True)


def test_no_module_of_the_server_needs_posix_only_modules() -> None:
    modules = ("app", "auth", "bundle", "engine", "logs", "metrics", "oip", "requests", "schemas", "server", "streams")
    hide = "import sys; sys.modules.update(dict.fromkeys(('resource', 'fcntl', 'pwd', 'grp')))"
    imports = "; ".join(f"import vcotta.serve.{name}" for name in modules)
    done = subprocess.run([sys.executable, "-c", f"{hide}; {imports}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
