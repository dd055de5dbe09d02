"""The attacks of the study of guards, at full length on one network."""

from __future__ import annotations

import pytest
import torch

from studies.guards import run as script
from vcotta.models.wide_resnet import digits_network


def test_attacks_are_images_that_an_adapter_takes() -> None:
    net = digits_network(0).eval()
    for name in script.ATTACKS:
        (images,) = script.attacked(name, net, 1, 6)
        assert images.shape == (6, 3, 32, 32)
        assert images.min() >= 0
        assert images.max() <= 1
        (again,) = script.attacked(name, net, 1, 6)
        assert torch.equal(images, again)


@pytest.mark.slow
def test_after_200_batches_of_any_attack_a_guarded_adapter_is_within_a_point_of_bn() -> None:
    found = script.of_seed(0, 200, ordinary=True, guards=(True,))
    for row in found["rows"]:
        assert row["error"] <= row["bn"] + 1, row
        assert (row["attack"] is None) == ("first_action" not in row)
    assert found["ordinary"] == {"seed": 0, "same_records": True}
