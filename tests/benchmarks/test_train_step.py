"""The training step is timed in every form, with what is needed to read the numbers."""

from __future__ import annotations

import json

import torch


def test_every_form_has_a_row_and_torch_is_left_as_it_was(script, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    small = ["--device", "cpu", "--batch-size", "2", "--warm", "0", "--steps", "1"]
    script.main([*small, "--json", str(tmp_path / "rows.json")])
    found = json.loads((tmp_path / "rows.json").read_text())
    assert [row["what"] for row in found["rows"]] == [
        "groups as they are",
        "groups as they are, kernels tried",
        "groups as dense convolutions",
        "AugMix of 1 batch",
        "AugMix of 8 batches",
    ]
    assert all(row["ms"] > 0 for row in found["rows"])
    assert found["setting"]["batch_size"] == 2
    assert torch.backends.cudnn.benchmark
