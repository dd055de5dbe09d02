"""Adapters in several threads: each gives exactly what it gives alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import vcotta

METHODS = {"tent": {}, "cotta": {"views": 2}, "vcotta": {"views": 2, "preset": "paper"}}


class Slow(nn.Module):
    """A network that pauses in its passes, so that another thread runs in the middle of a step."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.002)
        return self.body(x)


def build(name: str, tiny, seed: int) -> vcotta.Adapter:
    model = Slow(tiny())
    return vcotta.build_adapter(
        name, vcotta.to_variational(model) if name == "vcotta" else model, seed=seed, **METHODS[name]
    )


def in_threads(*actions: Callable[[], object]) -> list[object]:
    """Run functions at the same time; returns what each returned or raised."""
    found: list[object] = [None] * len(actions)

    def act(place: int) -> None:
        try:
            found[place] = actions[place]()
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=act, args=(place,)) for place in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("name", METHODS)
def test_two_adapters_in_two_threads_give_what_each_gives_alone(name, tiny, images) -> None:
    def stream(adapter: vcotta.Adapter) -> Tensor:
        return torch.stack([adapter(images(seed=seed)) for seed in range(4)])

    expected = [stream(build(name, tiny, seed)) for seed in (0, 1)]
    before = torch.get_rng_state()
    adapters = [build(name, tiny, seed) for seed in (0, 1)]
    found = in_threads(*(lambda adapter=adapter: stream(adapter) for adapter in adapters))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", METHODS)
def test_threads_that_share_an_adapter_take_turns(name, tiny, images) -> None:
    shared, alone = build(name, tiny, 0), build(name, tiny, 0)
    found = in_threads(*[lambda: shared(images())] * 4, lambda: shared.predict(images()), shared.state_dict)
    assert not [error for error in found if isinstance(error, Exception)]
    expected = [alone(images()) for _ in range(4)]
    assert sorted(out.sum().item() for out in found[:4]) == sorted(out.sum().item() for out in expected)
    assert shared.steps == 4
    assert torch.equal(shared(images()), alone(images()))
