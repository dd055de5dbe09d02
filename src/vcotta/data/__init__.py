"""Labelled images: in memory, in files, or corrupted and stored."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vcotta.data.domains import DomainData
    from vcotta.data.folders import class_folders
    from vcotta.data.image_files import FilePixels, image_suffixes
    from vcotta.data.named import load_digits
    from vcotta.data.probe import make_probe
    from vcotta.data.types import (
        Batches,
        CorruptedSource,
        ImageData,
        ImageSource,
        Pixels,
        batches,
        check_labels,
        to_tensor,
    )

__all__ = [
    "Batches",
    "CorruptedSource",
    "DomainData",
    "FilePixels",
    "ImageData",
    "ImageSource",
    "Pixels",
    "batches",
    "check_labels",
    "class_folders",
    "image_suffixes",
    "load_digits",
    "make_probe",
    "to_tensor",
]

_HOMES = {
    "DomainData": "domains",
    "class_folders": "folders",
    "FilePixels": "image_files",
    "image_suffixes": "image_files",
}
_HOMES |= {"load_digits": "named", "make_probe": "probe"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a process that only resizes images starts without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'vcotta.data' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"vcotta.data.{_HOMES.get(name, 'types')}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
