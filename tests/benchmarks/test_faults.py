"""The script that kills runs at random moments counts what came of them."""

from __future__ import annotations

import os

import pytest

from vcotta.bayes import to_variational
from vcotta.data.digits import digits_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes by signals"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # forking a process that has threads
]


@pytest.fixture
def faults(script, monkeypatch):
    monkeypatch.setattr(script, "start_network", lambda *_: to_variational(digits_network(0)))
    monkeypatch.setattr(script, "LIMIT", 20)
    return script


def test_killed_runs_go_on_to_the_same_records(faults, tmp_path) -> None:
    found = faults.faults(2, 0, tmp_path)
    assert (found["kills"], found["identical"], found["batches"]) == (2, 2, 15)
    assert all(one["resumed_from"] <= one["records_left"] for one in found["trials"])


def test_other_records_are_not_called_identical(faults, tmp_path, monkeypatch) -> None:
    records = faults.records
    monkeypatch.setattr(faults, "records", lambda out: records(out) + str(out).encode())
    assert faults.faults(1, 0, tmp_path)["identical"] == 0
