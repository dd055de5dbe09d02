"""Rows that runs fill in one by one, also by several processes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from studies import cells
from vcotta._util.files import write_json
from vcotta._util.locks import locked

KEYS = ("method",)


@pytest.fixture
def ran(monkeypatch) -> list[str]:
    """Run nothing; returns the methods that would have been run."""
    done: list[str] = []

    def run(spec, out, **_):
        done.append(spec.key)
        return SimpleNamespace(manifest={"method": spec.key})

    monkeypatch.setattr(cells, "run_spec", run)
    monkeypatch.setattr(cells, "portable", lambda manifest: manifest)
    return done


def plan(*methods: str):
    def of(rows):
        for method in methods:
            yield cells.Cell({"method": method}, SimpleNamespace(key=method))

    return of


def fill(tmp_path, *methods: str, minutes: float = 1) -> bool:
    return cells.fill(plan(*methods), KEYS, tmp_path / "rows.json", tmp_path / "work", minutes, lambda _: {"error": 1})


def rows(tmp_path) -> list[str]:
    return [row["method"] for row in json.loads((tmp_path / "rows.json").read_text())]


def test_each_row_is_made_once_and_has_its_manifest(tmp_path, ran) -> None:
    assert fill(tmp_path, "bn", "tent")
    assert fill(tmp_path, "bn", "tent", "cotta")
    assert ran == rows(tmp_path) == ["bn", "tent", "cotta"]
    assert list(json.loads((tmp_path / "rows-manifests.json").read_text())) == ran


def test_what_another_process_is_making_is_left_to_it(tmp_path, ran) -> None:
    with locked(tmp_path / "work" / "claims" / "bn.lock"):
        assert not fill(tmp_path, "bn", "tent")
    assert rows(tmp_path) == ["tent"]
    assert fill(tmp_path, "bn", "tent")
    assert rows(tmp_path) == ["tent", "bn"]


def test_rows_that_another_process_wrote_during_a_run_are_kept_and_not_made_again(tmp_path, ran, monkeypatch) -> None:
    run = cells.run_spec

    def slow(spec, out, **options):
        if spec.key == "bn":
            write_json(tmp_path / "rows.json", [{"method": "tent", "error": 2}])
        return run(spec, out, **options)

    monkeypatch.setattr(cells, "run_spec", slow)
    assert fill(tmp_path, "bn", "tent")
    assert ran == ["bn"]
    assert rows(tmp_path) == ["tent", "bn"]


def test_after_its_minutes_no_run_begins(tmp_path, ran) -> None:
    assert not fill(tmp_path, "bn", minutes=-1)
    assert not ran
