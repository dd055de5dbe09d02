"""Counted forward passes and optimiser steps in the chosen precision, from which methods are built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vcotta.methods.guard import Watch
from vcotta.methods.parts.layers import catch_features
from vcotta.nn.batch_norm import correcting, keep_views_apart, use_batch_statistics
from vcotta.nn.class_statistics import Look
from vcotta.nn.inputs import check_gradient
from vcotta.nn.optim import OptimizerName, make_optimizer
from vcotta.nn.pooled_statistics import Corrected
from vcotta.nn.runtime import Runtime
from vcotta.nn.sharing import current

__all__ = ["Passes", "new_notes", "read_notes"]


class Passes:
    """The part of `Adapter` that runs and trains networks.

    Attributes:
        runtime: Device and precision.
        optimizer: The optimiser, or None.
    """

    runtime: Runtime
    start: nn.Module
    optimizer: torch.optim.Optimizer | None
    _notes: dict[str, Any]
    _watch: Watch | None
    _compiled_shape: tuple[int, ...] | None
    _fixed_shape: tuple[int, ...] | None
    _inferred: Look | None = None  # at the batch at hand, where statistics are inferred
    _in_order: bool = True  # whether BatchNorm layers run once each, in the order in which the network lists them

    def logits(
        self, net: nn.Module, images: Tensor, *, batch_statistics: bool = True, replayed: bool = False
    ) -> Tensor:
        """One counted forward pass in the chosen precision, as float32 logits (float64 for ``fp64``).

        BatchNorm uses the statistics of the batch, inferred ones where the settings say so, or the source's, as for a
        single image, whose own are useless. Images that are ``replayed`` are not of the batch at hand, for which
        statistics were inferred, and are normalised by their own.
        """
        look = self._inferred if batch_statistics and not replayed else None
        self._notes["forwards"] += 1
        if look is not None and self._corrects_itself(net):
            with correcting(net, look.correction):
                logits = self.runtime.forward(net, images)
        else:
            use_batch_statistics(net, batch_statistics and look is None and len(images) > 1)
            with nullcontext() if look is None else Corrected(look.correction):
                logits = current().split(lambda rows: self.runtime.forward(net, rows), images)
        if net is not self.start:  # which is frozen
            check_gradient(net, logits)
        return logits

    def _corrects_itself(self, net: nn.Module) -> bool:
        """Whether BatchNorm layers apply a correction themselves: faster than a mode that sees every torch function."""
        return self._in_order and net is not self.start and not current().is_shared and keep_views_apart(net)

    def source_logits(self, images: Tensor) -> Tensor:
        """The `logits` of the source network for the batch at hand, known where statistics were inferred."""
        return self.logits(self.start, images) if self._inferred is None else self._inferred.logits

    def features_and_logits(self, net: nn.Module, images: Tensor, **options: bool) -> tuple[Tensor, Tensor]:
        """Return the input of the last linear layer, (batch, dimensions), as float32, and the `logits`."""
        with catch_features(net) as caught:
            logits = self.logits(net, images, **options)
        return caught[-1], logits

    @torch.no_grad()
    def logits_of_views(self, net: nn.Module, views: Tensor) -> Tensor:
        """`logits` of several views without gradient, (views, batch, classes); each counts as a pass.

        With ``Runtime.compile`` many views make one compiled pass, in which BatchNorm keeps their statistics apart. It
        is compiled for the shape of the first batch, or that of `compile_for`; batches of other shapes run uncompiled.
        """
        count, batch = views.shape[:2]
        together = self.runtime.compile and batch > 1
        if together:
            self._compiled_shape = tuple(views.shape[1:]) if self._compiled_shape is None else self._compiled_shape
            together = self._compiled_shape == tuple(views.shape[1:])
        if current().is_shared:  # one exchange of statistics for all views instead of one for each
            together = batch > 1
        together = together and (self._inferred is None or self._in_order)
        if not together or not keep_views_apart(net):
            return torch.stack([self.logits(net, view) for view in views])
        self._notes["forwards"] += count

        def forward(rows: Tensor) -> Tensor:  # not compiled where processes exchange statistics during the pass
            return self.runtime.forward(net, self.runtime.place_images(rows), compiled=not current().is_shared)

        outputs, correction = [], None if self._inferred is None else self._inferred.correction
        for part in views.split(_views_at_once(views)):
            use_batch_statistics(net, True, len(part), correction)
            output = current().split(forward, part.flatten(0, 1), len(part))
            outputs.append(output.unflatten(0, (len(part), batch)))
        return torch.cat(outputs)

    def compile_for(self, shape: Sequence[int]) -> None:
        """Compile (``Runtime.compile``) for batches of this shape instead of that of the first batch."""
        self._fixed_shape = self._compiled_shape = tuple(shape)

    def gradients(self, loss: Tensor, tensors: Sequence[Tensor], *, retain_graph: bool = False) -> list[Tensor]:
        """One counted backward pass: the gradients of a loss, zeros for tensors it does not depend on."""
        self._notes["backwards"] += 1
        return current().average(torch.autograd.grad(loss, tensors, retain_graph=retain_graph, materialize_grads=True))

    def make_optimizer(
        self, parameters: Iterable[Tensor], name: OptimizerName, lr: float, scales: Sequence[float] | None = None
    ) -> None:
        """Create ``self.optimizer`` over ``parameters``; ``scales`` multiply the step size, one for each of them."""
        self.optimizer = make_optimizer(parameters, name, lr, scales)

    def minimise(self, loss: Tensor, when: Tensor | None = None) -> Tensor:
        """Take one optimiser step, unless loss or gradient is not finite or the guard forbids it.

        Args:
            loss: The loss.
            when: Whether there is anything to learn from this batch, a scalar on the device; None for yes. If it is
                false, no step is taken, not even by momentum, and none counts as skipped.

        Returns:
            Whether the step was taken, a scalar on the device.
        """
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)  # an interrupted step may have left some
        loss.backward()
        self._notes["backwards"] += 1
        gradients = [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        if current().is_shared:
            torch._foreach_copy_(gradients, current().average(gradients))
        done = loss.detach().isfinite() & nn.utils.get_total_norm(gradients).isfinite()
        self.note(loss=loss.detach(), skipped=~done if when is None else ~done & when)
        done = done if when is None else done & when
        done = done if self._watch is None else done & self._watch.calm
        self.note(updated=done | self._notes.get("updated", False))
        # Fused optimisers skip the step where this is above 0, as for AMP's GradScaler.
        self.optimizer.found_inf = (~done).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return done

    def note(self, **values: Any) -> None:
        """Add values to ``last`` of this step; scalar tensors are read once, at its end."""
        self._notes.update(values)


_PIXELS_AT_ONCE = 900_000  # four views of 200 images of 32 x 32; more is slower, as activations outgrow the cache


def _views_at_once(views: Tensor) -> int:
    """How many views go into one pass: a divisor of their number near the limit if there is one."""
    count, batch, _, height, width = views.shape
    limit = min(count, max(1, _PIXELS_AT_ONCE // (batch * height * width)))
    return next((size for size in range(limit, limit // 2, -1) if count % size == 0), limit)


def new_notes() -> dict[str, Any]:
    """The notes of a step that has just begun."""
    return {"forwards": 0, "backwards": 0, "skipped": False}


def read_notes(notes: dict[str, Any]) -> dict[str, Any]:
    """Notes as plain values; all tensors are fetched in one transfer."""
    tensors = {key: value for key, value in notes.items() if isinstance(value, Tensor)}
    values = torch.stack([value.double() for value in tensors.values()]).tolist() if tensors else []
    read = {k: bool(v) if tensors[k].dtype == torch.bool else v for k, v in zip(tensors, values, strict=True)}
    return notes | read
