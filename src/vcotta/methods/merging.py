"""What several streams learned from one source network, merged into one state."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from vcotta._util.errors import unknown_name
from vcotta._util.tensorfile import read_state, tensors_sha256, write_state
from vcotta.bayes import fuse_gaussians, inverse_softplus
from vcotta.methods.class_mix import ClumpWarning
from vcotta.methods.io import KIND
from vcotta.methods.parts.outliers import LIMIT, outliers
from vcotta.methods.registry import find_method
from vcotta.nn.class_statistics import ClassStatistics
from vcotta.nn.rng import OwnRng

__all__ = ["Merged", "Rule", "merge", "merge_states", "with_learned"]

Rule = Literal["pool", "product"]
"""How evidence counts: ``pool``, as if the streams had seen the same; ``product``, each as data of its own."""


@dataclass(frozen=True)
class Merged:
    """What `merge` made.

    Attributes:
        state: State of an adapter, see `vcotta.methods.state.adapter_state`.
        distances: How far each input is from the median of all, in standard deviations of the source.
        agreements: The cosine between what each learned and what the others did; NaN for one that learned nothing.
        refused: The inputs that were left out, by their place from 0.
        weights: The weight of each input; 0 for one that was left out.
    """

    state: dict[str, Any] = field(repr=False)
    distances: list[float]
    agreements: list[float]
    refused: list[int]
    weights: list[float]


def merge(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    weights: Sequence[float] | None = None,
    rule: Rule = "pool",
    limit: float | None = LIMIT,
) -> Merged:
    """Merge the adapters in files of `vcotta.save` and write the result as such a file.

    The arguments are those of `merge_states`, which says what is merged how. The file can be loaded as those that were
    merged; it has the source network if one of them has.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a file cannot be read, or the adapters do not fit each other.
    """
    contents = [read_state(path, KIND) for path in paths]
    names = [os.fspath(path) for path in paths]
    try:
        states = [content["adapter"] for content in contents]
        merged = merge_states(states, weights=weights, rule=rule, limit=limit, names=names)
        whole = next((content for content in contents if "source" not in content["adapter"]), contents[0])
        write_state(out, KIND, whole | {"adapter": merged.state})
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"Expected adapters saved by vcotta.save, but they cannot be merged: {error!r}.") from error
    return merged


def merge_states(
    states: Sequence[dict[str, Any]],
    *,
    weights: Sequence[float] | None = None,
    rule: Rule = "pool",
    limit: float | None = LIMIT,
    names: Sequence[str] | None = None,
) -> Merged:
    r"""Merge states of adapters of one network and one choice of settings; their order does not matter.

    Student and teacher are each fused on their own. Variational weights are Gaussians that began at the source prior:
    `vcotta.bayes.fuse_gaussians`. Point parameters (scale and shift of normalisation) have no precision; theirs are
    averages by weight. The optimiser's moments are averages, too, Adam's after its correction of their bias: so the
    next steps are no larger than those of the streams, as the first ones of a new optimiser would be.

    The result begins a stream of its own: label prior, statistics, the guard's memory, entropies, counters and random
    numbers are those of a new adapter, as they describe one stream and not what was learned. `with_learned` puts what
    was learned into a stream that goes on.

    A stream may have learned something wrong, or be sent to do harm. Of three or more, one that is far from all others,
    or learned what has nothing to do with what they learned, is refused, see `vcotta.methods.parts.outliers`; one that
    is not finite always is. What passes counts as one of all, and is outvoted. Of two, none can be.

    Args:
        states: What `Adapter.state_dict` returns, or files of `vcotta.save` have: two or more.
        weights: How much each counts; None for the same. The rule ``pool`` divides them by their sum.
        rule: ``pool``: the streams are taken to have seen the same. Equal states give that state. ``product``: each is
            evidence of its own, the product of the posteriors over the source prior, so that shifts add up.
        limit: Times the others' distance from the median from which one is refused; None keeps all that are finite.
        names: What errors call the states.

    Raises:
        ValueError: If the states are of other methods, settings, guards or source networks, fewer than two are left,
            or an argument is wrong.
    """
    names = [f"state {place}" for place in range(len(states))] if names is None else list(names)
    given = _checked_weights(weights, len(states), rule, limit)
    _check_alike(states, names)
    whole = next((state for state in states if "source" not in state), states[0])
    prior = whole["networks"]["start"]
    refused, far, agree = outliers([state["networks"] for state in states], limit)
    kept = [place for place in range(len(states)) if place not in refused]
    if len(kept) < 2:
        raise ValueError(
            f"Expected at least two states that are alike, but {', '.join(names[place] for place in refused)} cannot "
            "be merged with the rest. Leave out the bad ones, or keep all that are finite: limit=None in Python, "
            "`--keep-outliers` at the command line."
        )
    kept.sort(key=lambda place: _digest(states[place]))
    total = math.fsum(given[place] for place in kept)
    counts = [given[place] / (total if rule == "pool" else 1) for place in kept]
    chosen = [states[place] for place in kept]
    networks = {
        role: _fused(prior, [state["networks"][role] for state in chosen], counts)
        for role in chosen[0]["networks"]
        if role != "start"
    }
    first = chosen[0]
    source = {"source": whole["source"]} if "source" in whole else {}
    state = {name: value for name, value in first.items() if name != "source"} | source
    state |= _new_stream(first) | {"networks": {"start": prior, **networks}}
    state["optimizer"] = _moments([one["optimizer"] for one in chosen], [given[place] / total for place in kept])
    used = dict(zip(kept, counts, strict=True))
    return Merged(state, far, agree, refused, [used.get(place, 0.0) for place in range(len(states))])


def with_learned(state: dict[str, Any], merged: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a stream that goes on with what `merge_states` made of it and others.

    Networks and optimiser are the merged ones; label prior, statistics, guard, counters and random numbers stay.
    """
    _check_alike([state, merged], ["the stream's state", "the merged one"])
    networks = {role: net for role, net in merged["networks"].items() if role != "start"}
    return state | {
        "networks": {"start": state["networks"]["start"], **networks},
        "optimizer": merged["optimizer"],
    }


