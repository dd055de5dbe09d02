"""PALM: layers chosen and step sizes set by the network's uncertainty (Maharana et al., AAAI 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vcotta._util.validation import NonNegative, Positive, UnitInterval
from vcotta._util.warn import warn
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.losses import cross_entropy, entropy
from vcotta.methods.parts.reliable import is_below, masked_mean
from vcotta.methods.registry import register_method
from vcotta.nn.optim import AdamFirstStep
from vcotta.nn.views import random_view

__all__ = ["PALM", "PALMConfig"]

_TRAINED = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.Conv2d)
_EPS = 1e-8  # of the ratio, and of Adam


@dataclass(frozen=True)
class PALMConfig(StreamSettings):
    """Settings of PALM; defaults for CIFAR10-C from the official configuration.

    Attributes:
        lr: Step size that the ratios multiply (CIFAR 5e-4, ImageNet-C 5e-5).
        weight_decay: L2 penalty, as Adam adds it (CIFAR10-C and ImageNet-C 0, CIFAR100-C 5e-4).
        decay: beta_3, the share of the moving sensitivity that stays, 1 - alpha in the paper (0.5; CIFAR100-C 0.1).
        temperature: Of the softmax whose distance from the uniform distribution chooses the tensors (CIFAR10-C 50,
            CIFAR100-C 100, ImageNet-C 1000).
        threshold: eta: a tensor is chosen if the L1 norm of its gradient is at most this (CIFAR10-C 1, CIFAR100-C 0.5,
            ImageNet-C 0.3).
        consistency: lambda: weight of the consistency, times the number of classes (0.01).
        margin: Entropy in nats below which an image is learned from (0.4).
        freeze_unselected: Whether a tensor that is not chosen stays as it is (paper). In the official code, whose
            numbers are the published ones, one that was chosen before keeps moving with its last step size.
        flip: Whether views may mirror the image; not where left and right matter, as in digits.
    """

    lr: NonNegative = 5e-4
    weight_decay: NonNegative = 0.0
    decay: UnitInterval = 0.5
    temperature: Positive = 50.0
    threshold: NonNegative = 1.0
    consistency: NonNegative = 0.01
    margin: NonNegative = 0.4
    freeze_unselected: bool = False
    flip: bool = True


@register_method
class PALM(Adapter):
    r"""Train the parameter tensors that are still uncertain about the domain, each with its own step size.

    The gradient :math:`g_j` of :math:`\sum_c -\log \mathrm{softmax}(z / T)_c`, averaged over the batch, chooses the
    tensors with :math:`\|g_j\|_1 \le \eta`. Their sensitivity is :math:`s_j = |\theta_j g_j|`, its moving average
    :math:`m_j \leftarrow \beta_3 m_j + (1 - \beta_3) s_j`, and their step size
    :math:`\mathrm{lr} \cdot \mathrm{mean}(|s_j - m_j| / m_j)`; a tensor never chosen does not move. Then one step on

    .. math::
        L = \mathrm{mean}_{H(p_i) < 0.4} H(p_i) + \lambda C \, \mathrm{mean}_i \mathrm{CE}(p_i \to p(\tilde x_i)),

    with gradients through both predictions of the consistency. Weights and biases of convolutions and normalisation
    layers are trained, the classifier is not. The official code makes a new Adam for every batch, whose first step is
    :math:`g / (|g| + \epsilon)`; here that step is taken directly. With no image below the margin the official loss is
    not a number; here its entropy term is then 0.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> PALM(net)(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "palm"
    summary = "tensors and step sizes chosen by uncertainty"
    card = Card(
        "AAAI 2025",
        "convolutions, normalisation",
        "nothing",
        "2 forwards, 2 backwards",
        "official code",
        distributed=True,
    )
    Config = PALMConfig
    datasets: ClassVar = {
        "cifar100": {"weight_decay": 5e-4, "decay": 0.1, "temperature": 100.0, "threshold": 0.5},
        "imagenet": {"lr": 5e-5, "temperature": 1000.0, "threshold": 0.3},
        "digits": {"flip": False},
    }

    def setup(self, model: nn.Module) -> None:
        """Let convolutions and normalisation layers require gradients, nothing else."""
        model.requires_grad_(False)
        for module in model.modules():
            if isinstance(module, _TRAINED):
                for parameter in module.parameters(recurse=False):
                    parameter.requires_grad_(True)
        self.networks = {"model": model}
        trained = self._trained
        if not trained:
            warn(
                f"{type(model).__name__} has neither convolutions nor normalisation layers, and PALM trains nothing "
                "else: it will predict without adapting."
            )
            return
        self.optimizer = AdamFirstStep(trained.values(), self.config.weight_decay, _EPS)
        self.memory = {f"sensitivity.{name}": torch.zeros_like(tensor) for name, tensor in trained.items()}
        self.memory["ratios"] = torch.zeros(len(trained), device=self.runtime.device)

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, set the step sizes, then one step on entropy and consistency."""
        config, model = self.config, self.networks["model"]
        logits = self.logits(model, images)
        log_probs = logits.log_softmax(-1)
        if not isinstance(self.optimizer, AdamFirstStep):
            return log_probs
        view = self.runtime.place_images(random_view(images, flip=config.flip))
        seen = self.logits(model, view).log_softmax(-1)

        selected, ratios, sensitivities = self._look(logits)
        rates = torch.where(selected, ratios, 0.0) if config.freeze_unselected else ratios
        self.optimizer.rates = config.lr * rates
        entropies = entropy(log_probs)
        loss = masked_mean(entropies, is_below(entropies.detach(), config.margin))
        loss = loss + config.consistency * logits.shape[1] * cross_entropy(log_probs, seen).mean()
        self.note(selected=selected.float().mean(), ratio=ratios.mean())
        done = self.minimise(loss)

        self.memory["ratios"] = torch.where(done, ratios, self.memory["ratios"])
        for name, new, chosen in zip(self._trained, sensitivities, selected, strict=True):
            old = self.memory[f"sensitivity.{name}"]
            self.memory[f"sensitivity.{name}"] = torch.where(chosen & done, new, old)
        return log_probs

    @property
    def _trained(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.networks["model"].named_parameters() if p.requires_grad}

    def _look(self, logits: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The chosen tensors, the ratios that multiply the step sizes, and the sensitivities' new averages."""
        trained = self._trained
        loss = uniform_loss(logits, self.config.temperature)
        gradients = self.gradients(loss, list(trained.values()), retain_graph=True)
        with torch.no_grad():
            selected = torch.stack(torch._foreach_norm(gradients, 1)) <= self.config.threshold
            sensitivities = torch._foreach_abs(torch._foreach_mul(list(trained.values()), gradients))
            averages = [self.memory[f"sensitivity.{name}"] for name in trained]
            averages = list(torch._foreach_lerp(averages, sensitivities, 1 - self.config.decay))
            ratios = torch._foreach_abs(torch._foreach_sub(sensitivities, averages))
            ratios = torch._foreach_div(torch._foreach_add(ratios, _EPS), torch._foreach_add(averages, _EPS))
            means = torch.stack([ratio.mean() for ratio in ratios])
            return selected, torch.where(selected, means, self.memory["ratios"]), averages


def uniform_loss(logits: Tensor, temperature: float) -> Tensor:
    r"""Mean over the batch of :math:`\sum_c -\log \mathrm{softmax}(z / T)_c`, lowest for uniform predictions."""
    return -(logits / temperature).log_softmax(-1).sum(-1).mean()
