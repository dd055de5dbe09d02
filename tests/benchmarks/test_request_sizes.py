"""The benchmark of request sizes sends what it says it sends, and its row of errors is of these answers."""

from __future__ import annotations

import json

import pytest
import torch

from vcotta.bayes import to_variational
from vcotta.data.digits import digits_network


class Told:
    """An adapter that says 3 of every image and keeps how many came at once."""

    def __init__(self) -> None:
        self.adapted: list[int] = []
        self.looked: list[int] = []

    def __call__(self, images):
        self.adapted.append(len(images))
        return torch.eye(10)[[3] * len(images)]

    def predict(self, images):
        self.looked.append(len(images))
        self.probabilities = torch.eye(10)[[3] * len(images)]
        return self


@pytest.mark.parametrize("adapt", [True, False])
def test_every_request_has_its_size_and_wrong_answers_are_counted(script, adapt) -> None:
    labels = next(
        iter(script.stream_for(script.DIGITS, corruptions=("none",), batch_size=20, limit=20).batches())
    ).labels
    adapter = Told()
    error = script.error(adapter, "none", 6, 20, 0, adapt)
    assert error == 5 * int((labels != 3).sum())
    assert (adapter.adapted, adapter.looked) == (([6, 6, 6, 2], []) if adapt else ([], [6, 6, 6, 2]))


def test_every_size_of_clean_and_corrupted_images_has_a_row(script, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(script, "start_network", lambda *_, **__: to_variational(digits_network(0)))
    out = tmp_path / "sizes.json"
    script.main(["--seeds", "0", "--sizes", "1", "2", "--images", "2", "--out", str(out)])
    found = json.loads(out.read_text())
    assert [(row["corruption"], row["size"]) for row in found["rows"]] == [
        ("none", 1),
        ("none", 2),
        ("fog", 1),
        ("fog", 2),
    ]
    for row in found["rows"]:
        assert row["error"] in (0, 50, 100)
        assert row["error_without_adapting"] in (0, 50, 100)
    assert found["setting"]["images"] == 2
