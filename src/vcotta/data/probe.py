"""A few labelled images and corrupted copies of them, by which an adapter is watched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vcotta.corruptions import corrupt
from vcotta.data.types import ImageSource

__all__ = ["PROBE_CORRUPTIONS", "make_probe"]

PROBE_CORRUPTIONS = ("gaussian_noise", "fog", "contrast")
"""One of each kind that are hard for most networks."""


def make_probe(
    data: ImageSource, count: int, corruptions: Sequence[str] = PROBE_CORRUPTIONS, *, severity: int = 5, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Draw images for `Adapter.add_probe`, with corrupted copies of each.

    Args:
        data: Labelled images, of the source rather than of the stream.
        count: Number of images.
        corruptions: Names of the corruptions of the copies.
        severity: Their severity.
        seed: Determines the images and their corruption.

    Returns:
        Bytes (1 + corruptions, count, channels, height, width), the clean images first, and labels (count,).

    Example:
        >>> from vcotta.data import load_digits
        >>> images, labels = make_probe(load_digits()[0], 20)
        >>> images.shape, labels.shape
        (torch.Size([4, 20, 3, 32, 32]), torch.Size([20]))
    """
    if not 1 <= count <= len(data.labels):
        raise ValueError(f"Expected a probe of 1 to {len(data.labels)} images, but got {count}.")
    chosen = sorted(np.random.default_rng(seed).permutation(len(data.labels))[:count].tolist())
    images = np.concatenate([data.images[place : place + 1] for place in chosen])
    copies = [images, *(corrupt(images, name, severity, seed) for name in corruptions)]
    probe = torch.from_numpy(np.stack(copies)).permute(0, 1, 4, 2, 3).contiguous()
    return probe, torch.from_numpy(data.labels[chosen].astype(np.int64))