def _fused(start: dict[str, Tensor], nets: Sequence[dict[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """The tensors of one network, fused."""
    fused, total = dict(nets[0]), math.fsum(weights)
    for name in _numbers(nets[0]):
        rho = f"{name}_rho"
        if rho in nets[0]:
            own = [(net[name].double(), F.softplus(net[rho].double())) for net in nets]
            mean, sigma = fuse_gaussians((start[name], _sigma(start, name)), own, weights)
            fused[name], fused[rho] = mean.to(nets[0][name].dtype), inverse_softplus(sigma).to(nets[0][rho].dtype)
        elif not (name.endswith("_rho") and name.removesuffix("_rho") in nets[0]):
            mean = torch.stack([weight / total * net[name].double() for net, weight in zip(nets, weights, strict=True)])
            fused[name] = mean.sum(0).to(nets[0][name].dtype)
    return fused


def _moments(optimizers: Sequence[dict[str, Any]], weights: Sequence[float]) -> dict[str, Any]:
    """The state of an optimiser whose moments are averages of those of others; the weights' sum is 1."""
    beta = dict(zip(("exp_avg", "exp_avg_sq"), optimizers[0]["param_groups"][0].get("betas", ()), strict=False))
    merged: dict[Any, dict[str, Any]] = {}
    for place in sorted({place for optimizer in optimizers for place in optimizer["state"]}):
        known = [
            (weight, optimizer["state"][place])
            for weight, optimizer in zip(weights, optimizers, strict=True)
            if place in optimizer["state"] and _steps(optimizer["state"][place]) > 0
        ]
        if not known:
            continue
        total, steps = math.fsum(weight for weight, _ in known), max(_steps(own) for _, own in known)
        longest: dict[str, Any] = max([own for _, own in known], key=_steps)
        merged[place] = dict(longest)
        for name in merged[place].keys() - {"step"}:
            mean = torch.zeros_like(merged[place][name], dtype=torch.float64)
            for weight, own in known:
                seen = 1 - beta[name] ** _steps(own) if name in beta else 1.0
                mean += weight / total / seen * own[name].double()
            seen = 1 - beta[name] ** steps if name in beta else 1.0
            merged[place][name] = (seen * mean).to(merged[place][name].dtype)
    return optimizers[0] | {"state": merged}


def _steps(moments: dict[str, Any]) -> float:
    """How many steps Adam's moments have seen; those of SGD do not say."""
    return float(moments.get("step", 1))


def _new_stream(state: dict[str, Any]) -> dict[str, Any]:
    """The entries of a state that describe its stream, as those of a new adapter."""
    guard, calm = state["guard"], torch.ones((), dtype=torch.bool)
    return {
        "memory": {},
        "rng": OwnRng(state["seed"]).state_dict(),
        "counters": {"steps": 0, "skipped": 0},
        "recent": state["recent"][:0],
        "guard": guard and {**guard, "memory": {"calm": calm}, "counts": {"seen": 0, "alarms": 0}},
        "statistics": ClassStatistics().state_dict(),
        "label_prior": None if state["label_prior"] is None else {},
        "clumps": ClumpWarning().state_dict(),
    }


def _check_alike(states: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Raise unless there are two states or more, of one variational method, setting, guard and source network."""
    if len(states) < 2:
        raise ValueError(f"Expected at least two states to merge, but got {len(states)}.")
    for state, name in zip(states, names, strict=True):
        if not find_method(state["method"]).needs_variational:
            raise ValueError(
                f"Expected states of vcotta, whose weights have distributions, but {name} is of {state['method']}."
            )
    for (one, first), (other, second) in pairwise(zip(states, names, strict=True)):
        if odd := _difference(one, other):
            raise ValueError(
                f"Expected states of one network and one choice of settings, but {first} and {second} differ: {odd}"
            )


def _difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """What keeps two states from being merged; None if nothing does."""
    for key in one["config"].keys() | other["config"].keys():
        ours, theirs = (state["config"].get(key) for state in (one, other))
        if ours != theirs:
            return f"{key} is {ours!r} in one and {theirs!r} in the other. Merge streams of the same settings."
    guards = [state["guard"] and state["guard"]["settings"] for state in (one, other)]
    if guards[0] != guards[1]:
        return f"their guards are {guards[0]} and {guards[1]}."
    for role in one["networks"].keys() | other["networks"].keys():
        shapes = [{n: t.shape for n, t in state["networks"].get(role, {}).items()} for state in (one, other)]
        if shapes[0] != shapes[1] and role != "start":
            return "their networks have other layers. Merge streams of the same network."
    starts = [state["networks"]["start"] for state in (one, other)]
    same = all(torch.equal(starts[0][name], starts[1][name]) for name in starts[0].keys() & starts[1].keys())
    if not same or _source_sha256(one) != _source_sha256(other):
        return "their source networks have other weights. Merge streams that began at the same bundle."
    return None


def _source_sha256(state: dict[str, Any]) -> str:
    return str(state["source"]) if "source" in state else tensors_sha256(state["networks"]["start"])


def _checked_weights(weights: Sequence[float] | None, count: int, rule: str, limit: float | None) -> list[float]:
    if rule not in get_args(Rule):
        raise unknown_name("rule", rule, get_args(Rule))
    if limit is not None and not limit > 1:
        raise ValueError(f"Expected `limit` to be more than 1, or None, but got {limit}.")
    given = [1.0] * count if weights is None else [float(weight) for weight in weights]
    if len(given) != count or not all(0 < weight < math.inf for weight in given):
        raise ValueError(f"Expected {count} weights above 0, one for each state, but got {given}.")
    return given


def _digest(state: dict[str, Any]) -> str:
    """What states are sorted by, so that sums do not depend on their order."""
    nets = {f"{role}.{name}": t for role, net in state["networks"].items() for name, t in net.items()}
    return tensors_sha256(nets)


def _numbers(net: dict[str, Tensor]) -> Iterator[str]:
    """The names of a network's parameters and averages; counts, such as BatchNorm's of batches, are none."""
    return (name for name, tensor in net.items() if tensor.is_floating_point())


def _sigma(net: dict[str, Tensor], name: str) -> Tensor:
    return F.softplus(net[f"{name}_rho"].double())
