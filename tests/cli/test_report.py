from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def write_run(tmp_path):
    """Write the files of a run of two batches."""

    def write(name: str, method: str, wrong: int, domain: str = "fog", seed: int = 0) -> None:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"method": method, "batches": 2, "seed": seed}))
        record = {
            "domain": domain,
            "severity": 5,
            "n": 4,
            "errors": wrong,
            "nll": 0.5,
            "brier": 0.2,
            "labels": [0, 1, 2, 3],
            "predictions": [4] * wrong + [0, 1, 2, 3][wrong:],
            "confidences": [0.9] * 4,
            "last": {"forwards": 1},
        }
        lines = {
            "records": [record | {"batch": k} for k in range(2)],
            "timing": [{"batch": k, "seconds": 0.5, "peak_memory": 10} for k in range(2)],
        }
        for part, entries in lines.items():
            (folder / f"{part}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))

    return write


def test_a_report_prints_a_table_and_writes_every_file(command, write_run, tmp_path) -> None:
    write_run("bn-0", "bn", 1)
    write_run("bn-1", "bn", 2, seed=1)
    write_run("source", "source", 4)
    code, out, err = command("report", "runs", "--out", "report")
    assert (code, err) == (0, "")
    assert "37.5 ± 158.8" in out
    assert "Lowest mean error: bn" in out
    assert out.rstrip().endswith("Report of 3 runs: report/report.html")
    for name in ("report.html", "report.md", "report.csv", "figures/error.png", "figures/error.pdf"):
        assert (tmp_path / "report" / name).stat().st_size > 100


def test_a_replaced_report_of_other_runs_is_named(command, write_run) -> None:
    write_run("bn", "bn", 1)
    write_run("source", "source", 4)
    assert "replaces" not in command("report", "runs", "--out", "report")[1]
    assert "replaces" not in command("report", "runs", "--out", "report")[1]  # the same runs
    out = command("report", "runs/bn", "--out", "report")[1]
    assert out.rstrip().endswith("Report of 1 run: report/report.html, which replaces that of 2 runs")
    Path("report/report.csv").write_bytes(b"\xff\n\0")
    assert command("report", "runs/bn", "--out", "report")[0] == 0


def test_runs_of_different_streams_are_one_line_of_error_with_the_reason(command, write_run, tmp_path) -> None:
    write_run("a", "bn", 1)
    write_run("b", "bn", 1, domain="snow")
    code, _, err = command("report", "runs/a", "runs/b", "--out", "report")
    assert code == 2
    assert err.startswith("Error: Expected all runs to follow one stream, but runs/a and runs/b differ in their corrup")
    assert err.count("\n") == 1
    assert not (tmp_path / "report").exists()


def test_a_folder_without_runs_and_no_folder_at_all_are_named(command, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = command("report", "empty", "--out", "report")
    assert code == 2
    assert "Expected runs in empty" in err
    code, _, err = command("report", "--out", "report")
    assert code == 2
    assert "Missing argument" in err


def test_a_run_that_was_stopped_is_left_out_with_a_note(command, write_run, tmp_path) -> None:
    write_run("a", "bn", 1)
    write_run("b", "tent", 1)
    (tmp_path / "runs" / "b" / "records.jsonl").write_text("")
    code, out, err = command("report", "runs", "--out", "report")
    assert code == 0
    assert "Note: runs/b is left out." in err
    assert "tent" not in out


def test_the_command_explains_itself(command) -> None:
    code, out, _ = command("report", "--help")
    assert code == 0
    assert "Usage: vcotta report" in out
    assert "report.html" in out
