"""Sizes are those of the weights, and a network's row is added to the others."""

from __future__ import annotations

import json

import pytest
from torch import nn

from studies.step_sizes import run_sizes as script
from vcotta.models import build_network, save_weights


def test_sizes_are_those_of_the_layers() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 1, bias=False), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    for place, value in ((0, 3.0), (1, -0.5), (2, 1.0), (3, 0.25)):
        nn.init.constant_(net[place].weight, value)
    found = script.sizes(net, ["2"])
    assert found["convolutions"] == pytest.approx({"median": 2.0, "smallest": 1.0, "largest": 3.0})
    assert found["scales"] == pytest.approx({"median": 0.375, "smallest": 0.25, "largest": 0.5})
    assert found["layers"] == pytest.approx({"2": 1.0})


def test_rows_are_added(tmp_path) -> None:
    net, out = build_network("resnet-20"), tmp_path / "rows.json"
    save_weights(net, tmp_path / "net.safetensors")
    common = ["--weights", str(tmp_path / "net.safetensors"), "--network", "resnet-20", "--out", str(out)]
    for name in ("one", "two"):
        script.main([*common, "--called", name])
    rows = json.loads(out.read_text())
    assert [row["called"] for row in rows] == ["one", "two"]
    first = next(layer for layer in net.modules() if isinstance(layer, nn.Conv2d)).weight
    assert rows[0]["convolutions"]["largest"] == pytest.approx(first.square().mean().sqrt().item())
