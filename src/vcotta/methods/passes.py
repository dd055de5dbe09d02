"""The forward passes that methods are written with: counted, in the chosen precision, with the batch's statistics."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vcotta.batch_norm import MixedStatistics, keep_views_apart, use_batch_statistics
from vcotta.distributed import is_shared, split_batch
from vcotta.methods.features import catch_features
from vcotta.runtime import Runtime

__all__ = ["Passes"]


class Passes:
    """What an `Adapter` runs networks by.

    Attributes:
        runtime: Device and precision.
    """

    runtime: Runtime
    _notes: dict[str, Any]
    _compiled_shape: tuple[int, ...] | None

    def logits(self, net: nn.Module, images: Tensor, *, batch_statistics: bool = True) -> Tensor:
        """One counted forward pass in the chosen precision, as float32 logits (float64 for ``fp64``).

        BatchNorm uses the statistics of the batch, or their share in a mixture with the source's (`share_of_batch`).
        """
        share = self.share_of_batch(len(images)) if batch_statistics else 0.0
        whole = share == 1 and len(images) > 1
        use_batch_statistics(net, whole)
        self._notes["forwards"] += 1
        with MixedStatistics(share) if share and not whole else nullcontext():
            return split_batch(lambda rows: self.runtime.forward(net, rows), images)

    def share_of_batch(self, count: int) -> float:
        """Share of a batch of so many images in BatchNorm's statistics, the rest being the source's.

        All of it; but one image alone has no statistics worth the name and takes the source's.
        """
        return float(count > 1)

    def features_and_logits(self, net: nn.Module, images: Tensor, **options: bool) -> tuple[Tensor, Tensor]:
        """`logits`, and before them what the last linear layer reads, (batch, dimensions), as float32."""
        with catch_features(net) as caught:
            logits = self.logits(net, images, **options)
        return caught[-1], logits

    @torch.no_grad()
    def logits_of_views(self, net: nn.Module, views: Tensor) -> Tensor:
        """`logits` of several views without gradient, (views, batch, classes); each counts as a pass.

        On the fast path (``Runtime.compile``) many views make one compiled pass, in which BatchNorm keeps their
        statistics apart. Batches of another shape than the first, or than that of `compile_for`, the short last one
        say, are not worth compiling for.
        """
        count, batch = views.shape[:2]
        together = self.runtime.compile and batch > 1
        if together:
            if self._compiled_shape is None:
                self._compiled_shape = tuple(views.shape[1:])
            together = self._compiled_shape == tuple(views.shape[1:])
        if is_shared():  # one exchange of statistics for all views instead of one for each
            together = batch > 1
        if not together or not keep_views_apart(net):
            return torch.stack([self.logits(net, view) for view in views])
        self._notes["forwards"] += count
        outputs, share = [], self.share_of_batch(batch)
        for part in views.split(_views_at_once(views)):
            use_batch_statistics(net, True, len(part), share)
            output = split_batch(lambda rows: self._forward_views(net, rows), part.flatten(0, 1), len(part))
            outputs.append(output.unflatten(0, (len(part), batch)))
        return torch.cat(outputs)

    def _forward_views(self, net: nn.Module, images: Tensor) -> Tensor:
        """A pass over many views, compiled unless other processes must be asked for statistics on the way."""
        return self.runtime.forward(net, self.runtime.place_images(images), compiled=not is_shared())


_PIXELS_AT_ONCE = 900_000  # four views of 200 images of 32 x 32; more is slower, as activations outgrow the cache


def _views_at_once(views: Tensor) -> int:
    """How many views go into one pass: a divisor of their number where one is near the limit, so that all are equal."""
    count, batch, _, height, width = views.shape
    limit = min(count, max(1, _PIXELS_AT_ONCE // (batch * height * width)))
    return next((size for size in range(limit, limit // 2, -1) if count % size == 0), limit)
