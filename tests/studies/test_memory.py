"""What is stored for the backward pass is counted once, without weights."""

from __future__ import annotations

import json

import torch
from torch import nn

from studies.methods import run_memory as script
from vcotta import build_adapter


def test_each_stored_activation_counts_once_and_weights_do_not() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 4))
    adapter, x = build_adapter("source", net), torch.rand(5, 3, 4, 4)
    weight = adapter.start[1].weight.detach().requires_grad_()  # the same storage

    def act() -> None:
        rows = x.flatten(1)
        (rows @ weight.T + rows @ weight.T).sum()

    assert script.stored_bytes(adapter, act) == x.nbytes


def test_a_row_for_each_method_is_written(tmp_path) -> None:
    script.main(["--network", "wrn-10-1", "--side", "16", "--json", str(tmp_path / "memory.json")])
    rows = json.loads((tmp_path / "memory.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["tent", "cotta", "ecotta"]
    assert rows[2]["stored"] < rows[0]["stored"] <= rows[1]["stored"]
    assert rows[2]["again"] > 0
