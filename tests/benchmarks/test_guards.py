"""The attacks of the guards' benchmark, at full length on one network."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def guards(script):
    return script


def test_attacks_are_images_that_an_adapter_takes(guards) -> None:
    net = guards.DIGITS.build(None).eval()
    for name in guards.ATTACKS:
        (images,) = guards.attacked(name, net, 1, 6)
        assert images.shape == (6, 3, 32, 32)
        assert images.min() >= 0
        assert images.max() <= 1
        (again,) = guards.attacked(name, net, 1, 6)
        assert torch.equal(images, again)


@pytest.mark.slow
def test_after_200_batches_of_any_attack_a_guarded_adapter_is_within_a_point_of_bn(guards) -> None:
    found = guards.of_seed(0, 200, ordinary=True, guards=(True,))
    for row in found["rows"]:
        assert row["error"] <= row["bn"] + 1, row
        assert (row["attack"] is None) == ("first_action" not in row)
    assert found["ordinary"] == {"seed": 0, "same_records": True}
