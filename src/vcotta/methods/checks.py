"""What an adapter refuses of a saved state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["check_origin", "check_shapes"]


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
    "recent",
    "guard",
}


def check_origin(state: dict[str, Any], name: str, config: dict[str, Any], guard: dict[str, Any] | None) -> None:
    """Raise unless ``state`` is whole and belongs to an adapter of this method with these settings and this guard."""
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
    theirs = state["guard"] and state["guard"]["settings"]
    if theirs != guard:
        made, here = ("no guard" if one is None else f"the guard {one}" for one in (theirs, guard))
        raise ValueError(f"The state was made with {made}, this adapter has {here}. Build it with the same `guard`.")


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
