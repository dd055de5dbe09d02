"""Labels of a flat folder of ImageNet validation images, from whichever of the published lists is there."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from vcotta.data.archives import read_members

__all__ = ["LABEL_FILES", "read_labels"]

_KAGGLE: Final = "LOC_val_solution.csv"
_TRUTH: Final = "ILSVRC2012_validation_ground_truth.txt"
_DEVKIT: Final = "ILSVRC2012_devkit_t12"

LABEL_FILES: Final = (f"{_DEVKIT}.tar.gz", f"{_DEVKIT}/data", f"{_TRUTH} with meta.mat", _KAGGLE)
"""What labels are read from: the devkit, packed or not, or Kaggle's list."""


def read_labels(places: Iterable[Path], files: Iterable[str]) -> dict[str, str]:
    """Return the class (WordNet id) of each file ``ILSVRC2012_val_NNNNNNNN.JPEG``.

    Args:
        places: Folders to search for `LABEL_FILES`.
        files: Base names.

    Raises:
        FileNotFoundError: No list of labels in any of these folders.
        ValueError: The list does not fit the files.
    """
    places = list(places)
    found = _find(places)
    if found is None:
        raise FileNotFoundError(
            f"Expected the labels of the images, one of {', '.join(LABEL_FILES)}, in {places[0]}, but found none. Put "
            "one there, or sort the images into class folders such as n01440764."
        )
    classes = _read_kaggle(found) if found.name == _KAGGLE else _read_devkit(found)
    result = {}
    for file in files:
        stem = Path(file).stem
        if stem not in classes:
            raise ValueError(f"Expected {found} to tell the class of {file}, but it does not. Get the whole list.")
        result[file] = classes[stem]
    return result


def _find(places: list[Path]) -> Path | None:
    for place in places:
        if (place / _KAGGLE).is_file():
            return place / _KAGGLE
        for folder in (place / _DEVKIT / "data", place / "data", place):
            if (folder / _TRUTH).is_file() and (folder / "meta.mat").is_file():
                return folder
        if (place / f"{_DEVKIT}.tar.gz").is_file():
            return place / f"{_DEVKIT}.tar.gz"
    return None


def _read_kaggle(path: Path) -> dict[str, str]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) == 2 and row[1].startswith("n")]
    return {row[0]: row[1].split()[0] for row in rows}


def _read_devkit(path: Path) -> dict[str, str]:
    contents = read_members(path, [_TRUTH, "meta.mat"])
    wnids = _read_meta(contents["meta.mat"])
    try:
        numbers = [int(line) for line in contents[_TRUTH].split()]
        return {f"ILSVRC2012_val_{place:08d}": wnids[number] for place, number in enumerate(numbers, 1)}
    except (ValueError, KeyError) as error:
        raise ValueError(f"Expected {_TRUTH} to be class numbers of meta.mat, but got {error}.") from error


def _read_meta(contents: bytes) -> dict[int, str]:
    """Return the WordNet id of each ILSVRC2012 number; only leaves of the tree are classes."""
    from scipy.io import loadmat  # comes with scikit-learn; slow to import, and needed only here

    try:
        synsets: Any = loadmat(io.BytesIO(contents), squeeze_me=True)["synsets"]
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets if int(row["num_children"]) == 0}
    except Exception as error:  # a damaged file may raise anything
        raise ValueError(f"Expected meta.mat to list the synsets, but it cannot be read: {error!r}.") from error
