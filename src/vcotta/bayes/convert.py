"""From a plain network to a variational one and back, keeping every name."""

from __future__ import annotations

import copy
import math
from typing import Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from vcotta._util.errors import unknown_name
from vcotta.bayes.attention import VariationalMultiheadAttention, VariationalOutProjection
from vcotta.bayes.layers import (
    VariationalConv1d,
    VariationalConv2d,
    VariationalLayer,
    VariationalLinear,
    is_variational,
    variational_layers,
)

__all__ = ["to_point", "to_variational"]

_SIGMA_FLOOR = 1e-6  # for a layer of zeros

_VARIATIONAL: dict[type[nn.Module], type[VariationalLayer]] = {
    nn.Conv1d: VariationalConv1d,
    nn.Conv2d: VariationalConv2d,
    nn.Linear: VariationalLinear,
    NonDynamicallyQuantizableLinear: VariationalOutProjection,
    nn.MultiheadAttention: VariationalMultiheadAttention,
}
_POINT = {variational: point for point, variational in _VARIATIONAL.items()}

Net = TypeVar("Net", bound=nn.Module)


def to_variational(
    model: Net, sigma_ratio: float = 0.3, inplace: bool = False, *, unsupported: Literal["error", "keep"] = "error"
) -> Net:
    r"""Turn every Conv1d, Conv2d, Linear and MultiheadAttention into its variational form; weights become the means.

    The standard deviation starts relative to the layer, sigma0 = sigma_ratio * rms(weight), for weight and bias alike,
    and is at least 1e-6. The authors start every layer at rho = -4 (sigma = 0.018), more than most weights of our
    WRN-28-10 themselves. Normalisation layers, class tokens and position embeddings stay as they are. The result
    computes exactly what ``model`` does.

    Args:
        model: Any network.
        sigma_ratio: r in sigma0 = r * rms(weight).
        inplace: Convert ``model`` itself instead of a copy. Hooks, tied modules and references stay valid.
        unsupported: What to do about layers that cannot be converted (a subclass, a parametrised or computed weight):
            ``"error"`` names them, ``"keep"`` leaves them as point parameters.

    Raises:
        ValueError: If nothing can be converted, a layer is unsupported, or the network is variational already.

    Example:
        >>> net = to_variational(nn.Sequential(nn.Linear(4, 2)))
        >>> [name for name, _ in net.named_parameters()]
        ['0.weight', '0.bias', '0.weight_rho', '0.bias_rho']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"Expected `model` to be a torch.nn.Module, but got {type(model).__name__}.")
    if isinstance(sigma_ratio, bool) or not 0 < sigma_ratio < float("inf"):
        raise ValueError(f"Expected `sigma_ratio` to be positive and finite, but got {sigma_ratio}. Try 0.3.")
    if unsupported not in ("error", "keep"):
        raise unknown_name("unsupported", unsupported, ("error", "keep"))
    if is_variational(model):
        raise ValueError("Expected a plain network, but got a variational one. Use it as it is, or to_point first.")
    plain, kept = [], list[nn.Module]()
    for name, module in model.named_modules():
        if any(module is part for attention in kept for part in attention.modules()):
            continue  # attention that stays as it is reads the weights of its output projection without calling it
        if reason := _why_not(module):
            if unsupported == "error":
                raise ValueError(
                    f"Cannot make {name or 'the model itself'!r} ({type(module).__name__}) variational: {reason}. "
                    "Or leave such layers as point parameters: unsupported='keep' in Python, `vcotta warmup "
                    "--unsupported keep` at the command line."
                )
            kept += [module] if isinstance(module, nn.MultiheadAttention) else []
        elif type(module) in _VARIATIONAL:
            if not math.isfinite(_rms(_weights(module))):
                raise ValueError(f"Expected finite weights, but those of {name or 'the model itself'!r} are not.")
            plain.append(name)
    if not plain:
        raise ValueError(
            f"Expected a network with a Conv1d, Conv2d, Linear or MultiheadAttention layer, but {type(model).__name__} "
            "has none to convert."
        )
    net = model if inplace else copy.deepcopy(model)
    shared: dict[int, nn.Parameter] = {}  # a weight tied between layers keeps one standard deviation
    for name in plain:
        layer = net.get_submodule(name)
        # Changing the class keeps the module's identity, and so its hooks and all references to it.
        layer.__class__ = _VARIATIONAL[type(layer)]
        assert isinstance(layer, VariationalLayer)
        layer._attach(max(sigma_ratio * _rms(_weights(layer)), _SIGMA_FLOOR))
        for kind, mean, rho in layer.gaussians():
            setattr(layer, f"{kind}_rho", shared.setdefault(id(mean), rho))
    return net


def to_point(model: Net, inplace: bool = False) -> Net:
    """Drop the standard deviations: return a plain network at the means, a copy unless ``inplace``.

    Example:
        >>> plain = nn.Linear(4, 2)
        >>> list(to_point(to_variational(plain)).state_dict()) == list(plain.state_dict())
        True
    """
    net = model if inplace else copy.deepcopy(model)
    for _, layer in list(variational_layers(net)):
        layer._detach()
        cast(nn.Module, layer).__class__ = _POINT[type(layer)]
    return net


def _why_not(module: nn.Module) -> str | None:
    """Why a layer of a convertible kind cannot be converted; None if it can, or is of another kind."""
    if not isinstance(module, tuple(_VARIATIONAL)):
        return None
    if hasattr(module, "parametrizations"):
        return "its weight is parametrised; remove that with torch.nn.utils.parametrize.remove_parametrizations"
    if type(module) not in _VARIATIONAL:
        return "it is a subclass whose forward may use the weights in its own way"
    if not _weights(module):
        return "its weight is computed by a hook (weight or spectral norm, pruning); remove the hook first"
    return None


def _weights(layer: nn.Module) -> list[Tensor]:
    """The weights of a layer of a convertible kind, without biases."""
    names = ("weight", "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    found = (layer._parameters.get(name) for name in names)
    return [weight for weight in found if weight is not None]


def _rms(weights: list[Tensor]) -> float:
    """The root mean square of all of them together."""
    values = torch.cat([weight.detach().double().flatten() for weight in weights])
    return values.square().mean().sqrt().item() if values.numel() else 0.0
