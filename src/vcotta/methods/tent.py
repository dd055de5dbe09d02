"""TENT: entropy minimisation on the normalisation layers (Wang et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from vcotta.fields import check_fields
from vcotta.methods.base import Adapter, OptimizerName
from vcotta.methods.facts import Facts
from vcotta.methods.losses import entropy
from vcotta.methods.norm_layers import train_only_normalisation

__all__ = ["TENT", "TENTConfig"]


@dataclass(frozen=True)
class TENTConfig:
    """Settings of TENT; defaults for CIFAR from the official configuration.

    Attributes:
        lr: Step size (CIFAR10-C and CIFAR100-C 1e-3, ImageNet-C 2.5e-4).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C.
    """

    lr: float = 1e-3
    optimizer: OptimizerName = "adam"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.lr < 0:
            raise ValueError(f"Expected `lr` to be at least 0, but got {self.lr}.")


class TENT(Adapter):
    """Minimise the mean entropy of the predictions over scale and shift of the normalisation layers.

    Statistics are those of the batch. The returned prediction is the one whose entropy was minimised, from before
    the step. LayerNorm and GroupNorm count as normalisation layers too; the official code knows BatchNorm2d alone.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = TENT(net, TENTConfig(lr=1e-2))
        >>> _ = adapter(torch.rand(4, 3, 8, 8))
        >>> sorted(adapter.last)
        ['backwards', 'entropy', 'forwards', 'loss', 'skipped']
    """

    name = "tent"
    summary = "entropy minimisation over normalisation layers"
    facts = Facts("ICLR 2021", "normalisation", "nothing", "1 forward, 1 backward", "official code", distributed=True)
    Config = TENTConfig
    datasets: ClassVar = {"imagenet": {"lr": 2.5e-4, "optimizer": "sgd"}, "digits": {"lr": 1e-2}}

    def setup(self, model: nn.Module) -> None:
        """Let scale and shift of the normalisation layers require gradients, nothing else."""
        trained = train_only_normalisation(model, "TENT")
        self.networks = {"model": model}
        if trained:
            self.make_optimizer(trained, self.config.optimizer, self.config.lr)

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, then one step on the mean entropy."""
        log_probs = self.logits(self.networks["model"], images).log_softmax(-1)
        loss = entropy(log_probs).mean()
        self.note(entropy=loss.detach())
        if self.optimizer is not None:
            self.minimise(loss)
        return log_probs
