"""The state of an adapter: save it, check it, and continue from it."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vcotta._util.tensorfile import tensors_sha256, weights_sha256
from vcotta.methods.class_mix import earlier_settings
from vcotta.methods.probe import check_probe
from vcotta.nn.inputs import other_shape
from vcotta.nn.optim import load_optimizer, one_group

if TYPE_CHECKING:
    from vcotta.methods.base import Adapter

__all__ = ["adapter_state", "load_adapter_state", "source_sha256", "state_bytes"]

_SOURCES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
"""Hashes of source networks."""


def adapter_state(adapter: Adapter, clone: bool = True, source: bool = False) -> dict[str, Any]:
    """Return everything a resumed stream needs, as tensors, numbers and text.

    Of networks that share `Adapter.frozen` tensors with the source it has the others, and of the source the same ones
    with a hash of all its tensors as ``source``. Of ``prepared`` tensors that adapters share it has only a hash.

    Args:
        adapter: The adapter.
        clone: Whether to copy the tensors. Without, the state is valid until the next step, enough to write a file.
        source: Whether it holds the frozen and shared tensors, too, so that an adapter with any source of this
            architecture can load it.
    """
    whole = source or not adapter.frozen()
    networks = {"start": dict(adapter.start.state_dict()) if whole else _own(adapter, adapter.start)}
    networks |= {role: _own(adapter, net) for role, net in adapter.networks.items()}
    shape, shared = adapter._compiled_shape, adapter._shared_prepared
    optimizer = None if adapter.optimizer is None else adapter.optimizer.state_dict()

    def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() if clone else tensor.detach() for name, tensor in tensors.items()}

    state = {
        "method": adapter.name,
        "config": asdict(adapter.config),
        "seed": adapter.seed,
        "networks": {role: copied(tensors) for role, tensors in networks.items()},
        "optimizer": copy.deepcopy(optimizer) if clone else optimizer,
        "memory": copied(adapter.memory),
        "prepared": copied(adapter.prepared if source or shared is None else {}),
        "rng": adapter._rng.state_dict(),
        "compiled_shape": None if shape is None else list(shape),
        "counters": {"steps": adapter.steps, "skipped": adapter.skipped},
        "recent": adapter._recent.clone(),
        "guard": None if adapter._watch is None else adapter._watch.state_dict(),
        "statistics": adapter._statistics.state_dict(),
        "label_prior": None if adapter._label_prior is None else adapter._label_prior.state_dict(),
        "clumps": adapter._clumps.state_dict(),
    }
    if not whole:
        state["source"] = source_sha256(adapter)
    if not source and shared is not None:
        state["prepared_sha256"] = shared
    return state


def source_sha256(adapter: Adapter) -> str:
    """Return the hash of the source network's tensors, computed once for all adapters that hold the same one."""
    start = adapter.start
    if start not in _SOURCES:
        exact = adapter.runtime.precision == "fp64"  # the same network as in float32
        _SOURCES[start] = weights_sha256(copy.deepcopy(start).float() if exact else start)
    return _SOURCES[start]


