"""Scale and shift of the normalisation layers, all that many methods train."""

from __future__ import annotations

import warnings

from torch import Tensor, nn

__all__ = ["train_only_normalisation"]

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)


def train_only_normalisation(model: nn.Module, method: str, skip: tuple[str, ...] = ()) -> list[Tensor]:
    """Let scale and shift of the normalisation layers require gradients, nothing else, and return them.

    LayerNorm, GroupNorm and InstanceNorm count beside BatchNorm. A network without any is warned about once: the method
    will predict without adapting.

    Args:
        model: The network.
        method: Who asks, for the warning.
        skip: Layers whose name contains one of these words stay as they are.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
        >>> [tuple(p.shape) for p in train_only_normalisation(net, "tent")]
        [(2,), (2,)]
    """
    model.requires_grad_(False)
    trained: list[Tensor] = [
        parameter.requires_grad_(True)
        for name, module in model.named_modules()
        if isinstance(module, _NORMS) and not any(word in name for word in skip)
        for parameter in module.parameters(recurse=False)
    ]
    if not trained:
        warnings.warn(
            f"{type(model).__name__} has no normalisation layer with scale and shift, and {method} trains nothing "
            "else: it will predict without adapting.",
            stacklevel=3,
        )
    return trained
