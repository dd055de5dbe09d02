"""How often the host reads a result during a step: on a GPU it waits there until all queued work is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from vcotta import list_methods
from vcotta.nn import views

from .promises import PROMISES
from .subject import Subject

aten = torch.ops.aten
WAITS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default}

USUAL = 2  # the range of the images is checked, and the notes of the step are read at its end
MORE = {
    "source": -1,  # has nothing to note
    "bn": -1,
    "cotta": 1,  # the confidence that decides whether views are needed
    "petal": 1,
    "tca": 1,
    "deyo": 1,  # which images take part
    "roid": 1,
    "cmf": 1,
    "obao": 1,  # how many images the memory holds
    "rotta": 5,  # what the memory holds: the host decides which images leave it
    "foa": 4,  # its evolution strategy reads its own numbers
    "surgeon": 1,  # the shares of gradients that layers keep
}


class Reads(TorchDispatchMode):
    """Counts operations whose result, or the size of it, the host must know."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.counting = True

    def see(self, name: str) -> None:
        if self.counting:
            self.found.append(name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITS:
            self.see(str(func))
        if func is aten.index.Tensor and any(one is not None and one.dtype == torch.bool for one in args[1]):
            self.see("indexing by booleans")
        return func(*args, **(kwargs or {}))


class Lists(TorchFunctionMode):
    """Counts reads of whole tensors, which torch does not dispatch."""

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.tolist, Tensor.numpy, Tensor.cpu):
            self.reads.see(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def reads(monkeypatch) -> Reads:
    """A counter that leaves out what views read of their own random numbers, which are drawn on the CPU."""
    counter, jitter = Reads(), views._jitter

    def uncounted(*arguments: Any) -> Tensor:
        counter.counting = False
        try:
            return jitter(*arguments)
        finally:
            counter.counting = True

    monkeypatch.setattr(views, "_jitter", uncounted)
    return counter


@contextmanager
def counted(reads: Reads) -> Iterator[None]:
    with reads, Lists(reads):
        yield


@pytest.mark.parametrize("name", list_methods())
def test_a_step_makes_the_host_wait_only_where_it_must(name, reads, tiny, images) -> None:
    adapter = Subject(name, PROMISES[name], tiny, images).build()
    for seed in range(2):
        adapter(images(seed=seed))
    with counted(reads):
        adapter(images(seed=2))
    assert len(reads.found) == USUAL + MORE.get(name, 0), reads.found


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: float(x.mean()),
        lambda x: x.tolist(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.cpu(),
    ],
)
def test_every_kind_of_read_is_counted(read, reads) -> None:
    with counted(reads):
        read(torch.ones(3))
    assert reads.found
