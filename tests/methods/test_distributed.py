"""Methods whose batches several processes share give the result of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vcotta.methods import check_distributed, distribute, find_method, list_methods
from vcotta.nn.distributed import World

from ..distributed import adapter, images, together

SIZES = (8, 8, 7, 8, 5, 3, 1, 2, 8, 8)  # uneven, shorter than usual, and fewer images than processes
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "source": ("source", {}),
    "bn": ("bn", {}),
    "bn prior": ("bn", {"statistics": "prior", "alpha": 0.4}),
    "bn ema": ("bn", {"statistics": "ema"}),
    "tent": ("tent", {}),
    "cotta": ("cotta", {}),
    "vcotta best": ("vcotta", {"full_batch": 2}),
    "vcotta, small batches": ("vcotta", {}),
    "vcotta paper": ("vcotta", {"preset": "paper", "margin": 0.0}),
    "vcotta authors": ("vcotta", {"preset": "authors"}),
    "vcotta, norm": ("vcotta", {"trains": "norm", "full_batch": 2}),
    "vcotta, inferred": ("vcotta", {"statistics": "inferred", "label_prior": True}),
    "vcotta both, local": ("vcotta", {"student": "both", "sampling": "local", "scope": "batch"}),
}
OTHERS = {name: (name, {}) for name in list_methods() if find_method(name).card.distributed and name not in CASES}
OTHERS.pop("vcotta")


def trial(name: str, options: dict[str, Any], world: World | None = None) -> dict[str, Any]:
    """Ten batches, and what the adapter said and became."""
    one = adapter(name, **options)
    if world is not None:
        distribute(one, world)
    outputs, notes = [], []
    for batch, n in enumerate(SIZES):
        outputs.append(one(images(batch, n)))
        notes.append(one.last)
    weights = {f"{role}.{key}": t for role, net in one.networks.items() for key, t in net.state_dict().items()}
    return {"outputs": outputs, "weights": weights, "notes": notes}


def trials(cases: dict[str, tuple[str, dict[str, Any]]]) -> Callable[[World], dict[str, Any]]:
    return lambda world: {key: trial(name, options, world) for key, (name, options) in cases.items()}


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> list[dict[str, Any]]:
    adapter("tent")  # loads, once for all processes, what torch imports with its first optimiser
    return together(trials(CASES), tmp_path_factory.mktemp("shared"))


def check_same(key: str, case: tuple[str, dict[str, Any]], found: list[dict[str, Any]]) -> None:
    assert all(isinstance(one, dict) for one in found), found
    alone = trial(*case)
    for batch, output in enumerate(alone["outputs"]):
        assert all(torch.equal(one[key]["outputs"][batch], found[0][key]["outputs"][batch]) for one in found)
        torch.testing.assert_close(found[0][key]["outputs"][batch], output, rtol=0, atol=1e-8)
    for name, tensor in alone["weights"].items():
        assert all(torch.equal(one[key]["weights"][name], found[0][key]["weights"][name]) for one in found)
        torch.testing.assert_close(found[0][key]["weights"][name], tensor, rtol=0, atol=1e-6)
    for ours, theirs in zip(alone["notes"], found[0][key]["notes"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-8)


@pytest.mark.parametrize("key", CASES)
def test_two_processes_give_the_result_of_one(key, shared) -> None:
    check_same(key, CASES[key], shared)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_every_other_method_gives_the_result_of_one_process(processes, tmp_path) -> None:
    found = together(trials(OTHERS), tmp_path, processes)
    for key, case in OTHERS.items():
        check_same(key, case, found)


def test_every_method_declared_distributed_is_tested_here() -> None:
    tested = {name for name, _ in (*CASES.values(), *OTHERS.values())}
    assert tested == {name for name in list_methods() if find_method(name).card.distributed}
    assert {"source", "bn", "tent", "cotta", "vcotta"} <= {name for name, _ in CASES.values()}


def test_a_method_that_cannot_be_shared_is_refused_with_those_that_can() -> None:
    with pytest.raises(ValueError, match=r"but got surgeon.*source, bn, tent.*vcotta"):
        check_distributed("surgeon")
    with pytest.raises(ValueError, match=r"but got surgeon"):
        distribute(adapter("surgeon"), World(0, 2))
    with pytest.raises(ValueError, match="method"):
        check_distributed("tennt")
