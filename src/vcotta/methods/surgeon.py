"""SURGEON: weight gradients from the activations that matter most (Ma et al., CVPR 2025)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.fields import check_fields
from vcotta.methods.base import Adapter
from vcotta.methods.facts import Facts
from vcotta.methods.losses import cross_entropy, entropy
from vcotta.views import random_view

__all__ = ["SURGEON", "SURGEONConfig"]


@dataclass(frozen=True)
class SURGEONConfig:
    """Settings of SURGEON; defaults for CIFAR10-C from the official code.

    Attributes:
        lr: Step size of Adam. ``normalisation``: CIFAR10-C 1e-3, CIFAR100-C 3e-4, ImageNet-C 2e-4; ``all``: 2.2e-5,
            1e-5, 5e-6, which `build_adapter` takes by itself.
        layers: Whose weights are trained: the scales of the ``normalisation`` layers, SURGEON (BN) in the paper, or
            those of ``all`` convolutions, normalisation and linear layers.
        probe: Images of the batch on which the layers' importance is measured (10).
        margin: Entropy below which an image is learned from, as a share of log C (0.4; the official code has none for
            ImageNet-C, where the same share is ours).
        consistency: Weight of the consistency, times the number of classes (0.01).
        flip: Whether views may mirror the image.
    """

    lr: float = 1e-3
    layers: Literal["normalisation", "all"] = "normalisation"
    probe: int = 10
    margin: float = 0.4
    consistency: float = 0.01
    flip: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("lr", "margin", "consistency"):
            if getattr(self, name) < 0:
                raise ValueError(f"Expected `{name}` to be at least 0, but got {getattr(self, name)}.")
        if self.probe < 1:
            raise ValueError(f"Expected `probe` to be at least 1, but got {self.probe}.")


class SURGEON(Adapter):
    r"""Each layer computes its weight's gradient from a share of its input, the more important the layer the larger.

    The gradient :math:`g_l` of the mean entropy of a few images and the size :math:`m_l` of each layer's input give its
    importance

    .. math:: I_l = \frac{\|g_l\|_2}{\sqrt{N_l}} \log \frac{\sum_k m_k}{m_l}

    (:math:`N_l` weights, the sum over all convolutions, normalisation and linear layers), and the share
    :math:`I_l / \max_k I_k` of its input, the entries largest in magnitude over the whole batch, that is kept for the
    gradient of its weight; gradients of inputs are exact. Then one step of Adam, which is kept from batch to batch, on

    .. math::
        L = \mathrm{mean}_{H_i < E} \, e^{E - H_i} H_i
        + \lambda C \, \mathrm{mean}_i \mathrm{CE}(p_i \to p(\tilde x_i)), \quad E = 0.4 \log C,

    the factor before the entropy without gradient, gradients through both predictions of the consistency. No bias is
    trained, as in the official code. The scale of a normalisation layer gets the gradient for the pruned input
    normalised as the layer does it, by its own statistics.

    Differs from the official code: sizes and gradients are paired by layer (its BN variant pairs them by order, over
    layers of all kinds); importance is that of the probe alone (its gradient there is added to what the last batch's
    step left behind, so that other shares are kept); the gradients of BatchNorm are those of its forward pass, without
    factors from running statistics, which are not moved at all; with no image below the margin the entropy is 0 instead
    of not a number; LayerNorm and GroupNorm count as normalisation layers. What a cache of the kept entries would hold
    is noted as ``kept``, but here no memory is saved: the exact gradients of BatchNorm need its whole input, which the
    official code keeps as well. The host has to know the shares, and waits for them once a batch.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = SURGEON(net)
        >>> _ = adapter(torch.rand(4, 3, 8, 8))
        >>> adapter.last["kept"]  # the only layer trained is the most important one
        1.0
    """

    name = "surgeon"
    summary = "weight gradients from pruned activations"
    facts = Facts("CVPR 2025", "normalisation", "nothing", "3 forwards, 2 backwards", "official code")
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
        """Let the chosen weights require gradients, which may be pruned."""
        model.requires_grad_(False)
        self.networks = {"model": model}
        self.layers = teach_pruning(model)
        kinds = _Prunable if self.config.layers == "all" else _PrunableNorm
        self.trained = [layer for layer in self.layers if isinstance(layer, kinds) and layer.weight is not None]
        if not self.trained:
            warnings.warn(
                f"{type(model).__name__} has no normalisation layer with a scale, and SURGEON trains nothing else: it "
                "will predict without adapting.",
                stacklevel=3,
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
        loss = certain_entropy(log_probs, config.margin * math.log(classes))
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
    """Importance of layers by gradient and memory, over the largest one; all 1 if none is important.

    Example:
        >>> kept_shares((torch.ones(4), torch.full((9,), 0.5)), sizes=[10, 10], total=40)
        [1.0, 0.5]
    """
    norms = torch.stack(torch._foreach_norm(gradients)).double()
    factors = [
        math.log(total / max(1, size)) / math.sqrt(gradient.numel())
        for gradient, size in zip(gradients, sizes, strict=True)
    ]
    importance = norms * torch.tensor(factors, dtype=torch.float64).to(norms.device, non_blocking=True)
    highest = importance.max()
    shares: list[float] = torch.where(highest > 0, importance / highest, 1.0).tolist()
    return shares


def certain_entropy(log_probs: Tensor, margin: float) -> Tensor:
    """Mean of the entropies below ``margin``, each weighted by exp(margin - entropy); 0 if there are none.

    Example:
        >>> certain_entropy(torch.zeros(3, 4).log_softmax(-1), margin=1.0)
        tensor(0.)
    """
    entropies = entropy(log_probs)
    sure = entropies < margin
    weights = sure * torch.exp(margin - entropies.detach())
    return (weights * entropies).sum() / sure.sum().clamp_min(1)


class _Prunable(nn.Module):
    """A layer that can leave out the smallest entries of its input when the gradient of its weight is computed.

    Attributes:
        share: Share of the input that is kept; None for a plain layer.
        size: Entries of the latest input, and ``kept`` of them.
    """

    weight: Any  # a parameter, or None without one
    share: float | None = None
    size: int = 0
    kept: int = 0

    def forward(self, x: Tensor) -> Tensor:
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
    """The identity on a layer's output, which adds the gradient of the layer's weight for its pruned input."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, x: Tensor, weight: Tensor, layer: _Prunable) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x, _largest(x, layer.kept))
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


