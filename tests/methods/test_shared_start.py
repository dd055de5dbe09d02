"""Many adapters with one frozen source network."""

from __future__ import annotations

import pytest
import torch

from vcotta import build_adapter, list_methods, to_variational
from vcotta.methods import Adapter, configure, find_method
from vcotta.methods.state import state_bytes

from .promises import network_for


def sharing(adapter: Adapter) -> Adapter:
    """Another adapter of the same method with the same source network, not a copy of it."""
    made = type(adapter)(adapter.start, adapter.config, guard=adapter.guard, share_start=True)
    made.adopt(adapter.prepared)
    return made


def small(name: str, tiny, images, **options) -> Adapter:
    model = network_for(name, tiny)()
    model = to_variational(model) if find_method(name).needs_variational else model
    if "views" in vars(configure(name)):
        options["views"] = 1
    return build_adapter(name, model, source=[(images(6), torch.arange(6) % 4)], guard=True, **options)


@pytest.mark.parametrize("name", list_methods())
def test_adapters_that_share_a_source_network_answer_as_each_alone(name, tiny, images) -> None:
    alone = small(name, tiny, images)
    first, second = sharing(alone), sharing(alone)
    assert first.start is second.start is alone.start
    before = {key: tensor.clone() for key, tensor in alone.start.state_dict().items()}
    for seed in range(3):
        expected = alone(images(6, seed))
        assert torch.equal(first(images(6, seed)), expected)
        second(images(4, seed + 10))
        second.predict(images(1, seed))
    assert all(torch.equal(before[key], tensor) for key, tensor in alone.start.state_dict().items())
    kept = first.state_dict()
    second.load_state_dict(kept)
    assert torch.equal(second(images(6, 5)), alone(images(6, 5)))


def test_a_state_of_another_source_network_is_refused_where_it_is_shared(tiny, images) -> None:
    shared, other = sharing(build_adapter("tent", tiny())), build_adapter("tent", tiny(seed=1))
    before = shared.state_dict()
    with pytest.raises(ValueError, match="another source network"):
        shared.load_state_dict(other.state_dict())
    assert torch.equal(shared.start.conv1.weight, before["networks"]["start"]["conv1.weight"])
    assert torch.equal(shared.networks["model"].conv1.weight, before["networks"]["model"]["conv1.weight"])


def test_the_size_of_a_state_leaves_out_a_shared_source_network(tiny) -> None:
    alone = build_adapter("tent", tiny())
    size = sum(tensor.nbytes for tensor in alone.start.state_dict().values())
    assert state_bytes(alone) - state_bytes(sharing(alone)) == size
