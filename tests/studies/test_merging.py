"""The study of merging has a row for each stream, merge and poison, and its tables show them."""

from __future__ import annotations

import json

import pytest

from studies.merging import run as script
from studies.merging import table
from vcotta import to_variational
from vcotta.models.wide_resnet import digits_network
from vcotta.runs.spec import RunSpec


@pytest.mark.slow
def test_every_stream_and_merge_has_a_row_that_the_tables_show(monkeypatch) -> None:
    for name in ("TURNED", "NOISE", "ONE"):
        monkeypatch.setattr(script, name, 1)
    monkeypatch.setattr(script, "CLASS", 1)  # there is one among the first images
    options = {"views": 0, "trains": "norm"}
    spec = RunSpec("vcotta", options=options, corruptions=script.EXTRA, table=224, limit=4, batch_size=4)
    rows = script.trial(spec, to_variational(digits_network(0)))
    merges = [row for row in rows if "rule" in row]
    assert len(merges) == 2 + 4 + 3 * 2
    assert [row["stream"] for row in rows[:4]] == ["source", "whole", "half 1", "half 2"]
    assert all(0 <= row["error"] <= 100 for row in rows)
    found = {"setting": {"corruptions": list(script.EXTRA), "severity": 5, "torch": "2"}, "rows": rows}
    found = json.loads(json.dumps(found))
    monkeypatch.setattr(table, "read_result", lambda *_: found)
    assert "`norm`, seed 0" in table.streams_text()
    assert all(f"| {name} |" in table.poison_text() for name in table.POISON)
