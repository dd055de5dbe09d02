"""What a guard does to an adapter: after a step its numbers are read, and what they call for is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vcotta.guard import Action, Watch
from vcotta.methods.mean_teacher import update_teacher

if TYPE_CHECKING:
    from vcotta.methods.base import Adapter

__all__ = ["intervene", "signals"]


@torch.no_grad()
def signals(adapter: Adapter, watch: Watch | None, images: Tensor, log_probs: Tensor) -> dict[str, Tensor]:
    """Return the scalars that the host is to read for the guard after a step; nothing where nothing can be guarded.

    A method that did not show the guard its batch, see `Adapter.watch`, costs one more pass, of the source network,
    which is counted among its forwards.
    """
    if watch is None or not adapter.networks:
        return {}
    if not watch.looked:
        adapter.watch(adapter.logits(adapter.start, images).log_softmax(-1), log_probs)
    return watch.signals()


def intervene(adapter: Adapter, watch: Watch | None, read: dict[str, Any]) -> None:
    """Pull the adapter back, or start it again, if what was read calls for it, and tell so in its ``last``.

    A restart takes networks, optimiser and the method's memory back to the start; counters, random numbers and the
    guard's own memory go on, or it would take the stream that ruined the adapter for a usual one.
    """
    adapter.signals = {name: value for name, value in read.items() if not isinstance(value, bool)}
    if watch is None:
        return
    skipped = bool(adapter.last["skipped"])
    action: Action | None = "skip" if skipped else None
    causes = watch.verdict(read) + ["not finite"] * skipped
    if watch.alarms:
        over = watch.alarms - watch.guard.patience
        action = "pull" if over < 0 else "restart" if over == 0 else "pause"
        if action == "pull" and not _pull(adapter, watch.guard.pull):
            action = "restart"
        if action == "restart":
            adapter.restart()
    if action is not None:
        adapter.last["guard"] = {"causes": causes, "action": action}


def _pull(adapter: Adapter, share: float) -> bool:
    """Take every network this share of the way to the source; False if one is not of the source's shape."""
    shapes = [[p.shape for p in net.parameters()] for net in (adapter.start, *adapter.networks.values())]
    if any(other != shapes[0] for other in shapes[1:]):
        return False
    for net in adapter.networks.values():
        update_teacher(net, adapter.start, 1 - share)
    return True
