"""Statistics of BatchNorm layers: those of the batch, of each view in it, of the source, or a mixture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from vcotta.nn.sharing import current

__all__ = [
    "MixedStatistics",
    "RobustBatchNorm",
    "SavedStatistics",
    "batch_norms",
    "correcting",
    "freeze_statistics",
    "join_views",
    "keep_views_apart",
    "make_robust",
    "moving_statistics",
    "normalise",
    "order_of_layers",
    "reestimate_statistics",
    "use_batch_statistics",
]


def batch_norms(net: nn.Module) -> Iterator[_BatchNorm]:
    """Yield every BatchNorm layer."""
    return (module for module in net.modules() if isinstance(module, _BatchNorm))


def freeze_statistics(net: nn.Module) -> None:
    """Put the network in eval mode and keep BatchNorm's running statistics, the source's, as they are."""
    net.eval()
    for norm in batch_norms(net):
        norm.track_running_stats = False


Correction = list[tuple[Tensor, Tensor]]
"""For each BatchNorm layer, scale and offset of a batch that was normalised by its own statistics."""


def use_batch_statistics(net: nn.Module, batch: bool, views: int = 1, correction: Correction | None = None) -> None:
    """Let BatchNorm use mean and biased variance of the batch (``True``) or the source's running statistics.

    Call `freeze_statistics` first. Layers without running statistics always use the batch's.

    Args:
        net: The network.
        batch: Whether to use the batch's statistics.
        views: Number of views that follow one another in the batch, each with statistics of its own.
        correction: What each layer does next, see `vcotta.nn.class_statistics`. More than one view, or a correction,
            needs `keep_views_apart`.
    """
    norms = list(batch_norms(net))
    for norm in norms:
        norm.training = batch
        if isinstance(norm, _ViewBatchNorm2d):
            norm.views, norm.corrected = views, bool(correction) and norm.running_mean is not None
    if correction:
        _hand_out([norm for norm in norms if isinstance(norm, _ViewBatchNorm2d) and norm.corrected], correction)


def _hand_out(norms: Sequence[_ViewBatchNorm2d], correction: Correction) -> None:
    """Copy to each layer its correction, unless it has it already."""
    given = [(norm, own) for norm, own in zip(norms, correction, strict=True) if own is not vars(norm).get("_latest")]
    for norm, own in given:
        norm.make_room(own)
        vars(norm)["_latest"] = own
    if given:
        kept = [tensor for norm, _ in given for tensor in (norm.scale, norm.offset)]
        torch._foreach_copy_(kept, [tensor for _, own in given for tensor in own])


@contextmanager
def correcting(net: nn.Module, correction: Correction) -> Iterator[None]:
    """Inside the block each layer normalises a batch by its own statistics, and then corrects it.

    `vcotta.nn.pooled_statistics.Corrected` of one view without compilation, to the bit, for layers that run once each,
    in the order in which the network lists them. Call `keep_views_apart` first. Corrections and the layers' own weights
    are multiplied for all layers together, since each such operation on a few hundred numbers costs the host as much as
    one on an image.
    """
    use_batch_statistics(net, True)
    norms = [norm for norm in batch_norms(net) if norm.running_mean is not None]
    for norm, *combined in zip(norms, *_combined(norms, correction), strict=True):
        vars(norm)["combined"] = combined
    try:
        yield
    finally:
        for norm in norms:
            vars(norm).pop("combined", None)  # it may carry a graph, which cannot be copied with the layer


def _combined(norms: Sequence[_BatchNorm], correction: Correction) -> list[tuple[Tensor, ...]]:
    """Scales and offsets, by layer, of corrections that are followed by the layers' own weights and biases."""
    scale, offset = (torch.cat(parts) for parts in zip(*correction, strict=True))
    if any(norm.affine for norm in norms):
        pairs = [
            (norm.weight, norm.bias) if norm.affine else _identity(own)
            for norm, own in zip(norms, correction, strict=True)
        ]
        weight, bias = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        scale, offset = scale * weight, offset * weight + bias
    sizes = [len(own) for own, _ in correction]
    return [scale.split(sizes), offset.split(sizes)]


