"""The study of request sizes has a row for every size, and counts the wrong answers of the adapter's start."""

from __future__ import annotations

import json

from studies.small_batches import run_requests as script
from vcotta import build_adapter, to_variational
from vcotta.experiments.build import stream_for
from vcotta.models.wide_resnet import digits_network
from vcotta.runs.spec import RunSpec


def test_without_adapting_the_wrong_answers_are_those_of_a_new_adapter() -> None:
    net, spec = digits_network(0), RunSpec("bn", corruptions=("none",), batch_size=6, limit=20)
    batches = list(stream_for(spec).batches())
    assert [len(batch.labels) for batch in batches] == [6, 6, 6, 2]
    new = [build_adapter("bn", net)(batch.images).argmax(1) for batch in batches]
    wrong = sum(int((answer != batch.labels).sum()) for answer, batch in zip(new, batches, strict=True))
    assert script.error_without_adapting(spec, net) == wrong / 20


def test_every_size_of_clean_and_corrupted_images_has_a_row() -> None:
    rows = script.of_network(to_variational(digits_network(0)), 0, [1, 2], 2)
    assert [(row["corruption"], row["size"]) for row in rows] == [("none", 1), ("none", 2), ("fog", 1), ("fog", 2)]
    for row in rows:
        assert row["error"] in (0, 50, 100)
        assert row["error_without_adapting"] in (0, 50, 100)
    assert json.dumps(rows)
