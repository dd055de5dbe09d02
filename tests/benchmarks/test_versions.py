"""Two versions of the code are run side by side; here both are this one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import launches, versions

ROOT = Path(versions.__file__).parents[1]


@pytest.mark.parametrize("script", [versions, launches])
def test_a_folder_without_the_code_is_refused(script, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit):
        script.main([str(tmp_path)])
    assert "src/vcotta" in capsys.readouterr().err


def test_a_run_that_fails_shows_why(tmp_path) -> None:
    (tmp_path / "src" / "vcotta").mkdir(parents=True)
    (tmp_path / "src" / "vcotta" / "__init__.py").write_text("raise ImportError('broken on purpose')\n")
    with pytest.raises(RuntimeError, match="broken on purpose"):
        versions.run(tmp_path, "bn", 0, 20)


@pytest.mark.slow
def test_versions_take_turns_and_this_version_errs_as_itself(tmp_path) -> None:
    out = tmp_path / "versions.json"
    versions.main([str(ROOT), "--method", "bn", "--seeds", "0", "1", "--limit", "20", "--json", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [(row["version"], row["seed"]) for row in rows] == [("before", 0), ("after", 0), ("after", 1), ("before", 1)]
    assert rows[0]["error"] == rows[1]["error"]
    assert all(row["ms_per_step"] > 0 for row in rows)


@pytest.mark.slow
def test_the_same_code_launches_as_much(tmp_path) -> None:
    out = tmp_path / "launches.json"
    launches.main([str(ROOT), "--json", str(out)])
    before, after = json.loads(out.read_text())["rows"]
    assert {**before, "version": ""} == {**after, "version": ""}
    assert before["groups"] == 1
