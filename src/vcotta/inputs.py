"""Images and labels as the package wants them, and the words it uses when they are not so."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["check_images", "check_labels"]


def check_images(images: Tensor) -> None:
    """Raise unless ``images`` is a non-empty float batch (batch, channels, height, width) with values in [0, 1]."""
    if not isinstance(images, Tensor):
        raise TypeError(
            f"Expected `images` to be a torch.Tensor, but got {type(images).__name__}. Try torch.from_numpy."
        )
    if not images.is_floating_point():
        hint = " Scale bytes first: images.float() / 255." if images.dtype == torch.uint8 else ""
        raise TypeError(f"Expected `images` to be floats in [0, 1], but got {images.dtype}.{hint}")
    if images.ndim != 4:
        hint = " Add the batch dimension: images.unsqueeze(0)." if images.ndim == 3 else ""
        raise ValueError(
            f"Expected `images` of shape (batch, channels, height, width), but got {tuple(images.shape)}.{hint}"
        )
    if images.numel() == 0:
        raise ValueError(f"Expected at least one image, but got an empty batch of shape {tuple(images.shape)}.")
    low, high = torch.stack(torch.aminmax(images.detach())).tolist()
    if not (low >= -1e-6 and high <= 1 + 1e-6):  # also catches not-a-number
        if high != high or low != low or max(abs(low), abs(high)) == float("inf"):
            raise ValueError("Expected `images` to be finite, but they hold NaN or infinity.")
        hint = "Divide by 255." if high > 2 else "Undo the mean and std normalisation: it belongs inside the model."
        raise ValueError(f"Expected `images` to lie in [0, 1], but got values from {low:.4g} to {high:.4g}. {hint}")


def check_labels(labels: Tensor, images: int, classes: int) -> None:
    """Raise unless ``labels`` holds one whole number from 0 to ``classes - 1`` for each image."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"Expected `labels` to be a tensor of whole numbers, but got {got}.")
    if labels.shape != (images,):
        raise ValueError(f"Expected `labels` of shape ({images},), one an image, but got {tuple(labels.shape)}.")
    low, high = torch.stack(torch.aminmax(labels)).tolist()
    if low < 0 or high >= classes:
        raise ValueError(
            f"Expected `labels` to be 0 to {classes - 1}, one for each output of the network, but got {low} to {high}."
        )
