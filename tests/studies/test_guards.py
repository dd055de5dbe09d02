"""The attacks of the study of guards, at full length on one network."""

from __future__ import annotations

import pytest
import torch

from studies.guards import erosion
from studies.guards import run as script
from vcotta import build_adapter, to_variational
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


def test_natural_streams_are_the_same_digits_seen_otherwise() -> None:
    (upright, labels), (down, same) = (next(erosion.stream(kind, 0)) for kind in ("negative", "upside down"))
    assert torch.allclose(1 - upright, down.flip(2))
    assert torch.equal(labels, same)


def test_networks_that_are_the_source_contradict_it_nowhere() -> None:
    adapter = build_adapter("vcotta", to_variational(digits_network(0).eval()), views=0)
    images, _ = next(erosion.stream("negative", 0))
    assert erosion.disagreement(adapter, images)["against"] == 0


@pytest.mark.slow
def test_with_a_probe_a_stream_of_upside_down_digits_leaves_clean_and_foggy_ones_nearly_as_they_were() -> None:
    row = erosion.of_stream(0, "upside down", True, 100)
    start, *later = (look["errors"] for look in row["course"])
    for errors in later:
        assert errors["none"] <= start["none"] + 1
        assert errors["fog"] <= start["fog"] + 2.5  # rounding decides between one and two; without a probe ten points
    assert row["events"]


@pytest.mark.slow
def test_after_200_batches_of_any_attack_a_guarded_adapter_is_within_a_point_of_bn() -> None:
    found = script.of_seed(0, 200, ordinary=True, guards=(True,))
    for row in found["rows"]:
        assert row["error"] <= row["bn"] + 1, row
        assert (row["attack"] is None) == ("first_action" not in row)
    assert found["ordinary"] == {"seed": 0, "same_records": True}
