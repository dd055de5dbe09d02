"""Source data on its way into a method that prepares on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from vcotta.inputs import check_images, labelled_batches
from vcotta.runtime import Runtime

__all__ = ["Placed"]


class Placed:
    """Source data whose images are checked, on the device, and known to hold something; labels are left to their users.

    Attributes:
        source: What is checked.
        runtime: Says where the images go.
        accept: Raises for images that the network does not take.
    """

    def __init__(
        self, source: Iterable[tuple[Tensor, Tensor]], runtime: Runtime, accept: Callable[[Tensor], object]
    ) -> None:
        self.source, self.runtime, self.accept = source, runtime, accept

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        empty = True
        for images, labels in labelled_batches(self.source):
            check_images(images)
            empty = False
            images, labels = (x.clone() if x.is_inference() else x for x in (images, labels))
            images = self.runtime.place_images(images)
            self.accept(images)
            yield images, labels.to(self.runtime.device)
        if empty:
            raise ValueError("Expected `source` to yield images, but it is empty. A generator runs dry after one pass.")
