from __future__ import annotations

import os
import stat

import pytest

from vcotta._util import files
from vcotta._util.files import atomic_path, cache_dir, read_json, sha256, sync_folder, write_json


def stopped_halfway(path) -> None:
    with atomic_path(path) as aside:
        aside.write_text("half")
        raise RuntimeError("stop")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(RuntimeError, match="stop"):
        stopped_halfway(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_a_written_file_is_on_the_disk_before_it_has_its_name_and_then_its_folder_is(tmp_path, monkeypatch) -> None:
    synced = []

    def sync(handle: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), (tmp_path / "a.json").exists()))

    monkeypatch.setattr(files.os, "fsync", sync)
    write_json(tmp_path / "a.json", {})
    assert synced == [(False, False), (True, True)]


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path) -> None:
    sync_folder(tmp_path / "none")


def test_the_cache_folder_can_be_moved(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("VCOTTA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir().name == "vcotta"


def test_sha256_is_that_of_the_bytes(tmp_path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256(tmp_path / "abc").startswith("ba7816bf8f01cfea")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": 1', "damaged: Expecting"),
        (b"", "damaged: Expecting value"),
        (b"\xff\xfe\xfa", "damaged: .*codec"),
        (b"9" * 5000, "damaged: Exceeds the limit"),
    ],
)
def test_json_that_cannot_be_read_is_an_error_that_names_the_file(tmp_path, content, text) -> None:
    (tmp_path / "meta.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"Expected .*meta.json to be JSON, but it is {text}"):
        read_json(tmp_path / "meta.json")


def test_a_folder_in_place_of_a_json_file_is_named(tmp_path) -> None:
    with pytest.raises(IsADirectoryError) as error:
        read_json(tmp_path)
    assert error.value.filename == str(tmp_path)
