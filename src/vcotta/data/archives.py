"""Reading a few named files out of a folder or a tar archive; nothing is ever extracted to disk."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

__all__ = ["read_members"]


def read_members(path: Path, names: Iterable[str], *, largest: int = 256 << 20) -> dict[str, bytes]:
    """Return the contents of files, by base name, of a folder or of a tar archive (compressed or not).

    Args:
        path: Folder or archive.
        names: Base names of the files, all of which must be there.
        largest: No file may have more bytes than this; a bigger one is not read.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: The archive is truncated or no archive, or a file is too large.
    """
    wanted = list(names)
    contents = _from_folder(path, wanted, largest) if path.is_dir() else _from_tar(path, wanted, largest)
    for name in wanted:
        if name not in contents:
            raise FileNotFoundError(
                f"Expected {path} to contain {name}, but it does not. Unpack or download it again; it is not whole."
            )
    return contents


def _from_folder(path: Path, names: list[str], largest: int) -> dict[str, bytes]:
    contents = {}
    for name in names:
        if (file := path / name).is_file():
            _check_size(name, file.stat().st_size, largest)
            contents[name] = file.read_bytes()
    return contents


def _from_tar(path: Path, names: list[str], largest: int) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name in names and member.isfile() and (file := archive.extractfile(member)):
                    _check_size(name, member.size, largest)
                    contents[name] = file.read()
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise ValueError(
            f"Expected {path} to be a whole tar archive, but it is truncated or damaged: {reason}. Delete it and "
            "download it again."
        ) from error
    return contents


def _check_size(name: str, size: int, largest: int) -> None:
    if size > largest:
        raise ValueError(f"Expected {name} to have at most {largest} bytes, but got {size}. Use the official file.")
