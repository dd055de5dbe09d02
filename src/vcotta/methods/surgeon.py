"""SURGEON: weight gradients from the activations that matter most (Ma et al., CVPR 2025)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.validation import Count, NonNegative
from vcotta._util.warn import warn
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.losses import cross_entropy, entropy
from vcotta.methods.parts.reliable import entropy_ceiling, is_below, masked_mean
from vcotta.methods.registry import register_method
from vcotta.nn.views import random_view

__all__ = ["SURGEON", "SURGEONConfig"]


@dataclass(frozen=True)
class SURGEONConfig(StreamSettings):
    """Settings of SURGEON; defaults for CIFAR10-C from the official code.

    Attributes:
        lr: Step size of Adam. ``normalisation``: CIFAR10-C 1e-3, CIFAR100-C 3e-4, ImageNet-C 2e-4; ``all``: 2.2e-5,
            1e-5, 5e-6, which `build_adapter` chooses by ``layers``.
        layers: Whose weights are trained: the scales of the ``normalisation`` layers, SURGEON (BN) in the paper, or
            those of ``all`` convolutions, normalisation and linear layers.
        probe: Images of the batch on which the layers' importance is measured (10).
        margin: Entropy below which an image is learned from, as a share of log C (0.4; for ImageNet-C, where the
            official code has none, the share is ours).
        consistency: Weight of the consistency, times the number of classes (0.01).
        flip: Whether views may mirror the image; not where left and right matter, as in digits.
    """

    lr: NonNegative = 1e-3
    layers: Literal["normalisation", "all"] = "normalisation"
    probe: Count = 10
    margin: NonNegative = 0.4
    consistency: NonNegative = 0.01
    flip: bool = True


@register_method
class SURGEON(Adapter):
    r"""Each layer computes its weight's gradient from a share of its input, larger for more important layers.

    The gradient :math:`g_l` of the mean entropy of a few images and the size :math:`m_l` of each layer's input give its
    importance

    .. math:: I_l = \frac{\|g_l\|_2}{\sqrt{N_l}} \log \frac{\sum_k m_k}{m_l}

    (:math:`N_l` weights; the sum is over all convolutions, normalisation and linear layers). The share
    :math:`I_l / \max_k I_k` of its input, the entries largest in magnitude over the batch, is kept for the gradient of
    its weight; gradients of inputs are exact. Then one step of Adam, whose moments are kept from batch to batch, on

    .. math::
        L = \mathrm{mean}_{H_i < E} \, e^{E - H_i} H_i
        + \lambda C \, \mathrm{mean}_i \mathrm{CE}(p_i \to p(\tilde x_i)), \quad E = 0.4 \log C,

    with a constant factor before the entropy and gradients through both predictions of the consistency. No bias is
    trained, as in the official code. The scale of a normalisation layer gets the gradient for the pruned input,
    normalised by its own statistics.

    Differs from the official code: sizes and gradients are paired by layer (its BN variant pairs them by order, over
    layers of all kinds); importance is that of the probe alone (there its gradient is added to what the last step
    left); the gradients of BatchNorm are those of its forward pass, without factors from running statistics; with no
    image below the margin the entropy term is 0 instead of NaN; LayerNorm and GroupNorm count as normalisation layers.
    ``last["kept"]`` is the share a cache would hold, but no memory is saved, nor by the official code: the exact
    gradients of BatchNorm need its whole input. The host waits once a batch for the shares.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> SURGEON(net)(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "surgeon"
    summary = "weight gradients from pruned activations"
    card = Card("CVPR 2025", "normalisation", "nothing", "3 forwards, 2 backwards", "official code")
    Config = SURGEONConfig
    datasets: ClassVar = {"cifar100": {"lr": 3e-4}, "imagenet": {"lr": 2e-4}, "digits": {"flip": False}}

    @classmethod
    def settings_for(cls, dataset: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a data set; all layers take a smaller step than normalisation alone."""
        found = super().settings_for(dataset, options)
        if options.get("layers") == "all":
            found["lr"] = {"cifar100": 1e-5, "imagenet": 5e-6}.get(dataset or "", 2.2e-5)
        return found

    def setup(self, model: nn.Module) -> None:
        """Let the chosen weights require gradients, and make their layers prunable."""
        model.requires_grad_(False)
        self.networks = {"model": model}
        self.layers = teach_pruning(model)
        kinds = Prunable if self.config.layers == "all" else PrunableNorm
        self.trained = [layer for layer in self.layers if isinstance(layer, kinds) and layer.weight is not None]
        if not self.trained:
            warn(
                f"{type(model).__name__} has no normalisation layer with a scale, and SURGEON trains nothing else: it "
                "will predict without adapting."
            )
            return
        self.make_optimizer([layer.weight.requires_grad_(True) for layer in self.trained], "adam", self.config.lr)

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Measure the layers' importance, predict, then one step with pruned gradients."""
        config, model = self.config, self.networks["model"]
        if self.optimizer is None:
            return self.logits(model, images).log_softmax(-1)
        for layer, share in zip(self.trained, self._shares(images), strict=True):
            layer.share = share
        log_probs = self.logits(model, images).log_softmax(-1)
        view = self.runtime.place_images(random_view(images, flip=config.flip))
        seen = self.logits(model, view).log_softmax(-1)
        classes = log_probs.shape[1]
        entropies, ceiling = entropy(log_probs), entropy_ceiling(config.margin, log_probs)
        weights = (ceiling - entropies.detach()).exp()
        loss = masked_mean(weights * entropies, is_below(entropies.detach(), ceiling))
        loss = loss + config.consistency * classes * cross_entropy(log_probs, seen).mean()
        kept = sum(layer.kept for layer in self.trained) / max(1, sum(layer.size for layer in self.trained))
        self.note(kept=kept, backwards=1)
        self.minimise(loss)
        return log_probs

    def _shares(self, images: Tensor) -> list[float]:
        """The share of its input that each trained layer keeps, from an unpruned pass over some images."""
        chosen = torch.randperm(len(images))[: self.config.probe].to(images.device, non_blocking=True)
        for layer in self.layers:
            layer.share, layer.size = None, 0
        logits = self.logits(self.networks["model"], self.runtime.place_images(images[chosen]))
        loss = entropy(logits.log_softmax(-1)).mean()
        weights = [layer.weight for layer in self.trained]
        gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
        total = sum(layer.size for layer in self.layers)
        return kept_shares(gradients, [layer.size for layer in self.trained], total)


def kept_shares(gradients: tuple[Tensor, ...], sizes: list[int], total: int) -> list[float]:
    """Importance of layers by gradient and memory, over the largest one; all 1 if none is important."""
    norms = torch.stack(torch._foreach_norm(gradients)).double()
    factors = [
        math.log(total / max(1, size)) / math.sqrt(gradient.numel())
        for gradient, size in zip(gradients, sizes, strict=True)
    ]
    importance = norms * torch.tensor(factors, dtype=torch.float64).to(norms.device, non_blocking=True)
    highest = importance.max()
    shares: list[float] = torch.where(highest > 0, importance / highest, 1.0).tolist()
    return shares


class Prunable(nn.Module):
    """A layer that can drop the smallest entries of its input when it computes the gradient of its weight.

    Attributes:
        share: Share of the input that is kept; None for a plain layer.
        size: Entries of the latest input.
        kept: How many of them are kept.
    """

    weight: Any  # a parameter, or None without one
    share: float | None = None
    size: int = 0
    kept: int = 0

    def forward(self, x: Tensor) -> Tensor:
        """Compute as the plain layer; the gradient of the weight is for the pruned input."""
        self.size = self.kept = x.numel()
        if self.share is None:
            return self.compute(x, self.weight)
        self.kept = int(self.size * self.share)
        output: Tensor = _PrunedGradient.apply(self.compute(x, self.weight.detach()), x, self.weight, self)
        return output

    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        """The layer's output for another weight."""
        raise NotImplementedError


class _PrunedGradient(torch.autograd.Function):
    """The identity on a layer's output, with the gradient of the layer's weight for its pruned input."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, x: Tensor, weight: Tensor, layer: Prunable) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x, largest(x, layer.kept))
        ctx.mark_dirty(output)  # so that what follows may work in place
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor, None]:
        x, kept = ctx.saved_tensors
        half = gradient.dtype == torch.bfloat16
        with torch.enable_grad(), torch.autocast(x.device.type, torch.bfloat16, enabled=half):
            weight = ctx.layer.weight.detach().requires_grad_(True)
            output = ctx.layer.compute(torch.where(kept, x.detach(), 0).to(gradient.dtype), weight)
        (pruned,) = torch.autograd.grad(output, weight, gradient.to(output.dtype))
        return gradient, None, pruned, None


def largest(x: Tensor, count: int) -> Tensor:
    """Mask of exactly ``count`` entries of largest magnitude."""
    if count == x.numel():
        return torch.ones((), dtype=torch.bool, device=x.device)
    places = x.detach().abs().flatten().topk(count, sorted=False).indices
    return torch.zeros(x.numel(), dtype=torch.bool, device=x.device).index_fill_(0, places, True).view(x.shape)


class _PrunableConv2d(Prunable, nn.Conv2d):
    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        output: Tensor = self._conv_forward(x, weight, self.bias)
        return output


class _PrunableLinear(Prunable, nn.Linear):
    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight, self.bias)


class PrunableNorm(Prunable):
    """A normalisation layer, whose weight is a scale."""


class _PrunableBatchNorm(PrunableNorm, nn.modules.batchnorm._BatchNorm):
    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        of_batch = self.training or self.running_mean is None
        mean, variance = (None, None) if of_batch else (self.running_mean, self.running_var)
        return F.batch_norm(x, mean, variance, weight, self.bias, of_batch, 0.0, self.eps)


class _PrunableBatchNorm1d(_PrunableBatchNorm, nn.BatchNorm1d):
    pass


class _PrunableBatchNorm2d(_PrunableBatchNorm, nn.BatchNorm2d):
    pass


class _PrunableGroupNorm(PrunableNorm, nn.GroupNorm):
    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, weight, self.bias, self.eps)


class _PrunableLayerNorm(PrunableNorm, nn.LayerNorm):
    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, weight, self.bias, self.eps)


_KINDS: dict[type[nn.Module], type[Prunable]] = {
    nn.Conv2d: _PrunableConv2d,
    nn.Linear: _PrunableLinear,
    nn.BatchNorm1d: _PrunableBatchNorm1d,
    nn.BatchNorm2d: _PrunableBatchNorm2d,
    nn.GroupNorm: _PrunableGroupNorm,
    nn.LayerNorm: _PrunableLayerNorm,
}


def teach_pruning(net: nn.Module) -> list[Prunable]:
    """Make torch's layers of the known kinds, not subclasses of them, prunable in place; outputs do not change."""
    layers = []
    for module in net.modules():
        if type(module) in _KINDS:
            module.__class__ = _KINDS[type(module)]
            layers.append(module)
    return layers  # type: ignore[return-value]
