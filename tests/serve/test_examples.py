"""The client of the examples, against a real server."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from vcotta.serve.app import create_app

CLIENT = Path(__file__).parents[2] / "examples" / "client.py"
TOKEN = "a-token-for-the-tests"


def test_the_client_prints_a_line_an_image_and_says_why_not(service, png, tmp_path) -> None:
    server = uvicorn.Server(uvicorn.Config(create_app(service, TOKEN), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    (tmp_path / "token").write_text(TOKEN)
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(png())

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(CLIENT), address, str(tmp_path / "a.png"), str(tmp_path / "b.png"), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    try:
        adapted, looked, refused = run("--token-file", str(tmp_path / "token")), run("--look"), run()
    finally:
        server.should_exit = True
        thread.join()
    assert adapted.stdout.count(".png: ") == looked.stdout.count(".png: ") == 2
    assert refused.stderr.startswith("401: Expected")
    assert service.changes == 1
