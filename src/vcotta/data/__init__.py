"""Labelled images: in memory, in files, or corrupted and stored."""

from vcotta.data.domains import DomainData
from vcotta.data.folders import class_folders
from vcotta.data.image_files import FilePixels, image_suffixes
from vcotta.data.named import load_digits
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
    "to_tensor",
]
