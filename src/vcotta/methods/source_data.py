"""Source data on its way into a method that prepares on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from vcotta.inputs import check_images, check_labels, labelled_batches
from vcotta.runtime import Runtime

__all__ = ["Placed"]


class Placed:
    """Source data that is checked, on the device, and known to hold something.

    Attributes:
        source: What is checked.
        runtime: Says where the images go.
        count_classes: Tells the number of classes of images that the network takes, and raises for others.
    """

    def __init__(
        self, source: Iterable[tuple[Tensor, Tensor]], runtime: Runtime, count_classes: Callable[[Tensor], int]
    ) -> None:
        self.source, self.runtime, self.count_classes = source, runtime, count_classes

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        empty = True
        for images, labels in labelled_batches(self.source):
            check_images(images)
            empty = False
            images, labels = (x.clone() if x.is_inference() else x for x in (images, labels))
            images = self.runtime.place_images(images)
            check_labels(labels, len(images), self.count_classes(images))
            yield images, labels.to(self.runtime.device)
        if empty:
            raise ValueError("Expected `source` to yield images, but it is empty. A generator runs dry after one pass.")
