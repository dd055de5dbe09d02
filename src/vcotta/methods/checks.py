"""What an adapter refuses of its settings and of a saved state."""

from __future__ import annotations

import math
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import nn

from vcotta._messages import unknown_name

__all__ = ["check_fields", "check_origin", "check_shapes"]


def check_fields(config: Any) -> None:
    """Raise unless every field of a config has the type it is declared with; floats must be finite.

    Example:
        >>> from vcotta.methods.tent import TENTConfig
        >>> TENTConfig(lr="fast")
        Traceback (most recent call last):
        TypeError: Expected `lr` to be float, but got 'fast'.
    """
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if _fits(value, hint):
            continue
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        choices = [choice for part in parts if get_origin(part) is Literal for choice in get_args(part)]
        if choices and isinstance(value, str):
            others = [_name(part) for part in parts if get_origin(part) is not Literal]
            raise unknown_name(field.name, value, [*choices, *others])
        if isinstance(value, int | float):
            raise ValueError(f"Expected `{field.name}` to be {' or '.join(map(_name, parts))}, but got {value!r}.")
        raise TypeError(f"Expected `{field.name}` to be {' or '.join(map(_name, parts))}, but got {value!r}.")


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    return {NoneType: "None", float: "float", int: "a whole number", bool: "True or False"}.get(hint, str(hint))


_PARTS = {
    "method",
    "config",
    "seed",
    "networks",
    "optimizer",
    "memory",
    "prepared",
    "rng",
    "compiled_shape",
    "counters",
}


def check_origin(state: dict[str, Any], name: str, config: dict[str, Any]) -> None:
    """Raise unless ``state`` is whole and belongs to an adapter of this method with these settings."""
    if missing := _PARTS - set(state):
        raise ValueError(f"Expected an adapter's state, but {', '.join(sorted(missing))} is missing from it.")
    if state["method"] != name:
        raise ValueError(f"Expected a state of {name}, but got one of {state['method']}.")
    if not all(type(state["counters"].get(key)) is int for key in ("steps", "skipped")) or "cpu" not in state["rng"]:
        raise ValueError("Expected an adapter's state, but its counters or random numbers are missing.")
    for key, ours in config.items():
        theirs = state["config"].get(key)
        if theirs != ours:
            raise ValueError(
                f"The state was made with {key}={theirs!r}, this adapter has {key}={ours!r}. "
                "Build it with the same settings."
            )


def check_shapes(
    state: dict[str, Any], networks: dict[str, nn.Module], optimizer: torch.optim.Optimizer | None
) -> None:
    """Raise unless the networks and the optimiser of ``state`` have the shapes of these."""
    for role, net in networks.items():
        ours = {key: tuple(tensor.shape) for key, tensor in net.state_dict().items()}
        theirs = {key: tuple(tensor.shape) for key, tensor in state["networks"].get(role, {}).items()}
        if ours != theirs:
            odd = next(key for key in (*ours, *theirs) if ours.get(key) != theirs.get(key))
            raise ValueError(
                f"The state belongs to another network: {role} has {odd!r} of shape {ours.get(odd)} here "
                f"and {theirs.get(odd)} in the state."
            )
    if (optimizer is None) != (state["optimizer"] is None):
        raise ValueError("The state's optimiser does not fit this adapter.")
    if optimizer is not None:
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        saved = [len(group["params"]) for group in state["optimizer"]["param_groups"]]
        if sizes != saved:
            raise ValueError(f"The state's optimiser has {saved} parameters by group, this adapter's has {sizes}.")
