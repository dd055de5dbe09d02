"""A few labelled source images, predicted now and then without adapting: is the adapter worse at them than the source?

A guard's other signals judge the stream's own images. An adapter may fit these and forget the rest of what the source
knew, which only other images show.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from vcotta.methods.parts.mean_teacher import update_teacher
from vcotta.nn.batch_norm import use_batch_statistics
from vcotta.nn.rng import OwnRng

if TYPE_CHECKING:
    from vcotta.methods.base import Adapter

__all__ = ["BOUND", "COST", "IMAGES", "LABELS", "ProbeWatch", "as_probe", "check_probe", "pull"]

IMAGES, LABELS = "probe_images", "probe_labels"
"""Names of the probe's tensors in an adapter's ``prepared``."""
BOUND = 0.01
"""Errors beyond those of the source that the adapter may make, as a share of the images of each condition."""
COST = 0.04
"""Passes for the probe, as a share of the passes of the steps between (a backward pass counts as two)."""
HALVINGS = 4
"""An adapter that is beyond the bound a sixteenth of its way from the source starts again."""
GROWTH = 1.2
"""Factor by which the leash grows at each look within the bound."""


def check_probe(tensors: dict[str, Tensor], classes: int | None = None) -> None:
    """Raise unless images and labels of a probe, if there are any, fit together.

    Example:
        >>> check_probe({IMAGES: torch.zeros(2, 5, 3, 8, 8), LABELS: torch.zeros(5).long()})
        Traceback (most recent call last):
        ValueError: Expected a probe of bytes (conditions, images, channels, height, width) with a label for each \
image, but got torch.float32 (2, 5, 3, 8, 8) and torch.int64 (5,).
    """
    images, labels = tensors.get(IMAGES), tensors.get(LABELS)
    if images is None and labels is None:
        return
    kinds = [None if one is None else f"{one.dtype} {tuple(one.shape)}" for one in (images, labels)]
    if (
        images is None
        or labels is None
        or (images.dtype, labels.dtype, images.ndim) != (torch.uint8, torch.int64, 5)
        or labels.shape != images.shape[1:2]
        or not images.numel()
    ):
        raise ValueError(
            "Expected a probe of bytes (conditions, images, channels, height, width) with a label for each image, but "
            f"got {kinds[0]} and {kinds[1]}."
        )
    if int(labels.min()) < 0 or (classes is not None and int(labels.max()) >= classes):
        raise ValueError(
            f"Expected labels of the probe from 0 to {'...' if classes is None else classes - 1}, but got "
            f"{int(labels.min())} to {int(labels.max())}."
        )


def as_probe(adapter: Adapter, images: Tensor, labels: Tensor, classes: int) -> dict[str, Tensor]:
    """Return the tensors of a probe for an adapter's ``prepared``; ValueError if it has no use for them."""
    if adapter.guard is None:
        raise ValueError("Expected an adapter with a guard, which looks at the probe, but it has none. Add guard=True.")
    probe = {IMAGES: images, LABELS: labels}
    check_probe(probe, classes)
    return probe


class ProbeWatch:
    """What a guard knows of the probe.

    A look is a pass of the adapted network (the teacher, where there is one) over the probe's images, each condition
    normalised by its own statistics, and costs at most `COST` of the steps since the look before; as a stream begins
    there is one after 2, 4, 8, ... steps. In each condition it finds a images that only the adapted network and b that
    only the source gets wrong. Where a - b is above the bound in one of them, though it may be so by chance, the
    networks are pulled halfway back to the source until it is within the bound in all. The distance that is left
    becomes their leash: after later steps they are pulled back to it, and it grows by `GROWTH` at each look within the
    bound.

    Attributes:
        due: The step after which the next look is taken.
        leash: Largest distance from the source, see `Adapter.parameter_distance`; None for any.
    """

    def __init__(self) -> None:
        self.due = 2
        self.leash: float | None = None
        self._source_wrong: Tensor | None = None

    def act(self, adapter: Adapter, batch: int) -> Literal["pull", "restart"] | None:
        """Look if it is time, and pull the adapter back if need be; return the guard's action, if any."""
        self._hold(adapter)
        if adapter.steps < self.due:
            return None
        passes = batch * max(1, adapter.last["forwards"] + 2 * adapter.last["backwards"])
        images = adapter.prepared[IMAGES]
        self.due += min(self.due, math.ceil(images.shape[:2].numel() / (COST * passes)))
        if self._loss(adapter) <= BOUND:
            self.leash = self.leash and self.leash * GROWTH
            return None
        for _ in range(HALVINGS):
            if not pull(adapter, 0.5):
                break
            self.leash = adapter.parameter_distance()
            if self._loss(adapter) <= BOUND:
                return "pull"
        adapter.restart()
        return "restart"

    def state_dict(self) -> dict[str, Any]:
        """When the next look is due, and the leash."""
        return {"due": self.due, "leash": self.leash}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        leash = state["leash"]
        self.due, self.leash, self._source_wrong = int(state["due"]), None if leash is None else float(leash), None

    def _hold(self, adapter: Adapter) -> None:
        if self.leash is not None and (distance := adapter.parameter_distance()) > self.leash:
            pull(adapter, 1 - self.leash / distance)

    def _loss(self, adapter: Adapter) -> float:
        """Errors beyond those of the source in the worst condition, as a share; of the adapter as it was a signal."""
        if self._source_wrong is None:
            self._source_wrong = _wrong(adapter, adapter.start)
        networks = adapter.networks
        adapted = networks["teacher"] if "teacher" in networks else next(iter(networks.values()))
        changes = _wrong(adapter, adapted).float() - self._source_wrong.float()
        loss: float = changes.mean(1).max().item()
        adapter.signals.setdefault("probe", loss)
        return loss


def pull(adapter: Adapter, share: float) -> bool:
    """Pull every network this share of the way to the source; False if one has other shapes than the source."""
    shapes = [[p.shape for p in net.parameters()] for net in (adapter.start, *adapter.networks.values())]
    if any(other != shapes[0] for other in shapes[1:]):
        return False
    for net in adapter.networks.values():
        update_teacher(net, adapter.start, 1 - share)
    return True


@torch.no_grad()
def _wrong(adapter: Adapter, net: nn.Module) -> Tensor:
    """Which of the probe's images a network gets wrong, (conditions, images)."""
    labels, wrong = adapter.prepared[LABELS], []
    with OwnRng(adapter.seed, adapter.runtime.device).scope():  # the adapter's own random numbers stay as they are
        for images in adapter.prepared[IMAGES]:
            use_batch_statistics(net, len(images) > 1)
            logits = adapter.runtime.forward(net, adapter.runtime.place_images(images.float() / 255))
            wrong.append(logits.argmax(-1) != labels)
    return torch.stack(wrong)
