"""The study of small states has a row for each setting, and counts shared memory once."""

from __future__ import annotations

import json

import pytest

from studies.small_state import run as script
from vcotta import to_variational
from vcotta.models.wide_resnet import digits_network
from vcotta.runs.spec import RunSpec


@pytest.mark.slow
def test_every_setting_has_an_error_on_one_network(monkeypatch) -> None:
    monkeypatch.setattr(script, "start_network", lambda spec: to_variational(digits_network(0)))
    monkeypatch.setattr(script, "EXTRA", ("saturate",))
    monkeypatch.setattr(script, "SEVERITIES", (5,))
    rows = script.errors(RunSpec("vcotta", limit=4, seed=3))
    assert [(row["trains"], row["seed"], row["batch_size"]) for row in rows] == [
        ("all", 3, 50),
        ("norm", 3, 50),
        ("nothing", 3, 50),
    ]
    assert all(row["error"] in (0, 25, 50, 75, 100) and list(row["errors"]) == ["saturate 5"] for row in rows)
    assert json.dumps(rows)


def test_what_networks_share_is_counted_once() -> None:
    everything, norm = script.sizes("resnet-20", batch_size=2, steps=1)
    source = everything["source_bytes"]
    assert everything["tensor_bytes"] > 4.9 * source  # source, student, teacher, two moments
    assert source < norm["tensor_bytes"] < 1.05 * source
    assert norm["file_bytes"] < everything["file_bytes"] / 20
    assert norm["ms_per_step"] > 0
