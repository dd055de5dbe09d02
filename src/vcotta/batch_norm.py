"""Which statistics BatchNorm layers use: those of the batch, or those of the source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["batch_norms", "freeze_statistics", "reestimate_statistics", "use_batch_statistics"]


def batch_norms(net: nn.Module) -> Iterator[_BatchNorm]:
    """Yield every BatchNorm layer."""
    return (module for module in net.modules() if isinstance(module, _BatchNorm))


def freeze_statistics(net: nn.Module) -> None:
    """Put the network in eval mode for good and stop its BatchNorm layers from updating their running statistics.

    The source statistics stay in their buffers; `use_batch_statistics` chooses between them and the batch's.
    """
    net.eval()
    for norm in batch_norms(net):
        norm.track_running_stats = False


def use_batch_statistics(net: nn.Module, batch: bool) -> None:
    """Let BatchNorm use mean and biased variance of the batch (``True``) or the source's running statistics.

    Call `freeze_statistics` first. Layers that never had running statistics use the batch's in either case. Nothing
    else changes mode: dropout and stochastic depth stay off.
    """
    for norm in batch_norms(net):
        norm.training = batch


@torch.no_grad()
def reestimate_statistics(net: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics by their plain average over ``batches``, the network being in eval mode otherwise.

    Needed after the warm-up, during which they were gathered under noise.
    """
    norms = [norm for norm in batch_norms(net) if norm.running_mean is not None]
    was_training = {module: module.training for module in net.modules()}
    momenta = [norm.momentum for norm in norms]
    net.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # None is torch's word for the cumulative average
        norm.training = True
    try:
        for images in batches:
            net(images)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, training in was_training.items():
            module.training = training
