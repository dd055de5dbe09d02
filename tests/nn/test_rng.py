"""Random streams of one's own, in one thread and in several."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from vcotta.nn.rng import OwnRng


def draws(rng: OwnRng, pause: float = 0.0) -> torch.Tensor:
    found = []
    for _ in range(5):
        with rng.scope():
            found.append(torch.rand(3))
            time.sleep(pause)  # lets another thread run in the middle of a scope
            found.append(torch.rand(3))
    return torch.stack(found)


def test_threads_draw_what_each_would_draw_alone() -> None:
    alone = [draws(OwnRng(seed)) for seed in range(3)]
    before = torch.get_rng_state()
    found: dict[int, torch.Tensor] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: found.__setitem__(seed, draws(OwnRng(seed), pause=0.002)))
        for seed in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[seed], alone[seed]) for seed in range(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_scope_inside_another_takes_its_own_stream_and_gives_the_outer_one_back() -> None:
    with OwnRng(1).scope():
        expected = torch.rand(4)
    with OwnRng(1).scope():
        first = torch.rand(2)
        with OwnRng(2).scope():
            torch.rand(7)
        assert torch.equal(torch.cat([first, torch.rand(2)]), expected)


def fail_inside(rng: OwnRng) -> None:
    with rng.scope():
        torch.rand(3)
        raise RuntimeError("in the middle")


def test_an_error_inside_a_scope_leaves_the_global_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    rng = OwnRng(0)
    with pytest.raises(RuntimeError, match="in the middle"):
        fail_inside(rng)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(rng.state_dict()["cpu"], OwnRng(0).state_dict()["cpu"])


@pytest.mark.parametrize("seed", [-1, True, 0.5, 2**63])
def test_a_seed_that_is_no_whole_number_is_refused(seed) -> None:
    with pytest.raises(ValueError, match="Expected `seed` to be a whole number"):
        OwnRng(seed)
