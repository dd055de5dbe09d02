"""Starts that compute the same do, and the kernels of an optimiser agree."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

from studies.step_sizes import run as script
from vcotta import build_adapter
from vcotta.models import build_network, save_weights
from vcotta.models.wide_resnet import digits_network


@pytest.mark.parametrize("network", ["wrn-16-4", "resnet-20"])
@pytest.mark.parametrize("training", [True, False])
def test_a_network_with_scaled_convolutions_computes_the_same(training, network, images) -> None:
    model = build_network(network).train()
    for seed in range(5):
        model(images(16, seed=seed))  # gives it running statistics of its own
    model.train(training)
    expected = model(images(8))
    scaled, noisy = (start.move(copy.deepcopy(model)) for start in (script.Start(scale=0.04), script.Start(noise=0.5)))
    assert torch.allclose(scaled(images(8)), expected, atol=1e-4)
    assert not torch.allclose(noisy(images(8)), expected, atol=1e-4)
    assert all(
        torch.allclose(ours.weight, 0.04 * theirs.weight)
        for ours, theirs in zip(scaled.modules(), model.modules(), strict=True)
        if isinstance(ours, nn.Conv2d)
    )


@pytest.mark.parametrize("network", ["wrn-16-4", "resnet-20", "resnext-29-4x32d"])
@pytest.mark.parametrize("training", [True, False])
def test_a_network_with_scaled_normalisation_computes_the_same(training, network, images) -> None:
    model = build_network(network).train()
    for seed in range(5):
        model(images(16, seed=seed))
    model.train(training).double()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.bias, std=0.1)
    scaled = script.Start(norm_scale=0.2).move(copy.deepcopy(model))
    torch.testing.assert_close(scaled(images(8).double()), model(images(8).double()))
    norms = [
        (ours, theirs)
        for ours, theirs in zip(scaled.modules(), model.modules(), strict=True)
        if isinstance(ours, nn.BatchNorm2d)
    ]
    assert all(torch.allclose(ours.weight, 0.2 * theirs.weight) for ours, theirs in norms)
    assert all(torch.allclose(ours.bias, 0.2 * theirs.bias) for ours, theirs in norms)


@pytest.mark.parametrize("kernel", ["foreach", "single"])
def test_on_the_cpu_another_kernel_changes_next_to_nothing(kernel, tiny, images) -> None:
    usual, other = build_adapter("tent", tiny()), build_adapter("tent", tiny())
    script.use_kernel(other, kernel)
    for seed in range(3):
        assert torch.allclose(usual(images(seed=seed)), other(images(seed=seed)), atol=1e-5)
    assert other.optimizer.param_groups[0]["lr"] == usual.optimizer.param_groups[0]["lr"]
    moved = zip(other.networks["model"].parameters(), other.start.parameters(), strict=True)
    assert any(not torch.equal(ours, source) for ours, source in moved)


def test_a_method_without_adam_and_an_unknown_kernel_are_refused(tiny, images) -> None:
    with pytest.raises(ValueError, match="that steps with Adam, but bn does not"):
        script.use_kernel(build_adapter("bn", tiny()), "single")
    stepped = build_adapter("tent", tiny())
    stepped(images())
    with pytest.raises(ValueError, match="that has not stepped yet, but that of tent has"):
        script.use_kernel(stepped, "single")
    with pytest.raises(ValueError, match="out of fused, foreach, single, but got 'none'"):
        script.use_kernel(build_adapter("tent", tiny()), "none")


def test_rows_are_added_one_for_each_combination(tmp_path) -> None:
    save_weights(digits_network(), tmp_path / "net.safetensors")
    common = [
        "--dataset",
        "digits",
        "--weights",
        str(tmp_path / "net.safetensors"),
        "--limit",
        "8",
        "--out",
        str(tmp_path / "rows.json"),
    ]
    script.main([*common, "--methods", "bn", "tent", "--scale", "1", "0.5"])
    script.main([*common, "--methods", "tent", "--noise", "1e-4", "--norm-scale", "2", "--set", "lr=0.5"])
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["method"], row["start"]["scale"], row["start"]["noise"]) for row in rows] == [
        ("bn", 1.0, 0.0),
        ("bn", 0.5, 0.0),
        ("tent", 1.0, 0.0),
        ("tent", 0.5, 0.0),
        ("tent", 1.0, 1e-4),
    ]
    assert (rows[-1]["options"], rows[-1]["start"]["norm_scale"]) == ({"lr": 0.5}, 2.0)
    assert len(rows[0]["errors"]) == len(rows[0]["corruptions"]) == 12
    assert rows[0]["nll"] == pytest.approx(rows[1]["nll"], rel=1e-3)
    assert rows[0]["nll"] != rows[2]["nll"]
