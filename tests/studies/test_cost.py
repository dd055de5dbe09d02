"""The study of what a batch costs measures real steps, and its pages show the files' numbers."""

from __future__ import annotations

import json

import pytest

from studies.cost import run as script
from studies.cost import table
from studies.cost.picture import draw_cost

FIELDS = ["dataset", "network", "method", "views", "batch_size", "ms_per_batch", "peak_gib", "error"]
FIELDS += ["reference_ms", "reference_error"]


@pytest.mark.parametrize(("method", "views"), [("plain", None), ("bn", None)])
def test_a_row_has_the_median_time_and_the_memory_of_its_process(method, views) -> None:
    row = script.measure(method, views, 2, 1)
    assert list(row) == FIELDS
    assert (row["method"], row["views"], row["batch_size"]) == (method, views, 2)
    assert row["ms_per_batch"] > 0
    assert 0.05 < row["peak_gib"] < 64


@pytest.mark.slow
def test_the_script_writes_setting_and_rows(tmp_path) -> None:
    out = tmp_path / "steps.json"
    script.main(["--batch-sizes", "2", "--methods", "plain", "cotta", "--steps", "1", "--out", str(out)])
    found = json.loads(out.read_text())
    assert [row["method"] for row in found["rows"]] == ["plain", "cotta"]
    assert [row["views"] for row in found["rows"]] == [None, 32]
    assert found["setting"]["threads"] == found["setting"]["steps"] == 1


def rows(base: float, each: float) -> list[dict]:
    plain = {"method": "plain", "views": None, "ms_per_batch": 10.0}
    some = [{"method": "vcotta", "views": n, "ms_per_batch": base + each * n} for n in (0, 2, 8)]
    more = {"dataset": "random", "network": "a network", "peak_gib": 0.5}
    return [row | more | {"batch_size": size} for size in table.BUDGETS for row in [plain, *some]]


def test_the_tables_and_the_picture_show_what_the_file_holds(monkeypatch, tmp_path) -> None:
    setting = dict.fromkeys(("hardware", "threads", "clock", "steps", "runs", "torch", "vcotta"), "?")
    monkeypatch.setattr(table, "read_result", lambda *_: {"setting": setting, "rows": rows(100, 40)})
    assert table.line_of(16) == pytest.approx((100, 40))
    assert "100 ms + 40 ms x views for 16 images" in table.budget_text()
    assert "500 ms for 16 images allow 10 views" in table.budget_text()
    assert "| vcotta | 8 | 420 | 42.0 | 38 | 0.50 | 420 | 42.0 | 152 | 0.50 |" in table.steps_text()
    draw_cost(tmp_path / "cost.png")
    assert (tmp_path / "cost.png").stat().st_size > 5000
