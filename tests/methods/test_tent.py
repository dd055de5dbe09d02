from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from vcotta.methods import BN, TENT, TENTConfig


def test_only_scale_and_shift_of_normalisation_layers_change(tiny, images) -> None:
    adapter = TENT(tiny())
    before = tiny().state_dict()
    adapter(images())
    changed = {k for k, v in adapter.networks["model"].state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {"norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"}


def test_without_a_step_tent_is_bn(tiny, images) -> None:
    tent, bn = TENT(tiny(), TENTConfig(lr=0.0)), BN(tiny())
    for seed in range(3):
        assert torch.equal(tent(images(seed=seed)), bn(images(seed=seed)))


def test_repeating_a_batch_lowers_its_entropy(tiny, images) -> None:
    adapter = TENT(tiny(), TENTConfig(lr=1e-2, optimizer="sgd"))
    entropies = []
    for _ in range(6):
        adapter(images())
        entropies.append(adapter.last["entropy"])
    assert all(later < earlier for earlier, later in pairwise(entropies))


def test_a_network_without_normalisation_predicts_with_a_warning(tiny, images) -> None:
    with pytest.warns(UserWarning, match="without adapting"):
        adapter = TENT(tiny("none"))
    assert torch.equal(adapter(images()), BN(tiny("none"))(images()))
