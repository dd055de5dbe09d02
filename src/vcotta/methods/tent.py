"""TENT: entropy minimisation on the normalisation layers (Wang et al., ICLR 2021)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from torch import Tensor, nn

from vcotta.methods.base import Adapter, OptimizerName
from vcotta.methods.checks import check_fields
from vcotta.methods.losses import entropy

__all__ = ["TENT", "TENTConfig"]

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)


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
    Config = TENTConfig

    def setup(self, model: nn.Module) -> None:
        """Let scale and shift of the normalisation layers require gradients, nothing else."""
        model.requires_grad_(False)
        trained = [
            parameter.requires_grad_(True)
            for module in model.modules()
            if isinstance(module, _NORMS)
            for parameter in module.parameters(recurse=False)
        ]
        self.networks = {"model": model}
        if trained:
            self.make_optimizer(trained, self.config.optimizer, self.config.lr)
        else:
            warnings.warn(
                f"{type(model).__name__} has no normalisation layer with scale and shift, and TENT trains nothing "
                "else: it will predict without adapting.",
                stacklevel=2,
            )

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, then one step on the mean entropy."""
        log_probs = self.logits(self.networks["model"], images).log_softmax(-1)
        loss = entropy(log_probs).mean()
        self.note(entropy=loss.detach())
        if self.optimizer is not None:
            self.minimise(loss)
        return log_probs
