from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from vcotta.experiments.outcome import FORMS, Row, rows_as_json
from vcotta.experiments.outcome_page import outcome_section
from vcotta.experiments.paper.experiment import ExperimentOptions


def results(seeds: tuple[int, ...], paper: dict[str, float]) -> dict[str, Any]:
    scores = dict.fromkeys(FORMS, 1.0)
    row = Row("alpha 1", "vcotta", None, len(seeds), scores, {}, {"fog": 1.0}, paper, paper)
    return {
        "experiment": "mixture-weights",
        "asked": asdict(ExperimentOptions("cifar10", seeds=seeds)),
        "networks": {},
        "stream": {"images_per_domain": 10, "pixels": "generated", "severity_table": 32},
        "network": "wrn-28-10",
        "frost": "procedural",
        "runtime": {"device": "cuda", "precision": "bf16"},
        "hardware": "a GPU",
        "versions": {"torch": "2"},
        "cost": {"seconds": 1.0, "ran": 1, "cells": 1},
        "rows": rows_as_json([row]),
    }


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
@pytest.mark.parametrize("paper", [{}, {"error": 17.4}])
def test_the_caption_names_intervals_and_the_papers_values_only_where_they_are_drawn(seeds, paper) -> None:
    section = outcome_section(results(seeds, paper), "picture.png")
    assert ("Whiskers are 95 % intervals" in section) == (len(seeds) > 1)
    assert ("Diamonds are the paper's values" in section) == bool(paper)
    assert section.endswith("\n")
    assert not section.endswith("\n\n")


def test_frost_textures_are_named_whether_they_are_in_the_stream_or_beside_it() -> None:
    old = results((0,), {})
    new = {key: value for key, value in old.items() if key != "frost"}
    new["stream"] = new["stream"] | {"frost": "procedural"}
    assert "generated pixels (procedural frost)" in outcome_section(old, "picture.png")
    assert outcome_section(new, "picture.png") == outcome_section(old, "picture.png")
    del new["stream"]["frost"]
    assert "generated pixels, bf16" in outcome_section(new, "picture.png")


def test_the_command_names_another_network_and_source_images() -> None:
    facts = results((0,), {}) | {"network": "resnet-20", "source": "folder:/home/me/photos"}
    assert "--model resnet-20 --source folder:SOURCE" in outcome_section(facts, "p.png")
    assert "--model" not in outcome_section(results((0,), {}), "p.png")
