from __future__ import annotations

import json
import time

import pytest

from vcotta.experiments import demo
from vcotta.runs.run import Run


def quiet(label: str, form: str):
    return lambda *values: None


def test_the_demo_writes_rows_tables_figures_and_runs(quick, tmp_path) -> None:
    runs = demo.run_demo(tmp_path, 0, quiet, limit=20)
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [row["method"] for row in rows] == list(demo.DEMO_RUNS)
    assert all(set(row) == {"method", "error", "nll", "brier", "ece", "seconds"} for row in rows)
    assert rows[0]["error"] > 20  # per cent, of an untrained network
    for name in ("error.png", "priors.png", "reliability.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "tables.md").read_text()
    assert "| bn (warmed) |" in table
    assert "| vcotta |" in table
    assert Run.load(tmp_path / "runs" / "vcotta").summary() == runs[-1].summary()


@pytest.mark.slow
def test_the_whole_demo_adapts_better_than_the_source(tmp_path) -> None:
    start = time.perf_counter()
    runs = {row["method"]: row for row in demo.demo_rows(demo.run_demo(tmp_path, 0, quiet))}
    print(f"demo: {time.perf_counter() - start:.0f} s")
    assert runs["vcotta"]["error"] < 0.5 * runs["source"]["error"]
    assert runs["vcotta"]["error"] < runs["bn-warmed"]["error"] < runs["bn"]["error"]
    assert runs["vcotta"]["nll"] < runs["source"]["nll"]
