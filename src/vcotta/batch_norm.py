"""Which statistics BatchNorm layers use: those of the batch, of each view in it, of the source, or a mixture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from vcotta.distributed import is_shared, var_mean, whole_length
from vcotta.normalise import normalise

__all__ = [
    "MixedStatistics",
    "batch_norms",
    "freeze_statistics",
    "join_views",
    "keep_views_apart",
    "reestimate_statistics",
    "use_batch_statistics",
]


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


def use_batch_statistics(net: nn.Module, batch: bool, views: int = 1, share: float = 1.0) -> None:
    """Let BatchNorm use mean and biased variance of the batch (``True``) or the source's running statistics.

    Call `freeze_statistics` first. Layers that never had running statistics use the batch's in either case. Nothing
    else changes mode: dropout and stochastic depth stay off.

    Args:
        net: The network.
        batch: Whether the batch's statistics are used.
        views: The batch is this many views one after another, each of which has statistics of its own; more than one
            needs `keep_views_apart`.
        share: Share of each view's statistics in a mixture with the source's, as in `MixedStatistics`; less than 1
            needs `keep_views_apart`, too.
    """
    for norm in batch_norms(net):
        norm.training = batch
        if isinstance(norm, _ViewBatchNorm2d):
            norm.views, norm.share = views, share


class MixedStatistics(TorchFunctionMode):
    r"""Within the block BatchNorm that would use the source's statistics mixes them with the batch's.

    :math:`\mu = (1-s)\mu_S + s\mu_B` and :math:`\sigma^2 = (1-s)\sigma_S^2 + s\sigma_B^2` with the batch's
    unbiased variance, as the source's is (Schneider et al., 2020). Gradients reach the batch's part. All kinds of
    BatchNorm end in ``F.batch_norm``, which is what is replaced; layers without running statistics have nothing to mix,
    and a single value has no variance and takes the source's.

    Args:
        share: s, the share of the batch.

    Example:
        >>> norm = nn.BatchNorm1d(1).eval()
        >>> with torch.no_grad(), MixedStatistics(0.5):
        ...     mixed = norm(torch.tensor([[1.0], [3.0]]))  # by a mean of 1 and a variance of 1.5
        >>> mixed.flatten().round(decimals=3)
        tensor([0.0000, 1.6330])
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm:
            return _mixed_batch_norm(self.share, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _mixed_batch_norm(
    share: float,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    single = whole_length(x) * x[0, 0].numel() == 1
    if training or running_mean is None or running_var is None or single:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    variance, mean = var_mean(x.to(torch.promote_types(x.dtype, running_mean.dtype)), [0, *range(2, x.ndim)])
    mean, variance = running_mean.lerp(mean, share), running_var.lerp(variance, share)
    return normalise(x, mean, variance, weight, bias, eps)


class _ViewBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` that normalises each of ``views`` equal parts of the batch by that part's own statistics.

    With a ``share`` below 1 they are mixed with the source's.

    The variance is taken about the source's mean, E[(x - m)^2] - (E[x] - m)^2 in float32: one pass over the data, and
    no cancellation as long as the batch's mean is within some hundred deviations of it.
    """

    views: int = 1
    share: float = 1.0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or (self.views == 1 and self.share == 1):
            plain: Tensor = super().forward(x)
            return plain
        channels = (1, 1, -1, 1, 1)
        parts = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(0, (self.views, -1))
        known = self.running_mean
        if is_shared():
            variance, mean = var_mean(parts, [1, 3, 4], correction=0, keepdim=True)
        else:
            shift = parts.mean((1, 3, 4), keepdim=True) if known is None else known.view(channels)
            mean = parts.mean((1, 3, 4), keepdim=True)
            variance = (parts - shift).square().mean((1, 3, 4), keepdim=True) - (mean - shift).square()
        if self.share < 1 and known is not None and self.running_var is not None:
            count = whole_length(x) // self.views * x[0, 0].numel()
            mean = known.view(channels).lerp(mean, self.share)
            variance = self.running_var.view(channels).lerp(variance * (count / (count - 1)), self.share)
        scale = torch.rsqrt(variance.clamp_min(0) + self.eps)
        if self.affine:
            scale = scale * self.weight.view(channels)
        offset = -mean * scale
        if self.affine:
            offset = offset + self.bias.view(channels)
        normalised: Tensor = (parts * scale + offset).flatten(0, 1).to(x.dtype)
        return normalised


def keep_views_apart(net: nn.Module) -> bool:
    """Teach the network to take many views as one batch, see `use_batch_statistics`; parameters stay where they are.

    Returns:
        False, with nothing changed, if it has batch statistics that cannot be told apart (other kinds of BatchNorm).

    Example:
        >>> net, views = nn.BatchNorm2d(2), torch.rand(3, 4, 2, 5, 5)
        >>> keep_views_apart(net)
        True
        >>> use_batch_statistics(net, True, views=3)
        >>> together = net(views.flatten(0, 1))
        >>> use_batch_statistics(net, True)
        >>> torch.allclose(together[:4], net(views[0]), atol=1e-5)
        True
    """
    norms = list(batch_norms(net))
    if any(type(norm) not in (nn.BatchNorm2d, _ViewBatchNorm2d) for norm in norms):
        return False
    for norm in norms:
        norm.__class__ = _ViewBatchNorm2d
    return True


def join_views(net: nn.Module) -> None:
    """Undo `keep_views_apart`: the layers are torch's own again."""
    for norm in batch_norms(net):
        if type(norm) is _ViewBatchNorm2d:
            norm.__class__ = nn.BatchNorm2d  # type: ignore[assignment]


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
