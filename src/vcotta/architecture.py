"""A network's architecture as plain data, so that a saved adapter can be rebuilt without pickle."""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

from torch import nn

from vcotta.batch_norm import batch_norms
from vcotta.bayes import is_variational, to_point, to_variational

__all__ = ["build", "describe"]

_CONTAINERS = (nn.Sequential, nn.ModuleList)


def describe(model: nn.Module) -> dict[str, Any]:
    """Describe a network by its class and constructor arguments, read from attributes of the same names.

    ``nn.Sequential`` is described by its parts. The printed form of the network goes along: `build` compares it, so
    that a network changed after its construction is refused rather than rebuilt wrongly.

    Example:
        >>> describe(nn.Flatten())["network"]
        {'class': 'torch.nn.modules.flatten:Flatten', 'arguments': {'start_dim': 1, 'end_dim': -1}}
    """
    point = to_point(model)
    for norm in batch_norms(point):  # an adapter's networks have stopped tracking, but keep what they were built with
        norm.track_running_stats = norm.running_mean is not None
    return {"variational": is_variational(model), "printed": repr(point), "network": _describe(point)}


def build(description: dict[str, Any]) -> nn.Module:
    """Make a network, with fresh weights, from its description.

    Only classes derived from ``nn.Module`` whose Python module the caller has already imported are built: a file can
    name a class, it cannot have code imported or run.

    Raises:
        ValueError: If the network cannot be rebuilt faithfully; the text says to pass ``model=``.
    """
    try:
        model = _build(description["network"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"The saved network cannot be rebuilt ({error}). Pass it yourself: load(path, model=...)."
        ) from error
    if repr(model) != description["printed"]:
        raise ValueError(
            "The saved network was changed after its construction, so it cannot be rebuilt from its class alone. "
            "Pass it yourself: load(path, model=...)."
        )
    return to_variational(model, unsupported="keep") if description["variational"] else model


def _describe(module: nn.Module) -> dict[str, Any]:
    kind = type(module)
    described: dict[str, Any] = {"class": f"{kind.__module__}:{kind.__qualname__}"}
    if kind in _CONTAINERS:
        described["parts"] = {name: _describe(part) for name, part in module.named_children()}
        return described
    arguments = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        value = getattr(module, name, parameter.default)
        if name == "bias" and not isinstance(value, bool):
            value = value is not None
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and _is_plain(value):
            arguments[name] = value
    described["arguments"] = arguments
    return described


def _is_plain(value: Any) -> bool:
    if value is inspect.Parameter.empty:
        return False
    try:
        return bool(json.loads(json.dumps(value)) is not None or value is None)
    except (TypeError, ValueError):
        return False


def _build(described: dict[str, Any]) -> nn.Module:
    place, _, name = described["class"].partition(":")
    kind: Any = sys.modules.get(place)
    if kind is None:
        raise ValueError(f"{place} has not been imported")
    for part in name.split("."):
        kind = getattr(kind, part, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ValueError(f"{described['class']} is not a network class")
    if kind is nn.Sequential:
        container = nn.Sequential()
        for key, part in described["parts"].items():
            container.add_module(key, _build(part))
        return container
    if kind is nn.ModuleList:
        return nn.ModuleList(_build(part) for part in described["parts"].values())
    arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in described["arguments"].items()}
    module = kind(**arguments)
    assert isinstance(module, nn.Module)
    return module
