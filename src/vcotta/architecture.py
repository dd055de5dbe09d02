"""A network's architecture as plain data, so that a saved adapter can be rebuilt without pickle."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vcotta.batch_norm import batch_norms, join_views
from vcotta.bayes import is_variational, to_point, to_variational

__all__ = ["build", "check_shapes", "class_of_script", "describe"]

_CONTAINERS = (nn.Sequential, nn.ModuleList)


def describe(model: nn.Module) -> dict[str, Any]:
    """Describe a network by its class and constructor arguments, read from attributes of the same names.

    ``nn.Sequential`` is described by its parts. The printed form of the network goes along: `build` compares it, so
    that a network changed after its construction is refused rather than rebuilt wrongly. ``problem`` says why a
    network cannot be rebuilt at all, None if it can.

    Example:
        >>> describe(nn.Flatten())["network"]
        {'class': 'torch.nn.modules.flatten:Flatten', 'arguments': {'start_dim': 1, 'end_dim': -1}}
    """
    point = to_point(model)
    join_views(point)
    for norm in batch_norms(point):  # an adapter's networks have stopped tracking, but keep what they were built with
        norm.track_running_stats = norm.running_mean is not None
    network = _describe(point, {})
    return {
        "variational": is_variational(model),
        "printed": repr(point),
        "network": network,
        "problem": _problem(network),
    }


def build(description: dict[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """Make a network, with fresh weights, from its description.

    Only classes derived from ``nn.Module`` whose Python module the caller has already imported are built: a file can
    name a class, it cannot have code imported or run. Nor can it have more memory taken than its tensors need: their
    shapes are compared before anything is allocated.

    Args:
        description: What `describe` returned.
        tensors: The state of a network of this shape.

    Raises:
        ValueError: If the network cannot be rebuilt faithfully; the text says to pass ``model=``.
    """
    try:
        with torch.device("meta"):
            skeleton = _build(description["network"], [])
        check_shapes(skeleton, tensors, type(skeleton).__name__)
        model = _build(description["network"], [])
        printed = description["printed"]
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError, AssertionError) as error:
        raise ValueError(
            f"The saved network cannot be rebuilt ({error}). Pass it yourself: load(path, model=...)."
        ) from error
    if repr(model) != printed:
        raise ValueError(
            "The saved network was changed after its construction, so it cannot be rebuilt from its class alone. "
            "Pass it yourself: load(path, model=...)."
        )
    return to_variational(model, unsupported="keep") if description["variational"] else model


def check_shapes(network: nn.Module, tensors: Mapping[str, Tensor], name: str) -> None:
    """Raise ValueError unless tensors have the names and shapes of a network, deviations of weights left aside.

    Example:
        >>> check_shapes(nn.Linear(2, 1), nn.Linear(3, 1).state_dict(), "this layer")
        Traceback (most recent call last):
        ValueError: Expected the weights of this layer, but 'weight' has shape (1, 3) there and (1, 2) in the network.
    """
    ours = {key: tuple(value.shape) for key, value in network.state_dict().items()}
    theirs = {key: tuple(value.shape) for key, value in tensors.items() if not key.endswith("_rho") or key in ours}
    if ours != theirs:
        odd = next(key for key in (*ours, *theirs) if ours.get(key) != theirs.get(key))
        raise ValueError(
            f"Expected the weights of {name}, but {odd!r} has shape {theirs.get(odd)} there and {ours.get(odd)} in the "
            "network."
        )


def _describe(module: nn.Module, seen: dict[int, int]) -> dict[str, Any]:
    if id(module) in seen:  # one module in two places stays one
        return {"same": seen[id(module)]}
    seen[id(module)] = len(seen)
    kind = type(module)
    described: dict[str, Any] = {"class": f"{kind.__module__}:{kind.__qualname__}"}
    if kind in _CONTAINERS:
        described["parts"] = {name: _describe(part, seen) for name, part in module._modules.items() if part is not None}
        return described
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in ("device", "dtype") and kind.__module__.startswith("torch.nn."):
            continue
        value = getattr(module, name, inspect.Parameter.empty)
        if name == "bias" and value is not inspect.Parameter.empty and not isinstance(value, bool):
            value = value is not None
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) or not _is_plain(value):
            described["problem"] = f"{kind.__name__} does not keep its argument {name!r} as a plain attribute"
            return described
        arguments[name] = value
    described["arguments"] = arguments
    return described


def class_of_script(description: dict[str, Any]) -> str | None:
    """The name of a class that the running script defines, which another process does not have; None for no such.

    Example:
        >>> class_of_script(describe(nn.Flatten())) is None
        True
    """
    return next((name for place, name in _classes(description["network"]) if place == "__main__"), None)


def _classes(described: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Module and name of every class in a description."""
    if "class" in described:
        place, _, name = described["class"].partition(":")
        yield place, name
    for part in described.get("parts", {}).values():
        yield from _classes(part)


def _problem(described: dict[str, Any]) -> str | None:
    inner = (_problem(part) for part in described.get("parts", {}).values())
    return described.get("problem") or next((problem for problem in inner if problem), None)


def _is_plain(value: Any) -> bool:
    if value is inspect.Parameter.empty:
        return False
    try:
        return bool(json.loads(json.dumps(value)) is not None or value is None)
    except (TypeError, ValueError):
        return False


def _build(described: dict[str, Any], made: list[nn.Module | None]) -> nn.Module:
    if "same" in described:
        again = made[described["same"]]
        if not isinstance(again, nn.Module):
            raise ValueError("a container cannot hold itself")
        return again
    if "problem" in described:
        raise ValueError(described["problem"])
    place, _, name = described["class"].partition(":")
    kind: Any = sys.modules.get(place)
    if kind is None:
        raise ValueError(f"{place} has not been imported")
    for part in name.split("."):
        kind = getattr(kind, part, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ValueError(f"{described['class']} is not a network class")
    number = len(made)
    made.append(None)
    if kind in _CONTAINERS:
        module: nn.Module = kind()
        for key, part in described["parts"].items():
            module.add_module(key, _build(part, made))
    else:
        arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in described["arguments"].items()}
        module = kind(**arguments)
    made[number] = module
    return module
