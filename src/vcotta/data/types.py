"""Labelled images, in memory or in files, and batches of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

__all__ = ["Batches", "CorruptedSource", "ImageData", "ImageSource", "Pixels", "batches", "check_labels", "to_tensor"]


class Pixels(Protocol):
    """An array of uint8 images (n, height, width, channels), or an object that can be sliced like one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of images, height, width, channels."""

    def __len__(self) -> int:
        """Return the number of images."""

    def __getitem__(self, index: slice, /) -> NDArray[np.uint8]:
        """Return some of the images as an array."""


class Labelled(Protocol):
    """Labels and names, of clean and of corrupted images."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """One label for each image."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class."""

    @property
    def name(self) -> str:
        """Name of the data set and split."""

    def __len__(self) -> int:
        """Return the number of images; of corrupted ones, for one corruption and severity."""


class ImageSource(Labelled, Protocol):
    """Clean images with their labels, in memory or in files, for a stream to corrupt."""

    @property
    def images(self) -> Pixels:
        """The images."""

    def sha256(self) -> str:
        """Return a hash that identifies these images."""


@runtime_checkable
class CorruptedSource(Labelled, Protocol):
    """Images stored in corrupted form, such as CIFAR-10-C, for a stream to read unchanged.

    The labels are the same for every corruption and severity.
    """

    def corrupted(self, name: str, severity: int) -> Pixels:
        """Return the images of one corruption at one severity."""

    def corrupted_sha256(self, domains: Sequence[tuple[str, int]]) -> str:
        """Return a hash that identifies the images of these (corruption, severity) pairs."""


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images with their labels.

    Attributes:
        images: uint8 array (n, height, width, channels), which may be memory-mapped.
        labels: int64 array (n,), each from 0 to ``len(class_names) - 1``.
        class_names: What each label stands for.
        name: Name of the data set and split, as written into manifests.
    """

    images: NDArray[np.uint8] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    class_names: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        _check_images(self.images)
        check_labels(self.labels, len(self.images), self.class_names)

    def __len__(self) -> int:
        return len(self.images)

    def sha256(self) -> str:
        """Return the SHA-256 of the pixel bytes as hexadecimal text."""
        return hashlib.sha256(np.ascontiguousarray(self.images).data).hexdigest()


class Batches:
    """Batches of images and labels, made by `batches`; ``len(loader.dataset)`` is the number of images."""

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        batch_size: int,
        *,
        shuffle_seed: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        _check_images(images)
        if len(images) != len(labels):
            raise ValueError(f"Expected a label for each image, but got {len(images)} images and {len(labels)} labels.")
        if batch_size < 1:
            raise ValueError(f"Expected `batch_size` to be at least 1, but got {batch_size}.")
        self.batch_size = batch_size
        self.dataset = TensorDataset(
            torch.from_numpy(images.copy()).to(device).permute(0, 3, 1, 2).contiguous(),
            torch.from_numpy(labels.copy()).to(device),
        )
        self._generator = None if shuffle_seed is None else torch.Generator().manual_seed(shuffle_seed)

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.dataset.tensors
        count = len(images)
        order = torch.arange(count) if self._generator is None else torch.randperm(count, generator=self._generator)
        order = order.to(images.device)
        for start in range(0, count, self.batch_size):
            chosen = order[start : start + self.batch_size]
            yield images[chosen].float().div_(255), labels[chosen]

    def _fingerprint(self) -> list[int]:
        """Return sizes and order-dependent sums that identify the images and labels."""
        images, labels = self.dataset.tensors
        places = torch.arange(len(labels), device=labels.device) % 9973
        brightness = images.flatten(1).sum(1, dtype=torch.int64)
        return [*images.shape, self.batch_size, int((labels * places).sum()), int((brightness * places).sum())]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the shuffling between two passes, with a fingerprint of the images."""
        state: dict[str, Any] = {"data": self._fingerprint()}
        return state if self._generator is None else state | {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the sequence of orders from a `state_dict`; raise ValueError if it is of other images."""
        if state.get("data", self._fingerprint()) != self._fingerprint():
            raise ValueError("its images, labels or batch size differ")
        if self._generator is not None:
            self._generator.set_state(state["generator"])


def batches(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    batch_size: int,
    *,
    shuffle_seed: int | None = None,
    device: str | torch.device = "cpu",
) -> Batches:
    """Return batches for training, warm-up and preparation, which can be iterated over again and again.

    Each pass yields float images (n, channels, height, width) in [0, 1] with their labels. The global random state is
    never used.

    Args:
        images: uint8 array (n, height, width, channels).
        labels: int64 array (n,).
        batch_size: Images in a batch; the last batch may be shorter.
        shuffle_seed: Seed of the orders, a new order for each pass; None keeps the order of the data.
        device: Where the images (as bytes) and labels are kept.

    Example:
        >>> loader = batches(np.zeros((5, 8, 8, 3), np.uint8), np.zeros(5, np.int64), 2)
        >>> [len(labels) for _, labels in loader]
        [2, 2, 1]
    """
    return Batches(images, labels, batch_size, shuffle_seed=shuffle_seed, device=device)


def to_tensor(images: NDArray[np.uint8]) -> Tensor:
    """Turn uint8 images (n, height, width, channels) into floats (n, channels, height, width) in [0, 1].

    Example:
        >>> to_tensor(np.full((1, 2, 2, 3), 255, np.uint8)).shape
        torch.Size([1, 3, 2, 2])
    """
    _check_images(images)
    return torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32)).div_(255)


def check_labels(labels: NDArray[np.int64], images: int, class_names: Sequence[str]) -> None:
    """Raise ValueError unless there is one label for each image, and each is the number of a class."""
    if labels.dtype != np.int64 or labels.shape != (images,):
        raise ValueError(
            f"Expected `labels` to be int64 of shape ({images},), one for each image, but got {labels.dtype} of shape "
            f"{labels.shape}."
        )
    if images and not 0 <= labels.min() <= labels.max() < len(class_names):
        raise ValueError(
            f"Expected `labels` to be 0 to {len(class_names) - 1}, one for each class name, but got "
            f"{labels.min()} to {labels.max()}."
        )


def _check_images(images: NDArray[np.uint8]) -> None:
    if images.dtype != np.uint8 or images.ndim != 4:
        raise ValueError(
            f"Expected `images` to be uint8 of shape (n, height, width, channels), but got {images.dtype} of shape "
            f"{images.shape}."
        )
