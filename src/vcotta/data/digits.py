"""Handwritten digits that come with scikit-learn: a real task that needs no download."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vcotta.data import ImageData
from vcotta.models import WideResNet
from vcotta.training import TrainConfig

__all__ = ["DIGITS_BATCH", "DIGITS_TRAINING", "digits_network", "load_digits"]

TRAIN_IMAGES = 1000
SIDE = 32

DIGITS_TRAINING = TrainConfig(epochs=20, lr=0.1, shift=2)
"""How `digits_network` is trained, in batches of `DIGITS_BATCH`: about six seconds on one CPU thread."""

DIGITS_BATCH = 50


def load_digits() -> tuple[ImageData, ImageData]:
    """Return the train (first 1 000) and test (other 797) images of scikit-learn's digits.

    The 8x8 images are enlarged smoothly to 32x32 and repeated over three channels, so that everything made for
    CIFAR-sized colour images applies.

    Example:
        >>> train, test = load_digits()
        >>> train.images.shape, len(test)
        ((1000, 32, 32, 3), 797)
    """
    images, labels = _all_digits()
    images, labels = images.copy(), labels.copy()
    names = tuple(str(digit) for digit in range(10))
    return (
        ImageData(images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES], names, "digits-train"),
        ImageData(images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:], names, "digits-test"),
    )


def digits_network(seed: int = 0) -> WideResNet:
    """Return a small untrained network for the digits; the global random state is left as it was found.

    Example:
        >>> sum(weights.numel() for weights in digits_network().parameters())
        19858
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed every GPU
        return WideResNet(depth=10, width=1, stem_stride=2, base=8)


@functools.cache
def _all_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All images and labels, made once in a process."""
    from sklearn import datasets  # slow to import, and needed only here

    source = datasets.load_digits()
    return np.stack([_enlarge(image) for image in source.images]), source.target.astype(np.int64)


def _enlarge(image: NDArray[np.float64]) -> NDArray[np.uint8]:
    grey = Image.fromarray(np.rint(image * (255 / 16)).astype(np.uint8))
    large = np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    return np.repeat(large[:, :, None], 3, axis=2)
