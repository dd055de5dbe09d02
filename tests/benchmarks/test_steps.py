from __future__ import annotations

import torch


def test_tf32_is_off_in_the_block_and_as_before_after_it(script) -> None:
    places = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [place.allow_tf32 for place in places]
    with script.tf32(False):
        assert not any(place.allow_tf32 for place in places)
    assert [place.allow_tf32 for place in places] == before


def test_every_step_is_timed_in_order(script) -> None:
    made: list[int] = []
    times = script.step_times(made.append, 3, "cpu")
    assert made == [0, 1, 2]
    assert len(times) == 3
    assert all(seconds >= 0 for seconds in times)