def _largest(x: Tensor, count: int) -> Tensor:
    """Where the entries of largest magnitude are, exactly ``count`` of them."""
    if count == x.numel():
        return torch.ones((), dtype=torch.bool, device=x.device)
    places = x.detach().abs().flatten().topk(count, sorted=False).indices
    return torch.zeros(x.numel(), dtype=torch.bool, device=x.device).index_fill_(0, places, True).view(x.shape)


class _PrunableConv2d(_Prunable, nn.Conv2d):
    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        output: Tensor = self._conv_forward(x, weight, self.bias)
        return output


class _PrunableLinear(_Prunable, nn.Linear):
    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight, self.bias)


class _PrunableNorm(_Prunable):
    """A normalisation layer, whose weight is a scale."""


class _PrunableBatchNorm(_PrunableNorm, nn.modules.batchnorm._BatchNorm):
    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        of_batch = self.training or self.running_mean is None
        mean, variance = (None, None) if of_batch else (self.running_mean, self.running_var)
        return F.batch_norm(x, mean, variance, weight, self.bias, of_batch, 0.0, self.eps)


class _PrunableBatchNorm1d(_PrunableBatchNorm, nn.BatchNorm1d):
    pass


class _PrunableBatchNorm2d(_PrunableBatchNorm, nn.BatchNorm2d):
    pass


class _PrunableGroupNorm(_PrunableNorm, nn.GroupNorm):
    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, weight, self.bias, self.eps)


class _PrunableLayerNorm(_PrunableNorm, nn.LayerNorm):
    def compute(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, weight, self.bias, self.eps)


_KINDS: dict[type[nn.Module], type[_Prunable]] = {
    nn.Conv2d: _PrunableConv2d,
    nn.Linear: _PrunableLinear,
    nn.BatchNorm1d: _PrunableBatchNorm1d,
    nn.BatchNorm2d: _PrunableBatchNorm2d,
    nn.GroupNorm: _PrunableGroupNorm,
    nn.LayerNorm: _PrunableLayerNorm,
}


def teach_pruning(net: nn.Module) -> list[_Prunable]:
    """Make the layers of the known kinds prunable, in place; parameters and outputs stay what they are.

    Subclasses of these kinds, which may compute something else, are left alone.

    Example:
        >>> [type(layer).__name__ for layer in teach_pruning(nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU()))]
        ['_PrunableConv2d']
    """
    layers = []
    for module in net.modules():
        if type(module) in _KINDS:
            module.__class__ = _KINDS[type(module)]
            layers.append(module)
    return layers  # type: ignore[return-value]
