"""The client of the examples and the commands of the documents, against a real server."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from vcotta.serve.app import create_app

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "examples" / "client.py"
TOKEN = "a-token-for-the-tests"


@pytest.fixture
def address(service, png, tmp_path):
    """A server that listens; beside it a token and two pictures."""
    (tmp_path / "token").write_text(TOKEN)
    for name in ("picture.png", "another.png"):
        (tmp_path / name).write_bytes(png())
    server = uvicorn.Server(uvicorn.Config(create_app(service, TOKEN), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def run_client(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CLIENT), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_client_prints_a_line_for_each_image_and_the_reason_of_a_refusal(address, service, tmp_path) -> None:
    asked = (address, "picture.png", "another.png")
    adapted = run_client(tmp_path, *asked, "--token-file", "token")
    looked, refused = run_client(tmp_path, *asked, "--look"), run_client(tmp_path, *asked)
    assert adapted.stdout.count(".png: ") == looked.stdout.count(".png: ") == 2
    assert refused.stderr.startswith("401: Expected")
    assert service.engine.changes == 1


class Another(BaseHTTPRequestHandler):
    """A server of something else."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(404)

    def log_message(self, *_) -> None:
        """Say nothing."""


def test_the_client_reports_a_missing_file_token_or_server_in_one_line(png, tmp_path) -> None:
    (tmp_path / "picture.png").write_bytes(png())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # taken, but nobody listens
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
        with HTTPServer(("127.0.0.1", 0), Another) as other:
            threading.Thread(target=other.handle_request).start()
            ends = {
                "missing.png: No such file": run_client(tmp_path, nobody, "missing.png"),
                "token: No such file": run_client(tmp_path, nobody, "picture.png", "--token-file", "token"),
                f"Expected a server of vcotta at {nobody}, but: ": run_client(tmp_path, nobody, "picture.png"),
                "unknown url type": run_client(tmp_path, "nonsense", "picture.png"),
                "404: Not Found": run_client(tmp_path, f"http://127.0.0.1:{other.server_port}", "picture.png"),
            }
    for reason, done in ends.items():
        assert done.returncode == 1
        assert reason in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_commands_of_the_documents_are_answered(address, service, png, tmp_path) -> None:
    page = (ROOT / "docs" / "operations" / "index.md").read_text()
    commands = re.findall(r"^\$ (curl .*)$", page.replace("\\\n", ""), re.MULTILINE)
    for name in set(re.findall(r"images=@(\S+)", page)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png())
    assert any("Authorization: Bearer" in command for command in commands)
    for command in commands:
        here = command.replace("http://127.0.0.1:8000", address)
        done = subprocess.run(["bash", "-c", here], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "detail" not in json.loads(done.stdout), done.stdout
    assert service.engine.changes == sum("Authorization" in command for command in commands)
