"""The study of killed runs compares their records with those of the undisturbed run."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from studies.faults import run as script
from vcotta.models import save_weights
from vcotta.models.wide_resnet import digits_network
from vcotta.runs.spec import RunSpec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes by signals"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # forking a process that has threads
]


@pytest.fixture
def spec(tmp_path) -> RunSpec:
    """The study's run with fewer images, from a network that needs no training."""
    save_weights(digits_network(0), tmp_path / "plain.safetensors")
    return replace(script.SPEC, limit=20, weights=tmp_path / "plain.safetensors", start="unwarmed")


def test_killed_runs_are_resumed_to_the_same_records(spec, tmp_path) -> None:
    found = script.faults(2, 0, tmp_path, spec)
    assert (found["kills"], found["identical"], found["batches"]) == (2, 2, 15)
    assert all(one["resumed_from"] <= one["records_left"] for one in found["trials"])


def test_other_records_are_not_called_identical(spec, tmp_path, monkeypatch) -> None:
    records = script.records
    monkeypatch.setattr(script, "records", lambda out: records(out) + str(out).encode())
    assert script.faults(1, 0, tmp_path, spec)["identical"] == 0