def _own(adapter: Adapter, net: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network by name, without those that are frozen."""
    frozen = {id(tensor) for tensor in adapter.frozen()}
    return {name: tensor for name, tensor in net.state_dict(keep_vars=True).items() if id(tensor) not in frozen}


def load_adapter_state(adapter: Adapter, state: dict[str, Any]) -> None:
    """Continue from an `adapter_state`; raise ValueError, changing nothing, if it is of another method or network."""
    _check_origin(adapter, state)
    keeps_prepared = _has_same_prepared(adapter, state)
    before = adapter_state(adapter) if state["prepared"] and not adapter.prepared else None
    if before is not None:
        adapter.adopt(state["prepared"])  # networks and optimiser may depend on it
    try:
        check_probe(state["prepared"])
        _check_shapes(adapter, state)
        if missing := adapter._first_memory - state["memory"].keys():
            raise ValueError(f"Expected {', '.join(sorted(missing))} in the state's memory: another version made it.")
    except ValueError:
        if before is not None:
            adapter.adopt({})
            load_adapter_state(adapter, before)
        raise
    if "source" not in state and not adapter.shares_start:
        adapter.start.load_state_dict(state["networks"]["start"])
        _SOURCES.pop(adapter.start, None)
    for role, net in adapter.networks.items():
        net.load_state_dict(state["networks"][role], strict=False)  # checked above
    if adapter.optimizer is not None:
        load_optimizer(adapter.optimizer, state["optimizer"])
    adapter.memory = adapter.placed(state["memory"])
    if not keeps_prepared:
        adapter.prepared, adapter._shared_prepared = adapter.placed(state["prepared"]), None
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


def state_bytes(adapter: Adapter) -> int:
    """Return the bytes of all tensors of an adapter's state, without those of a shared ``start``."""
    state = adapter_state(adapter, clone=False)
    if adapter.shares_start:
        del state["networks"]["start"]
    return _tensor_bytes(state)


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return 0
    return sum(map(_tensor_bytes, value))


def _same_tensors(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    pairs = ((tensor, theirs[name]) for name, tensor in ours.items() if isinstance(tensor, Tensor))
    return all(torch.equal(tensor.cpu(), other.cpu()) for tensor, other in pairs)


def _has_same_prepared(adapter: Adapter, state: dict[str, Any]) -> bool:
    """Whether the adapter shares the state's ``prepared`` tensors; ValueError if the state leaves out others."""
    ours, theirs = adapter._shared_prepared, state.get("prepared_sha256")
    if theirs is not None and theirs != ours:
        raise ValueError(
            "The state leaves out what was prepared on source data or the probe, and this adapter has others or none. "
            "Use the bundle it was made with."
        )
    return ours is not None and ours in (theirs, tensors_sha256(state["prepared"]))


def _check_origin(adapter: Adapter, state: dict[str, Any]) -> None:
    """Raise unless ``state`` is complete and of this method with these settings and this guard."""
    name, guard = adapter.name, None if adapter.guard is None else asdict(adapter.guard)
    later = {"statistics", "label_prior", "clumps", "source", "prepared_sha256"}  # not in all, or not in older states
    if missing := adapter_state(adapter, clone=False).keys() - state.keys() - later:
        raise ValueError(f"Expected an adapter's state, but {', '.join(sorted(missing))} is missing from it.")
    if state["method"] != name:
        raise ValueError(f"Expected a state of {name}, but got one of {state['method']}.")
    if not all(type(state["counters"].get(key)) is int for key in ("steps", "skipped")) or "cpu" not in state["rng"]:
        raise ValueError("Expected an adapter's state, but its counters or random numbers are missing.")
    if state["rng"]["cpu"].shape != adapter._rng.state_dict()["cpu"].shape:
        raise ValueError("Expected the state of torch's random numbers, but it has another size: the state is damaged.")
    defaults = earlier_settings(adapter.config)
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


def _check_shapes(adapter: Adapter, state: dict[str, Any]) -> None:
    """Raise unless the networks and the optimiser of ``state`` fit the adapter, and the source is the same."""
    optimizer, whole = adapter.optimizer, "source" not in state
    networks = {"start": adapter.start.state_dict() if whole else _own(adapter, adapter.start)}
    networks |= {role: _own(adapter, net) for role, net in adapter.networks.items()}
    for role, ours in networks.items():
        if odd := other_shape(ours, state["networks"].get(role, {})):
            raise ValueError(f"The state belongs to another network: {odd} ({role}). Use the network it was made with.")
    if whole and adapter.shares_start and not _same_tensors(networks["start"], state["networks"]["start"]):
        raise ValueError("The state belongs to another source network than the one that these adapters share.")
    if not whole and state["source"] != source_sha256(adapter):
        raise ValueError(
            "The state belongs to another network: it holds only what was trained, and the source network it was "
            "trained from has other weights than this one. Use the network it was made with."
        )
    if (optimizer is None) != (state["optimizer"] is None):
        raise ValueError("The state's optimiser does not fit this adapter.")
    if optimizer is not None:
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        saved = [len(group["params"]) for group in one_group(optimizer, state["optimizer"])["param_groups"]]
        if sizes != saved:
            raise ValueError(f"The state's optimiser has {saved} parameters by group, this adapter's has {sizes}.")
