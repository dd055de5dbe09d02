"""Merging what streams learned: the formula, what is refused, and digits."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch.nn.functional import softplus

import vcotta
from vcotta import Guard, build_adapter, to_variational
from vcotta.bayes import fuse_gaussians
from vcotta.methods.merging import merge, merge_states, with_learned


@pytest.fixture
def build(tiny):
    def make(**options) -> vcotta.Adapter:
        model = to_variational(tiny(seed=options.pop("start", 0)))
        settings = {"views": 1, "lr": 0.1, "beta": 0.5, "sampling": "local", "student": "image", "full_batch": None}
        return build_adapter("vcotta", model, guard=options.pop("guard", False), **(settings | options))

    return make


@pytest.fixture
def streams(build, images):
    """States of adapters that saw different halves of the same images, so that they learn much the same."""

    def make(count: int = 2, steps: int = 4, **options) -> list[dict]:
        states = []
        for place in range(count):
            adapter = build(**options)
            for seed in range(steps):
                adapter(images(12, seed=seed)[place % 2 :: 2])
            states.append(adapter.state_dict())
        return states

    return make


def tensors(state: dict) -> dict[str, torch.Tensor]:
    nets = {f"{role}.{name}": t for role, net in state["networks"].items() for name, t in net.items()}
    moments = {f"{i}.{n}": t for i, own in (state["optimizer"]["state"]).items() for n, t in own.items()}
    return nets | moments


@pytest.mark.parametrize("trains", ["all", "norm"])
def test_equal_states_are_merged_into_that_state(streams, trains) -> None:
    (state,) = streams(1, trains=trains)
    merged = merge_states([state, copy.deepcopy(state)])
    for name, tensor in tensors(merged.state).items():
        assert torch.allclose(tensor, tensors(state)[name], rtol=1e-6, atol=1e-8), name
    assert merged.weights == [0.5, 0.5]
    assert max(merged.distances) < 1e-6


@pytest.mark.parametrize("rule", ["pool", "product"])
@pytest.mark.parametrize("trains", ["all", "norm"])
def test_the_order_of_the_states_does_not_change_a_bit(streams, rule, trains) -> None:
    states = streams(2, trains=trains) + streams(1, steps=6, trains=trains)
    found = [
        tensors(merge_states([states[i] for i in order], weights=[1.0 + i for i in order], rule=rule).state)
        for order in itertools.permutations(range(3))
    ]
    assert all(torch.equal(found[0][name], other[name]) for other in found for name in found[0])


@pytest.mark.parametrize(("rule", "counts"), [("pool", [0.25, 0.75]), ("product", [1.0, 3.0])])
def test_weights_are_fused_as_gaussians_and_points_are_averaged(streams, rule, counts) -> None:
    states = streams()
    merged = merge_states(states, weights=[1, 3], rule=rule).state["networks"]["teacher"]
    teachers, start = [state["networks"]["teacher"] for state in states], states[0]["networks"]["start"]

    def gaussian(net: dict) -> tuple[torch.Tensor, torch.Tensor]:
        return net["fc.weight"].double(), softplus(net["fc.weight_rho"].double())

    mean, sigma = fuse_gaussians(gaussian(start), [gaussian(net) for net in teachers], counts)
    assert torch.allclose(merged["fc.weight"].double(), mean, atol=1e-7)
    assert torch.allclose(gaussian(merged)[1], sigma, rtol=1e-5)
    expected = 0.25 * teachers[0]["norm1.weight"] + 0.75 * teachers[1]["norm1.weight"]
    assert torch.allclose(merged["norm1.weight"], expected)


def test_moments_are_averaged_after_the_correction_of_their_bias(streams) -> None:
    states = streams(1, steps=2) + streams(1, steps=6)
    merged = merge_states(states).state["optimizer"]["state"][0]
    first, second = (state["optimizer"]["state"][0] for state in states)
    assert float(merged["step"]) == 6
    for name, beta in (("exp_avg", 0.9), ("exp_avg_sq", 0.999)):
        mean = (first[name] / (1 - beta**2) + second[name] / (1 - beta**6)) / 2
        assert torch.allclose(merged[name] / (1 - beta**6), mean, rtol=1e-4, atol=1e-9)


def test_a_state_that_has_not_stepped_has_no_moments_to_average(build, streams) -> None:
    (state,) = streams(1)
    merged = merge_states([build().state_dict(), state]).state["optimizer"]["state"][0]
    assert torch.allclose(merged["exp_avg"], state["optimizer"]["state"][0]["exp_avg"])
    assert not merge_states([build().state_dict()] * 2).state["optimizer"]["state"]


def test_a_merged_state_begins_a_stream_of_its_own(build, streams, images) -> None:
    merged = merge_states(streams(guard=Guard())).state
    fresh = build(guard=Guard()).state_dict()
    for part in ("counters", "recent", "statistics", "label_prior", "clumps", "memory"):
        assert str(merged[part]) == str(fresh[part]), part
    assert merged["guard"]["counts"] == {"seen": 0, "alarms": 0}
    adapter = build(guard=Guard())
    adapter.load_state_dict(merged)
    assert adapter(images()).isfinite().all()


def test_a_stream_that_goes_on_with_what_was_merged_keeps_its_own_memory(build, streams, images) -> None:
    states = streams()
    merged = merge_states(states).state
    together = with_learned(states[0], merged)
    adapter = build()
    adapter.load_state_dict(together)
    assert adapter.steps == states[0]["counters"]["steps"] == 4
    assert torch.equal(adapter.state_dict()["recent"], states[0]["recent"])
    assert torch.equal(adapter.networks["teacher"].fc.weight, merged["networks"]["teacher"]["fc.weight"])
    assert adapter(images()).isfinite().all()


def test_files_are_merged_into_a_file_that_continues(build, streams, images, tmp_path) -> None:
    adapters = [build(trains="norm") for _ in range(2)]
    for adapter, state in zip(adapters, streams(trains="norm"), strict=True):
        adapter.load_state_dict(state)
    vcotta.save(adapters[0], tmp_path / "small", source=False)
    vcotta.save(adapters[1], tmp_path / "whole")
    model = build().start
    for pair in (["small", "whole"], ["whole", "small"]):
        merge([tmp_path / name for name in pair], tmp_path / "out")
        loaded = vcotta.load(
            tmp_path / "out", build(start=5).start
        )  # it has the source: the model's weights do not matter
        assert loaded(images()).isfinite().all()
    vcotta.save(adapters[1], tmp_path / "other", source=False)
    merge([tmp_path / "small", tmp_path / "other"], tmp_path / "out")
    assert torch.equal(
        vcotta.load(tmp_path / "out", model).networks["teacher"].fc.weight, loaded_teacher(tmp_path, model)
    )
    with pytest.raises(ValueError, match="leaves its weights out"):
        vcotta.load(tmp_path / "out")


def loaded_teacher(folder, model) -> torch.Tensor:
    merge([folder / "other", folder / "small"], folder / "again")
    return vcotta.load(folder / "again", model).networks["teacher"].fc.weight


def test_states_of_other_streams_are_refused_in_plain_words(build, streams, tiny) -> None:
    (state,) = streams(1)
    plain = build_adapter("tent", tiny()).state_dict()
    cases = {
        "at least two states to merge, but got 1": [state],
        "state 1 is of tent": [state, plain],
        "lr is 0.1 in one and 0.2 in the other": [state, *streams(1, lr=0.2)],
        "their guards are None and": [state, *streams(1, guard=Guard())],
        "source networks have other weights": [state, *streams(1, start=3)],
        "trains is 'all' in one and 'norm'": [state, *streams(1, trains="norm")],
    }
    for text, states in cases.items():
        with pytest.raises(ValueError, match=text):
            merge_states(states)
    other = build_adapter("vcotta", to_variational(tiny(classes=7)), guard=False, views=1).state_dict()
    with pytest.raises(ValueError, match="their networks have other layers"):
        merge_states([state, other | {"config": state["config"]}])
    for weights in ([1.0], [1.0, 0.0], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="Expected 2 weights above 0"):
            merge_states([state, state], weights=weights)
    with pytest.raises(ValueError, match="rule"):
        merge_states([state, state], rule="mean")
    with pytest.raises(ValueError, match="limit"):
        merge_states([state, state], limit=1.0)


def test_a_small_state_that_lies_about_its_source_is_refused(streams) -> None:
    one, other = streams(trains="norm")
    other["networks"]["start"]["fc.weight"] += 1
    with pytest.raises(ValueError, match="source networks have other weights"):
        merge_states([one, other])


def test_files_of_another_kind_and_damaged_ones_are_refused(build, tmp_path) -> None:
    vcotta.save(build(), tmp_path / "a")
    (tmp_path / "b").write_bytes((tmp_path / "a").read_bytes()[:-9])
    with pytest.raises(ValueError, match="cannot be read"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        merge([tmp_path / "a", tmp_path / "none"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def moved(state: dict, size: float) -> dict:
    """A copy whose weights moved at random by so many standard deviations."""
    state, draws = copy.deepcopy(state), torch.Generator().manual_seed(0)
    for role in ("student", "teacher"):
        net, start = state["networks"][role], state["networks"]["start"]
        for name in [name for name in net if f"{name}_rho" in net]:
            noise = torch.randn(net[name].shape, generator=draws)
            net[name].copy_(start[name] + size * softplus(start[f"{name}_rho"]) * noise)
    return state


def poisoned(state: dict, how: str) -> dict:
    if how in ("far", "unrelated"):
        return moved(state, 100.0 if how == "far" else 1.0)
    state = copy.deepcopy(state)
    net = state["networks"]["student" if how == "not finite" else "teacher"]
    if how == "not finite":
        net["norm1.bias"][0] = float("nan")
    else:
        net["fc.weight_rho"].fill_(-40.0)  # claims to know everything
    return state


@pytest.mark.parametrize("how", ["far", "unrelated", "not finite", "too sure"])
def test_a_poisoned_stream_is_refused_and_the_others_are_merged(streams, how) -> None:
    good = streams(4)
    bad = poisoned(good[0], how)
    merged = merge_states([good[0], bad, *good[1:]])
    assert merged.refused == [1]
    assert merged.weights == [0.25, 0.0, 0.25, 0.25, 0.25]
    alone = merge_states(good).state
    assert all(torch.equal(tensor, tensors(alone)[name]) for name, tensor in tensors(merged.state).items())


def test_outliers_can_be_kept_unless_they_are_not_finite(streams) -> None:
    good = streams(3)
    kept = merge_states([*good, poisoned(good[0], "far"), poisoned(good[0], "not finite")], limit=None)
    assert kept.refused == [4]
    assert kept.distances[3] > 10
    assert all(tensor.isfinite().all() for tensor in tensors(kept.state).values())


def test_a_stream_that_learned_nothing_yet_is_no_outlier(build, streams) -> None:
    merged = merge_states([*streams(3), build().state_dict()])
    assert merged.refused == []
    assert merged.agreements[3] != merged.agreements[3]  # NaN


def test_where_too_few_are_left_nothing_is_merged(streams) -> None:
    (state,) = streams(1)
    with pytest.raises(ValueError, match=r"at least two states that are alike, but state 1 cannot be merged"):
        merge_states([state, poisoned(state, "not finite")])
