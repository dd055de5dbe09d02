"""Every method, and every form of one that an option chooses, keeps the contract."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vcotta import build_adapter, list_methods
from vcotta.methods import find_method

from .contract import BAD_INPUT, check_bad_input, check_grad_mode, check_outputs
from .promises import PROMISES, network_for
from .subject import CLAIMS, Subject, claims_of, same, snapshot

METHODS = list_methods()
CASES = [(name, claimed) for name in METHODS for claimed in claims_of(name, PROMISES[name])]
VARIANTS = [
    ("bn", {"statistics": "prior"}),
    ("bn", {"statistics": "ema"}),
    ("eata", {"fisher_weight": 0.0}),
    ("foa", {"prompts": 0}),
    ("petal", {"restoration": "random"}),
    ("petal", {"loss": "sce"}),
    ("rmt", {"replay": 1.0, "replay_images": 8, "warm_up_images": 24}),
    ("surgeon", {"layers": "all"}),
    ("ecotta", {"regularisation": 0.0, "parts": 1}),
    ("tca", {"intra": "spread"}),
    ("tca", {"unit": False}),
    ("vida", {"optimizer": "sgd", "loss": "sce", "adapter_beta": 0.8, "restore": 0.0}),
    ("vcotta", {"preset": "paper"}),
    ("vcotta", {"preset": "authors"}),
    ("vcl", {"preset": "paper"}),
]
NORM = ("vcotta", {"trains": "norm"})
VARIANT_CLAIMS = (
    "reset_is_bit_exact",
    "resumed_stream_equals_uninterrupted_stream",
    "random_numbers_of_others_are_not_disturbed",
    "gradients_never_reach_source_or_teacher_and_none_are_left",
    "a_loss_that_is_not_finite_changes_nothing_and_is_reported",
)


def test_every_method_has_a_promise_and_a_card() -> None:
    assert list(PROMISES) == METHODS
    assert all(find_method(name).card.venue for name in METHODS)


@pytest.mark.parametrize(("name", "claimed"), CASES, ids=str)
def test_a_method_keeps_the_contract(name, claimed, tiny, images) -> None:
    check, _ = CLAIMS[claimed]
    check(Subject(name, PROMISES[name], tiny, images))


@pytest.mark.parametrize(
    ("name", "options", "claimed"),
    [
        (name, options, claimed)
        for name, options in VARIANTS
        for claimed in VARIANT_CLAIMS
        if claimed in claims_of(name, PROMISES[name])
    ]
    + [(*NORM, claimed) for claimed in claims_of("vcotta", PROMISES["vcotta"])],
    ids=str,
)
def test_a_variant_keeps_the_contract(name, options, claimed, tiny, images) -> None:
    promise = replace(PROMISES[name], options=PROMISES[name].options | options)
    check, _ = CLAIMS[claimed]
    check(Subject(name, promise, tiny, images))


@pytest.mark.parametrize("name", [name for name in METHODS if PROMISES[name].network is None])
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("size", [(8, 8), (8, 14), (11, 7)])
@pytest.mark.filterwarnings("ignore:TinyNet has no normalisation layer")
def test_outputs_are_log_probabilities_for_any_network_and_image_size(name, norm, size, tiny, images) -> None:
    check_outputs(Subject(name, PROMISES[name], tiny, images), norm, size)


@pytest.mark.parametrize("name", [name for name in METHODS if PROMISES[name].network is not None])
def test_outputs_of_methods_that_need_another_network_are_log_probabilities(name, tiny, images) -> None:
    check_outputs(Subject(name, PROMISES[name], tiny, images), "batch", (8, 8))


@pytest.mark.parametrize("name", [name for name in METHODS if find_method(name).needs_tokens])
def test_networks_without_tokens_are_refused_by_those_who_need_them(name, tiny) -> None:
    with pytest.raises(ValueError, match=f"vision transformer for {name}.*got TinyNet, which has no tokens"):
        build_adapter(name, tiny())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_the_callers_grad_mode_does_not_matter(name, context, tiny, images) -> None:
    check_grad_mode(Subject(name, PROMISES[name], tiny, images), context)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_refused_before_any_state_changes(name, case, tiny, images) -> None:
    check_bad_input(Subject(name, PROMISES[name], tiny, images), case)


@pytest.mark.parametrize("name", [name for name in METHODS if find_method(name).needs_source])
def test_source_images_of_another_network_are_refused(name, tiny) -> None:
    with pytest.raises(ValueError, match="does not take images of shape"):
        build_adapter(name, network_for(name, tiny)(), source=[(torch.rand(8, 1, 8, 8), torch.arange(8) % 4)])


@pytest.mark.parametrize("name", ["vcotta", "petal", "rmt", "santa", "obao", "ecotta", "becotta", "vcl", "vida"])
def test_source_labels_of_another_network_are_refused_by_those_who_use_them(name, tiny) -> None:
    with pytest.raises(ValueError, match="0 to 3, one for each output of the network, but got 0 to 7"):
        build_adapter(name, tiny(), source=[(torch.rand(8, 3, 8, 8), torch.arange(8))])


def test_a_refused_state_leaves_a_method_that_was_not_prepared_as_it_was(tiny, images) -> None:
    source = [(images(24), torch.arange(24) % 4)]
    prepared = build_adapter("cotta", tiny(), source=source, views=2)
    adapter = build_adapter("cotta", tiny(), views=2)
    adapter(images())
    before, threshold = snapshot(adapter), adapter.threshold
    with pytest.raises(ValueError, match="another network"):
        adapter.load_state_dict(build_adapter("cotta", tiny(classes=7), source=source, views=2).state_dict())
    assert same(snapshot(adapter), before)
    assert (adapter.steps, adapter.threshold) == (1, threshold)
    adapter.load_state_dict(prepared.state_dict())
    assert adapter.threshold == prepared.threshold != threshold


def test_preparing_twice_is_preparing_once_and_disturbs_no_random_numbers(tiny, images) -> None:
    source = [(images(24), torch.arange(24) % 4)]
    model, before = tiny(), torch.get_rng_state()
    adapter = build_adapter("rmt", model, source=source, warm_up_images=24, replay=1.0, replay_images=8)  # drawn
    assert torch.equal(before, torch.get_rng_state())
    once = {name: tensor.clone() for name, tensor in adapter.prepared.items()}
    adapter.prepare(source)
    assert same(once, adapter.prepared)