def _identity(correction: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Weight and bias of a layer that has none."""
    return torch.ones_like(correction[0]), torch.zeros_like(correction[1])


@contextmanager
def moving_statistics(*nets: nn.Module) -> Iterator[None]:
    """Inside the block passes that use the batch's statistics also move the running ones."""
    norms = [norm for net in nets for norm in batch_norms(net) if norm.running_mean is not None]
    for norm in norms:
        norm.track_running_stats = True
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = False


class SavedStatistics:
    """The buffers of all BatchNorm layers, in one tensor per type, to restore them if a step is not taken."""

    def __init__(self, *nets: nn.Module) -> None:
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for buffer in (buffer for net in nets for norm in batch_norms(net) for buffer in norm.buffers()):
            kinds.setdefault(buffer.dtype, []).append(buffer)
        self._kept = [(buffers, _joined(buffers)) for buffers in kinds.values()]

    @torch.no_grad()
    def restore(self, unless: Tensor) -> None:
        """Restore the buffers, in place, unless a scalar on their device is true."""
        for buffers, before in self._kept:
            values = torch.where(unless, _joined(buffers), before)
            parts = values.split([buffer.numel() for buffer in buffers])
            torch._foreach_copy_(buffers, [part.view_as(b) for part, b in zip(parts, buffers, strict=True)])


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


class MixedStatistics(TorchFunctionMode):
    r"""Inside the block BatchNorm that would use the source's statistics mixes them with the batch's.

    :math:`\mu = (1-s)\mu_S + s\mu_B` and :math:`\sigma^2 = (1-s)\sigma_S^2 + s\sigma_B^2` with the batch's share s and
    unbiased variance, as the source's is (Schneider et al., 2020). Gradients reach the batch's part. Every kind of
    BatchNorm ends in ``F.batch_norm``, which is replaced. A single value has no variance and takes the source's.

    Where processes share a batch (`vcotta.nn.distributed`), the batch's statistics are those of the whole batch.

    Args:
        share: s.

    Example:
        >>> norm = nn.BatchNorm1d(1).eval()
        >>> with torch.no_grad(), MixedStatistics(0.5):
        ...     mixed = norm(torch.tensor([[1.0], [3.0]]))  # mean 1 and variance 1.5
        >>> mixed.flatten().round(decimals=3)
        tensor([0.0000, 1.6330])
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm:
            return _batch_norm(self, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    mode: MixedStatistics,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``F.batch_norm`` with statistics of the whole batch when training, or else mixed with the source's."""
    sharing, dims = current(), [0, *range(2, x.ndim)]
    count = sharing.whole_length(x) * x[0, 0].numel()
    if training and sharing.is_shared:
        variance, mean = sharing.var_mean(_at_least_float32(x), dims, correction=0)
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_((variance * (count / (count - 1))).to(running_var.dtype), momentum)
        return normalise(x, mean, variance, weight, bias, eps)
    if training or not mode.share or running_mean is None or running_var is None or count == 1:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    variance, mean = sharing.var_mean(x.to(torch.promote_types(x.dtype, running_mean.dtype)), dims)
    mean, variance = running_mean.lerp(mean, mode.share), running_var.lerp(variance, mode.share)
    return normalise(x, mean, variance, weight, bias, eps)


def normalise(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalise (batch, channels, ...) as ``F.batch_norm`` does, but with gradients through mean and variance.

    Computes in the precision of the statistics where that is higher, and returns that of ``x``.
    """
    scale = torch.rsqrt(variance + eps)
    scale = scale if weight is None else scale * weight
    offset = -mean * scale if bias is None else bias - mean * scale
    channels = (1, -1, *[1] * (x.ndim - 2))
    precise = x.to(torch.promote_types(x.dtype, mean.dtype))
    return (precise * scale.view(channels) + offset.view(channels)).to(x.dtype)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _ViewBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` that normalises each of ``views`` equal parts of the batch by its own statistics.

    The variance is taken about the source's mean m, E[(x - m)^2] - (E[x] - m)^2 in float32: one pass over the data,
    without cancellation as long as the batch's mean is within some hundred deviations of m.
    """

    views: int = 1
    corrected: bool = False
    combined: Sequence[Tensor] | None = None  # scale and offset in place of weight and bias, see `correcting`
    scale: Tensor  # plain attributes, always the same tensors, so that compiled code stays valid
    offset: Tensor

    def make_room(self, correction: tuple[Tensor, Tensor]) -> None:
        """Have tensors for a correction: scale and offset of what was normalised, before weight and bias."""
        if "scale" not in vars(self) or self.scale.device != correction[0].device:
            self.scale, self.offset = (torch.empty_like(tensor) for tensor in correction)

    def forward(self, x: Tensor) -> Tensor:
        if self.combined is not None:
            if x.numel() == x.shape[1]:  # one value per channel has no variance: the source's statistics are used
                source = self.running_mean, self.running_var
                return F.batch_norm(x, *source, self.weight, self.bias, False, 0.0, self.eps)
            scale, offset = self.combined
            return F.batch_norm(x, None, None, scale, offset, True, 0.0, self.eps)
        if not self.training or (self.views == 1 and not self.corrected):
            plain: Tensor = super().forward(x)
            return plain
        channels = (1, 1, -1, 1, 1)
        parts = _at_least_float32(x).unflatten(0, (self.views, -1))
        known, sharing = self.running_mean, current()
        if sharing.is_shared:
            variance, mean = sharing.var_mean(parts, [1, 3, 4], correction=0, keepdim=True)
        else:
            shift = parts.mean((1, 3, 4), keepdim=True) if known is None else known.view(channels)
            mean = parts.mean((1, 3, 4), keepdim=True)
            variance = (parts - shift).square().mean((1, 3, 4), keepdim=True) - (mean - shift).square()
        scale = torch.rsqrt(variance.clamp_min(0) + self.eps)
        offset = -mean * scale
        if self.corrected:
            by, add = self.scale.view(channels), self.offset.view(channels)
            scale, offset = scale * by, offset * by + add
        if self.affine:
            scale = scale * self.weight.view(channels)
            offset = offset * self.weight.view(channels) + self.bias.view(channels)
        normalised: Tensor = (parts * scale + offset).flatten(0, 1).to(x.dtype)
        return normalised


class RobustBatchNorm(_BatchNorm):
    r"""BatchNorm that normalises by its running statistics, after moving them towards the batch's when training.

    .. math:: \mu \leftarrow (1 - \alpha) \mu + \alpha \mu_B, \qquad v \leftarrow (1 - \alpha) v + \alpha v_B

    with the biased variance of the batch, and gradients through the batch's part (RoTTA, Yuan et al., 2023).
    """

    alpha: float

    def forward(self, x: Tensor) -> Tensor:
        """Normalise a batch, (batch, channels, ...)."""
        if not self.training:
            return super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        dims = [dim for dim in range(x.ndim) if dim != 1]
        precise = x.to(self.running_mean.dtype)
        variance, mean = current().var_mean(precise, dims, correction=0)
        mean = torch.lerp(self.running_mean, mean, self.alpha)
        variance = torch.lerp(self.running_var, variance, self.alpha)
        self.running_mean.copy_(mean.detach())
        self.running_var.copy_(variance.detach())
        scale = torch.rsqrt(variance + self.eps)
        offset = -mean * scale
        if self.affine:
            scale, offset = scale * self.weight, offset * self.weight + self.bias
        shape = (1, -1, *[1] * (x.ndim - 2))
        return (precise * scale.view(shape) + offset.view(shape)).to(x.dtype)

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept what the layer it was made from accepts."""


def make_robust(net: nn.Module, alpha: float) -> None:
    """Turn torch's BatchNorm layers that have running statistics into `RobustBatchNorm`, keeping their tensors."""
    for norm in batch_norms(net):
        if type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) and norm.running_mean is not None:
            norm.__class__ = RobustBatchNorm
            norm.alpha = alpha  # type: ignore[assignment]


def keep_views_apart(net: nn.Module) -> bool:
    """Let the network take many views as one batch, see `use_batch_statistics`; parameters stay where they are.

    Returns False, with nothing changed, if a layer is of another kind than ``nn.BatchNorm2d``.
    """
    norms = list(batch_norms(net))
    if any(type(norm) not in (nn.BatchNorm2d, _ViewBatchNorm2d) for norm in norms):
        return False
    for norm in norms:
        norm.__class__ = _ViewBatchNorm2d
    return True


@contextmanager
def order_of_layers(net: nn.Module) -> Iterator[list[_BatchNorm]]:
    """Collect inside the block the BatchNorm layers with running statistics, in the order in which they run."""
    found = list[_BatchNorm]()
    hooks = [
        norm.register_forward_pre_hook(lambda module, _: found.append(module))
        for norm in batch_norms(net)
        if norm.running_mean is not None
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def join_views(net: nn.Module) -> None:
    """Undo `keep_views_apart`: the layers are torch's own again."""
    for norm in batch_norms(net):
        if type(norm) is _ViewBatchNorm2d:
            norm.__class__ = nn.BatchNorm2d  # type: ignore[assignment]
            for name in ("views", "corrected", "combined", "scale", "offset", "_latest"):
                vars(norm).pop(name, None)


@torch.no_grad()
def reestimate_statistics(net: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics by their plain average over ``batches``, with the network in eval mode."""
    norms = [norm for norm in batch_norms(net) if norm.running_mean is not None]
    was_training = {module: module.training for module in net.modules()}
    momenta = [norm.momentum for norm in norms]
    net.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's way to ask for the cumulative average
        norm.training = True
    try:
        for images in batches:
            net(images)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, training in was_training.items():
            module.training = training
