from __future__ import annotations

import copy

import pytest
import torch

from vcotta.nn.optim import OptimizerName, load_optimizer, make_optimizer


def test_restored_moments_have_the_memory_layout_of_their_parameters() -> None:
    weight = torch.ones(2, 3, 2, 2).contiguous(memory_format=torch.channels_last).requires_grad_()
    adam = torch.optim.Adam([weight], fused=True)
    weight.sum().backward()
    adam.step()
    state = adam.state_dict()
    state["state"][0]["exp_avg"] = state["state"][0]["exp_avg"].contiguous()
    load_optimizer(adam, state)
    assert adam.state[weight]["exp_avg"].stride() == weight.stride()


def parameters() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in ((4, 3), (3,), (2, 3, 2, 2))]


def train(optimizer: torch.optim.Optimizer, tensors: list[torch.Tensor], steps: int, skip: int = -1) -> None:
    for step in range(steps):
        for place, tensor in enumerate(tensors):
            tensor.grad = torch.sin(tensor.detach() * (step + place + 1))
        optimizer.found_inf = torch.tensor(float(step == skip))
        optimizer.step()


SCALES = [0.3, 1.0, 20.0]
NAMES: tuple[OptimizerName, ...] = ("adam", "sgd", "momentum")


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", NAMES)
def test_one_scaled_step_is_that_of_a_group_for_each_tensor_also_where_one_is_skipped(name, weight_decay) -> None:
    ours, theirs = parameters(), parameters()
    scaled = make_optimizer(ours, name, 1e-2, SCALES, weight_decay)
    groups = [{"params": [p], "lr": 1e-2 * scale} for p, scale in zip(theirs, SCALES, strict=True)]
    kind = torch.optim.Adam if name == "adam" else torch.optim.SGD
    options = {} if name == "adam" else {"momentum": 0.9, "nesterov": name == "sgd"}
    train(scaled, ours, 6, skip=3)
    train(kind(groups, fused=True, weight_decay=weight_decay, **options), theirs, 6, skip=3)
    for tensor, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-6, atol=1e-6)
    assert len(scaled.param_groups) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_skipped_scaled_step_changes_nothing_to_the_bit(name) -> None:
    tensors = parameters()
    optimizer = make_optimizer(tensors, name, 1e-2, SCALES)
    train(optimizer, tensors, 2)
    before = [tensor.detach().clone() for tensor in tensors], copy.deepcopy(optimizer.state_dict()["state"])
    train(optimizer, tensors, 1, skip=0)
    assert all(torch.equal(old, new) for old, new in zip(before[0], tensors, strict=True))
    for place, moments in optimizer.state_dict()["state"].items():
        assert all(torch.equal(moments[key], value) for key, value in before[1][place].items())


@pytest.mark.parametrize("name", NAMES)
def test_scaled_steps_resume_to_the_bit(name) -> None:
    whole, saved = parameters(), parameters()
    uninterrupted = make_optimizer(whole, name, 1e-2, SCALES)
    train(uninterrupted, whole, 5)
    resumed = make_optimizer(saved, name, 1e-2, SCALES)
    load_optimizer(resumed, copy.deepcopy(uninterrupted.state_dict()))
    with torch.no_grad():
        for tensor, other in zip(saved, whole, strict=True):
            tensor.copy_(other)
    train(uninterrupted, whole, 3)
    train(resumed, saved, 3)
    assert all(torch.equal(one, other) for one, other in zip(saved, whole, strict=True))


def test_a_state_with_a_group_for_each_tensor_goes_on_in_one_group() -> None:
    old, new = parameters(), parameters()
    groups = [{"params": [p], "lr": 1e-2 * scale} for p, scale in zip(old, SCALES, strict=True)]
    grouped = torch.optim.Adam(groups, fused=True)
    train(grouped, old, 3)
    with torch.no_grad():
        for tensor, other in zip(new, old, strict=True):
            tensor.copy_(other)
    scaled = make_optimizer(new, "adam", 1e-2, SCALES)
    load_optimizer(scaled, copy.deepcopy(grouped.state_dict()))
    train(grouped, old, 3)
    train(scaled, new, 3)
    for tensor, other in zip(new, old, strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-6, atol=1e-6)
    assert scaled.param_groups[0]["scales"] == SCALES


def test_there_must_be_a_scale_for_each_tensor() -> None:
    with pytest.raises(ValueError, match="a scale for each of 3 parameters, but got 2"):
        make_optimizer(parameters(), "adam", 1e-2, [1.0, 2.0])
