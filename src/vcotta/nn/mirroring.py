"""Whether mirrored images are of the same class: not where left and right matter, as in digits or text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from vcotta._util.warn import warn
from vcotta.nn.runtime import Runtime

__all__ = ["FirstBatches", "error_on", "look_at_mirrored", "warn_of_mirroring"]

ENOUGH = 200
"""Images to judge by."""
_MORE = 0.1  # more error on mirrored images than this: left and right matter


class FirstBatches:
    """Batches of source data, of which the first two hundred images are kept as they pass.

    Args:
        batches: The batches.
        once: Whether they can be read only once, as a generator can: then `kept` reads none.
    """

    def __init__(self, batches: Iterable[tuple[Tensor, Tensor]], once: bool = False) -> None:
        self._batches, self._once = batches, once
        self._kept: list[tuple[Tensor, Tensor]] = []

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        left = ENOUGH - sum(len(images) for images, _ in self._kept)
        for images, labels in self._batches:
            if left > 0:
                self._kept.append((images[:left], labels[:left] if labels.ndim else labels))
                left -= len(images)
            yield images, labels

    def kept(self) -> list[tuple[Tensor, Tensor]]:
        """The images and labels that passed; the first ones are read now if none did.

        Source data that is unfit ends the reading: a method that did not read it works without it.
        """
        if not self._kept and not self._once:
            # Our checks raise the first two, labels that are no tensor the third; a failing disk is not silenced.
            with contextlib.suppress(ValueError, TypeError, AttributeError):
                self._read()
        return self._kept

    def _read(self) -> None:
        for _ in self:
            if sum(len(images) for images, _ in self._kept) >= ENOUGH:
                break


def look_at_mirrored(net: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], runtime: Runtime, remedy: str) -> None:
    """Warn if mirrored images seem to be of other classes; batches without a label for each image do not count."""
    kept = [(images, labels) for images, labels in batches if labels.shape == images.shape[:1]]
    if kept:
        error, mirrored = (error_on(net, kept, runtime, mirrored=way) for way in (False, True))
        warn_of_mirroring(error, mirrored, remedy)


@torch.no_grad()
def error_on(net: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], runtime: Runtime, *, mirrored: bool) -> float:
    """Return the share of mistakes on images as they are or mirrored."""
    wrong = [
        runtime.forward(net, images.flip(-1) if mirrored else images).argmax(-1) != labels.to(images.device)
        for images, labels in batches
    ]
    return torch.cat(wrong).double().mean().item()


def warn_of_mirroring(error: float, mirrored: float, remedy: str) -> None:
    """Warn if mirrored images seem to be of other classes."""
    if mirrored > error + _MORE:
        warn(
            f"The network mistakes {mirrored:.0%} of mirrored source images, where it mistakes {error:.0%} as they "
            f"are, as if left and right mattered. If they do, as in digits or text, give {remedy}."
        )
