"""The passes that the benchmark repeats are those the method made; how long they take is not tested."""

from __future__ import annotations

import json

import pytest
import torch

from vcotta import Runtime, build_adapter, to_variational
from vcotta.methods import list_general_methods
from vcotta.models import build_network


def made_by(script, method: str) -> tuple[list, dict]:
    network = build_network("wrn-10-1")
    model = to_variational(network) if method == "vcotta" else network
    options = {"cotta": {"views": 2}, "vcotta": {"views": 2, "full_batch": 4}}.get(method, {})
    adapter, made = build_adapter(method, model, guard=False, **options), []
    adapter(torch.rand(4, 3, 16, 16))  # the first batch is also tried on two images
    with script.recorded(made, adapter):
        adapter(torch.rand(4, 3, 16, 16))
    return made, adapter.last


@pytest.mark.parametrize(("method", "backwards"), [("bn", [0]), ("palm", [2, 1]), ("vcotta", [0] * 5 + [1, 1])])
def test_every_pass_is_recorded_with_the_backwards_that_went_through_it(method, backwards, script) -> None:
    made, last = made_by(script, method)
    assert sum(one.views for one in made) == last["forwards"]
    assert [one.backwards for one in made] == backwards
    assert all(len(one.images) == 4 and one.batch_statistics for one in made)


def test_a_pass_made_again_leaves_no_gradient(script) -> None:
    made, _ = made_by(script, "cotta")
    for one in made:
        one.again(Runtime())
        assert all(parameter.grad is None for parameter in one.net.parameters())


def rows(script, folder, *asked: str) -> list[dict]:
    small = ["--device", "cpu", "--network", "wrn-10-1", "--image-size", "8", "--batch-size", "10"]
    script.main([*small, "--steps", "1", "--warm", "1", "--json", str(folder / "passes.json"), *asked])
    return json.loads((folder / "passes.json").read_text())["rows"]


def test_a_row_is_the_step_beside_its_passes(script, tmp_path, capsys) -> None:
    found = rows(script, tmp_path, "--methods", "tent,roid")
    assert [row["method"] for row in found] == ["tent", "roid"]
    assert all(row["ratio"] == pytest.approx(row["step_ms"] / row["passes_ms"]) for row in found)
    assert "ratio" in capsys.readouterr().out


@pytest.mark.slow
def test_every_method_has_a_row(script, tmp_path) -> None:
    assert [row["method"] for row in rows(script, tmp_path)] == list_general_methods()
