"""Images and labels as the package wants them, and the words it uses when they are not so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["check_accepted", "check_images", "check_labels", "labelled_batches"]


def check_images(images: Tensor) -> None:
    """Raise unless ``images`` is a non-empty float batch (batch, channels, height, width) with values in [0, 1]."""
    if not isinstance(images, Tensor):
        raise TypeError(
            f"Expected `images` to be a torch.Tensor, but got {type(images).__name__}. "
            f"{'Of a batch of a loader pass the images: batch[0].' if _is_pair(images) else 'Try torch.from_numpy.'}"
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
        raise ValueError(
            f"Expected `images` to lie in [0, 1], but got values from {low:.7g} to {high:.7g}. {_remedy(low, high)}"
        )


def _remedy(low: float, high: float) -> str:
    """What most likely happened to images that do not lie in [0, 1], and what undoes it."""
    if low > -0.1 and high < 1.1:
        return "Resizing overshoots a little: images.clamp(0, 1)."
    if low < 0 or high <= 20:  # bytes are never negative, and seldom all that dark
        return "Undo the mean and std normalisation: it belongs inside the model."
    return "Divide by 255."


def check_accepted(net: nn.Module, images: Tensor) -> int:
    """Raise ValueError unless a network makes logits of an image or two, and return the number of classes.

    Example:
        >>> check_accepted(nn.Sequential(nn.Flatten(), nn.Linear(48, 10)), torch.rand(5, 3, 4, 4))
        10
    """
    try:
        output = net(images[:2])
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape = tuple(images.shape[1:])
        raise ValueError(
            f"The network does not take images of shape {shape} (channels, height, width): {error}"
        ) from error
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(images[:2]):
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"Expected the network to return logits of shape (batch, classes), but got {got}.")
    constant = len(output) > 1 and torch.equal(output[0], output[1])
    if output.shape[1] > 1 and output.min() >= 0 and (output.sum(1) - 1).abs().max() < 1e-3 and not constant:
        raise ValueError(
            "Expected the network to return logits, but its outputs are probabilities: none is negative, and those of "
            "an image sum to one. Leave its softmax out."
        )
    return output.shape[1]


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


def labelled_batches(source: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what source data yields, after making sure that it is batches of images with their labels.

    Raises:
        TypeError: It yields something else.

    Example:
        >>> loader = [(torch.rand(2, 3, 4, 4), torch.ones(2))]
        >>> [len(images) for images, labels in labelled_batches(loader)]
        [2]
    """
    for batch in source:
        if not _is_pair(batch) or batch[0].ndim != 4:
            raise TypeError(
                f"Expected source data to yield batches, (images of shape (batch, channels, height, width), labels), "
                f"but got {_kind(batch)}. Wrap it: torch.utils.data.DataLoader(TensorDataset(images, labels), "
                "batch_size=64)."
            )
        yield batch[0], batch[1]


def _is_pair(batch: object) -> bool:
    return isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[0], Tensor)


def _kind(batch: Any) -> str:
    """What came in place of a batch, in words."""
    if _is_pair(batch):
        return f"images of shape {tuple(batch[0].shape)}"
    if isinstance(batch, Tensor):
        return f"a tensor of shape {tuple(batch.shape)}"
    return f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")
