"""The study of streams: its rows, and that it continues where it was stopped."""

from __future__ import annotations

import json

import pytest

import studies.streams.run as study
from studies.streams.table import streams_text


@pytest.mark.slow
def test_rows_are_made_once_and_kept(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "streams.json"
    words = ["--images", "20", "--columns", "1", "--methods", "source", "--out", str(out)]
    study.main(words)
    (row,) = json.loads(out.read_text())
    assert {"network", "stream", "batch_size", "method", "start", "seed", "error", "nll", "ece"} <= row.keys()
    assert (row["network"], row["stream"], row["method"]) == ("digits", "random order", "source")
    capsys.readouterr()
    study.main(words)
    assert capsys.readouterr().out == ""


def test_the_lowest_error_of_each_column_is_bold() -> None:
    head, _, *rows = streams_text().split("\n\n")[0].splitlines()
    columns = list(zip(*([cell.strip() for cell in row.strip("|").split("|")] for row in rows), strict=True))[1:]
    assert len(columns) == len(head.strip("|").split("|")) - 1
    for cells in columns:
        values = [float(cell.strip("*")) for cell in cells]
        assert {cell for cell in cells if cell.startswith("**")} == {f"**{min(values):.1f}**"}
