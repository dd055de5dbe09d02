"""Merged halves of a stream of digits come near to the whole, and a stream of noise does no harm."""

from __future__ import annotations

import pytest
import torch

from vcotta import Adapter
from vcotta.corruptions import EXTRA
from vcotta.experiments.build import adapter_for_spec, start_network, stream_for
from vcotta.methods import merge_states
from vcotta.runs.spec import RunSpec

MARGIN = 1.5
"""Points of error by which merged halves may be worse than the whole stream."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The labels of this stream seem correlated")
def test_merged_halves_come_near_to_the_whole_and_noise_is_refused_or_outvoted(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path))
    spec = RunSpec("vcotta", options={"views": 2}, corruptions=EXTRA, table=224)
    model = start_network(spec)
    batches = [(batch.images, batch.labels) for batch in stream_for(spec).batches()]

    def learned(images: list[torch.Tensor]) -> dict:
        adapter = adapter_for_spec(spec, model=model)
        for some in images:
            adapter(some)
        return adapter.state_dict()

    def error(state: dict) -> float:
        """The error in per cent on all images, without adapting and without the stream's own memory."""
        adapter = adapter_for_spec(spec, model=model)
        assert isinstance(adapter, Adapter)
        adapter.load_state_dict(state)
        guesses = [adapter.predict(images, samples=1).probabilities.argmax(1) for images, _ in batches]
        wrong = torch.cat(guesses) != torch.cat([labels for _, labels in batches])
        return 100 * wrong.float().mean().item()

    def alone(state: dict) -> dict:
        return merge_states([state, state]).state  # that state, but a stream of its own

    images = [some for some, _ in batches]
    whole, first, second = (learned(part) for part in (images, images[: len(images) // 2], images[len(images) // 2 :]))
    halves = [error(alone(half)) for half in (first, second)]
    merged = error(merge_states([first, second]).state)
    assert merged < max(halves)
    assert merged < error(alone(whole)) + MARGIN

    draws = torch.Generator().manual_seed(0)
    noise = learned([torch.rand(50, 3, 32, 32, generator=draws) for _ in range(30)])
    harm = error(alone(noise)) - merged
    assert harm > 3
    found = merge_states([first, noise, second])
    assert found.refused in ([], [1])  # never an honest stream
    assert error(found.state) - merged < harm / 4
    outvoted = error(merge_states([first, noise, second], limit=None).state)
    assert outvoted - merged < harm / 4
