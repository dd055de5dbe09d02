import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from vcotta._util.download import download

CONTENTS = np.random.default_rng(0).bytes(3_000_000)
DIGEST = hashlib.sha256(CONTENTS).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.asked.append(self.headers.get("Range"))
        if server.status:
            self.send_error(server.status)
            return
        first = 0
        if server.ranges and (wanted := self.headers.get("Range")):
            first = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if first >= len(CONTENTS):
                self.send_error(416)
                return
            self.send_response(206)
        else:
            self.send_response(200)
        body = CONTENTS[first:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cut] if server.cut else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.ranges, server.cut, server.status = [], True, 0, 0
    server.url = f"http://127.0.0.1:{server.server_port}/a.tar.gz"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_file_is_fetched_checked_and_not_fetched_again(server, tmp_path):
    seen = []
    path = download(
        server.url, tmp_path / "deep" / "a", DIGEST, progress=lambda done, total: seen.append((done, total))
    )
    assert path.read_bytes() == CONTENTS
    assert seen[-1] == (len(CONTENTS), len(CONTENTS))
    assert seen == sorted(seen)
    download(server.url, path, DIGEST)
    assert server.asked == [None]
    assert [file.name for file in path.parent.iterdir()] == ["a"]


def test_broken_transfer_is_resumed_where_it_stopped(server, tmp_path):
    server.cut = 1_100_000
    assert download(server.url, tmp_path / "a", DIGEST).read_bytes() == CONTENTS
    assert server.asked == [None, "bytes=1100000-", "bytes=2200000-"]


def test_a_later_call_resumes_the_partial_file(server, tmp_path):
    server.cut = 1_000_000
    with pytest.raises(OSError, match=r"in 1 attempt: the connection ended early. Repeat the command to resume"):
        download(server.url, tmp_path / "a", DIGEST, attempts=1)
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "a.part").stat().st_size == 1_000_000
    server.cut = 0
    assert download(server.url, tmp_path / "a", DIGEST).read_bytes() == CONTENTS
    assert server.asked == [None, "bytes=1000000-"]
    assert not (tmp_path / "a.part").exists()


def test_server_without_ranges_sends_all_of_it_again(server, tmp_path):
    server.ranges = False
    (tmp_path / "a.part").write_bytes(b"the beginning")
    assert download(server.url, tmp_path / "a", DIGEST).read_bytes() == CONTENTS


def test_partial_file_that_is_too_long_is_thrown_away(server, tmp_path):
    (tmp_path / "a.part").write_bytes(CONTENTS + b"more")
    assert download(server.url, tmp_path / "a", DIGEST).read_bytes() == CONTENTS


def test_wrong_hash_leaves_nothing(server, tmp_path):
    with pytest.raises(ValueError, match=rf"to have SHA-256 {'0' * 64}, but got {DIGEST}. It was deleted"):
        download(server.url, tmp_path / "a", "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_wrong_file_in_place_is_replaced(server, tmp_path):
    (tmp_path / "a").write_bytes(b"an error page")
    assert download(server.url, tmp_path / "a", DIGEST).read_bytes() == CONTENTS


def test_an_error_of_the_server_is_in_the_message(server, tmp_path):
    server.status = 404
    with pytest.raises(OSError, match="the server answered 404"):
        download(server.url, tmp_path / "a", DIGEST)
    assert server.asked == [None]


def test_a_missing_server_is_in_the_message(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(OSError, match=r"Could not download http://127.* in 3 attempts: .*refused"):
        download(server.url, tmp_path / "a", DIGEST, timeout=2)


def test_only_web_addresses_are_taken(tmp_path):
    with pytest.raises(ValueError, match="begin with https://"):
        download("file:///etc/hostname", tmp_path / "a", DIGEST)
