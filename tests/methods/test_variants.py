"""The forms of a method that an option chooses keep the common promises, too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from . import test_contract
from .promises import PROMISES

VARIANTS = [
    ("bn", {"statistics": "prior"}),
    ("bn", {"statistics": "ema"}),
    ("eata", {"fisher_weight": 0.0}),
    ("petal", {"restoration": "random"}),
    ("petal", {"loss": "sce"}),
    ("rmt", {"replay": 1.0, "replay_images": 8, "warm_up_images": 24}),
    ("surgeon", {"layers": "all"}),
    ("tca", {"centre_share": 0.5}),
    ("tca", {"unit": False}),
    ("vcotta", {"preset": "paper"}),
    ("vcotta", {"preset": "authors"}),
]
CLAIMS = (
    "reset_is_bit_exact",
    "resumed_stream_equals_uninterrupted_stream",
    "nobody_elses_random_numbers_are_disturbed",
    "gradients_never_reach_source_or_teacher_and_none_are_left",
    "a_loss_that_is_not_finite_leaves_the_weights_and_is_reported",
)


CASES = [
    (name, options, claim)
    for name, options in VARIANTS
    for claim in CLAIMS
    if name in test_contract.TRAINED or "loss" not in claim
]


@pytest.mark.parametrize(("name", "options", "claim"), CASES, ids=str)
def test_a_variant_keeps_what_every_method_promises(name, options, claim, tiny, images, monkeypatch) -> None:
    monkeypatch.setitem(PROMISES, name, replace(PROMISES[name], options=PROMISES[name].options | options))
    getattr(test_contract, f"test_{claim}")(name, tiny, images)
