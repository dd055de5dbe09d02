"""The state of an adapter: save it, check it, and continue from it."""

from __future__ import annotations

import copy
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.probe import check_probe
from vcotta.nn.inputs import other_shape
from vcotta.nn.optim import load_optimizer

if TYPE_CHECKING:
    from vcotta.methods.base import Adapter

__all__ = ["adapter_state", "load_adapter_state"]


def adapter_state(adapter: Adapter, clone: bool = True) -> dict[str, Any]:
    """Return everything a resumed stream needs, as tensors, numbers and text.

    Args:
        adapter: The adapter.
        clone: Whether to copy the tensors. Without, the state is valid until the next step, enough to write a file.
    """
    networks = {"start": adapter.start, **adapter.networks}
    shape = adapter._compiled_shape
    optimizer = None if adapter.optimizer is None else adapter.optimizer.state_dict()

    def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() if clone else tensor.detach() for name, tensor in tensors.items()}

    return {
        "method": adapter.name,
        "config": asdict(adapter.config),
        "seed": adapter.seed,
        "networks": {role: copied(net.state_dict()) for role, net in networks.items()},
        "optimizer": copy.deepcopy(optimizer) if clone else optimizer,
        "memory": copied(adapter.memory),
        "prepared": copied(adapter.prepared),
        "rng": adapter._rng.state_dict(),
        "compiled_shape": None if shape is None else list(shape),
        "counters": {"steps": adapter.steps, "skipped": adapter.skipped},
        "recent": adapter._recent.clone(),
        "guard": None if adapter._watch is None else adapter._watch.state_dict(),
        "statistics": adapter._statistics.state_dict(),
        "label_prior": None if adapter._label_prior is None else adapter._label_prior.state_dict(),
        "clumps": adapter._clumps.state_dict(),
    }


def load_adapter_state(adapter: Adapter, state: dict[str, Any]) -> None:
    """Continue from an `adapter_state`; raise ValueError, changing nothing, if it is of another method or network."""
    _check_origin(adapter, state)
    before = adapter_state(adapter) if state["prepared"] and not adapter.prepared else None
    if before is not None:
        adapter.adopt(state["prepared"])  # networks and optimiser may depend on it
    networks = {"start": adapter.start, **adapter.networks}
    try:
        check_probe(state["prepared"])
        _check_shapes(state, networks, adapter.optimizer)
        if missing := adapter._first_memory - state["memory"].keys():
            raise ValueError(f"Expected {', '.join(sorted(missing))} in the state's memory: another version made it.")
    except ValueError:
        if before is not None:
            adapter.adopt({})
            load_adapter_state(adapter, before)
        raise
    for role, net in networks.items():
        net.load_state_dict(state["networks"][role])
    if adapter.optimizer is not None:
        load_optimizer(adapter.optimizer, state["optimizer"])
    adapter.memory, adapter.prepared = adapter.placed(state["memory"]), adapter.placed(state["prepared"])
    saved = state["compiled_shape"]
    adapter._compiled_shape = adapter._fixed_shape or (tuple(saved) if saved else None)
    adapter.seed = state["seed"]
    adapter._rng.load_state_dict(state["rng"])
    adapter.steps, adapter.skipped = state["counters"]["steps"], state["counters"]["skipped"]
    adapter._recent = state["recent"].to(adapter.runtime.device, copy=True)
    if adapter._watch is not None:
        adapter._watch.load_state_dict(state["guard"])
    adapter._statistics.load_state_dict(state.get("statistics", {}), adapter.runtime.device)
    if adapter._label_prior is not None:
        adapter._label_prior.load_state_dict(state["label_prior"], adapter.runtime.device)
    adapter._clumps.load_state_dict(state.get("clumps", {}))
    adapter.last, adapter.signals = {}, {}


def _check_origin(adapter: Adapter, state: dict[str, Any]) -> None:
    """Raise unless ``state`` is complete and of this method with these settings and this guard."""
    name, guard = adapter.name, None if adapter.guard is None else asdict(adapter.guard)
    later = {
        "statistics",
        "label_prior",
        "clumps",
    }  # states made before these existed have the defaults of `StreamSettings`
    if missing := adapter_state(adapter, clone=False).keys() - state.keys() - later:
        raise ValueError(f"Expected an adapter's state, but {', '.join(sorted(missing))} is missing from it.")
    if state["method"] != name:
        raise ValueError(f"Expected a state of {name}, but got one of {state['method']}.")
    if not all(type(state["counters"].get(key)) is int for key in ("steps", "skipped")) or "cpu" not in state["rng"]:
        raise ValueError("Expected an adapter's state, but its counters or random numbers are missing.")
    if state["rng"]["cpu"].shape != adapter._rng.state_dict()["cpu"].shape:
        raise ValueError("Expected the state of torch's random numbers, but it has another size: the state is damaged.")
    defaults = {field.name: field.default for field in fields(StreamSettings)}
    for key, ours in asdict(adapter.config).items():
        theirs = state["config"].get(key, defaults.get(key))
        if theirs != ours:
            raise ValueError(
                f"The state was made with {key}={theirs!r}, this adapter has {key}={ours!r}. "
                "Build it with the same settings."
            )
    if adapter._label_prior is not None and not adapter._label_prior.fits(state.get("label_prior") or {}):
        raise ValueError("Expected a label prior of this version in the state, but another version made it.")
    theirs = state["guard"] and state["guard"]["settings"]
    if theirs != guard:
        made, here = ("no guard" if one is None else f"the guard {one}" for one in (theirs, guard))
        raise ValueError(f"The state was made with {made}, this adapter has {here}. Build it with the same `guard`.")


def _check_shapes(
    state: dict[str, Any], networks: dict[str, nn.Module], optimizer: torch.optim.Optimizer | None
) -> None:
    """Raise unless the networks and the optimiser of ``state`` have the shapes of these."""
    for role, net in networks.items():
        if odd := other_shape(net.state_dict(), state["networks"].get(role, {})):
            raise ValueError(f"The state belongs to another network: {odd} ({role}). Use the network it was made with.")
    if (optimizer is None) != (state["optimizer"] is None):
        raise ValueError("The state's optimiser does not fit this adapter.")
    if optimizer is not None:
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        saved = [len(group["params"]) for group in state["optimizer"]["param_groups"]]
        if sizes != saved:
            raise ValueError(f"The state's optimiser has {saved} parameters by group, this adapter's has {sizes}.")
