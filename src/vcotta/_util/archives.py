"""Reads single files of folders and tar archives, and ``.npy`` arrays; nothing is unpickled."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vcotta._util.files import require_file

__all__ = ["map_array", "read_members", "read_tar"]

_LARGEST = 256 << 20  # bytes


def read_members(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of files, by base name, of a folder or a tar archive.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: The archive is damaged, or a file has more than 256 MiB.
    """
    wanted = list(names)
    if path.is_dir():
        files = {name: path / name for name in wanted if (path / name).is_file()}
        for name, file in files.items():
            _check_size(name, file.stat().st_size)
        contents = {name: file.read_bytes() for name, file in files.items()}
    else:
        contents = dict(read_tar(path, wanted.__contains__))
    for name in wanted:
        if name not in contents:
            raise FileNotFoundError(
                f"Expected {path} to contain {name}, but it does not. It is incomplete: unpack or download it again."
            )
    return contents


def read_tar(path: Path, wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    """Yield base name and contents of the files of a tar archive whose base name is ``wanted``.

    Raises:
        ValueError: The archive is damaged, or a file has more than 256 MiB.
    """
    require_file(path, "a tar archive")
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if wanted(name) and member.isfile() and (file := archive.extractfile(member)):
                    _check_size(name, member.size)
                    yield name, file.read()
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of gzip or bzip2
            raise
        reason = str(error).partition("\n")[0].rstrip(":.")
        raise ValueError(
            f"Expected {path} to be a complete tar archive, but it is truncated or damaged: {reason}. Delete it and "
            "download it again."
        ) from error


def _check_size(name: str, size: int) -> None:
    if size > _LARGEST:
        raise ValueError(f"Expected {name} to have at most {_LARGEST} bytes, but got {size}. Use the official file.")


def map_array(path: Path, remedy: str = "Get it again.") -> NDArray[Any]:
    """Return the array of an ``.npy`` file, memory-mapped; ``remedy`` ends the error of a damaged file.

    Raises:
        OSError: There is no such file.
        ValueError: It is damaged, or an array of Python objects.
    """
    require_file(path, "an .npy file")
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError) as error:
        raise ValueError(f"Expected {path} to be an array, but it cannot be read: {error}. {remedy}") from error
