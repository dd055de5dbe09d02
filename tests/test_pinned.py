"""Behaviour as it was pinned: to the byte on the machine of the pins, nearly so on any other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from studies.demo.table import COLUMNS
from studies.files import read_result
from vcotta.corruptions import EXTRA, STANDARD

from . import pinned

PINS: dict[str, Any] = json.loads(pinned.PINS.read_text())
SAME_MACHINE = pinned.machine() == PINS["machine"]


@pytest.fixture(scope="module", autouse=True)
def no_photographs(tmp_path_factory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VCOTTA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def networks(no_photographs) -> pinned.Networks:
    return pinned.Networks()


def check(found: dict[str, Any], pin: dict[str, Any], tolerance: dict[str, float]) -> None:
    if SAME_MACHINE and "sha256" in pin:  # a pin without was made on another machine
        assert found == pin
    else:
        assert {key: found[key] for key in tolerance} == pytest.approx(
            {key: pin[key] for key in tolerance}, abs=max(tolerance.values())
        )


@pytest.mark.parametrize("name", pinned.run_names())
def test_a_run_is_the_pinned_one(name, networks, tmp_path) -> None:
    check(pinned.pin_run(name, networks, tmp_path / "run"), PINS[name], {"error": 0.05, "nll": 0.05})


@pytest.mark.parametrize("name", [*STANDARD, *EXTRA])
def test_a_corruption_gives_the_pinned_bytes(name) -> None:
    check(pinned.pin_corruption(name), PINS[f"corruption {name}"], {"mean": 0.5})


def test_the_study_of_the_demo_shows_the_pinned_table() -> None:
    rows = {row["method"]: row for row in read_result("demo", "seed-0.json")["rows"]}
    shown, expected = (
        {method: [format(row[key], form) for key, (_, form) in COLUMNS.items()] for method, row in table.items()}
        for table in (rows, PINS["demo"])
    )
    assert shown == expected, "python -m studies.demo.run && python -m studies.update"


@pytest.mark.slow
def test_the_demo_gives_the_pinned_table(tmp_path) -> None:
    found = pinned.pin_demo(tmp_path)
    if SAME_MACHINE:
        assert found == PINS["demo"]
    for method, row in PINS["demo"].items():
        assert found[method]["error"] == pytest.approx(row["error"], abs=1.5)
