"""The command that merges adapters."""

from __future__ import annotations

import pytest
import torch

import vcotta
from vcotta import build_adapter, to_variational
from vcotta.models import build_network


@pytest.fixture
def files(tmp_path, images) -> list[str]:
    model = to_variational(build_network("wrn-10-1", 4))
    for place in range(4):
        adapter = build_adapter("vcotta", model, guard=False, views=0, lr=0.05, student="image", full_batch=None)
        for seed in range(3):
            adapter(images(12, seed=seed)[place : place + 9])
        if place == 3:
            with torch.no_grad():
                adapter.networks["teacher"].conv1.weight.add_(50)
        vcotta.save(adapter, tmp_path / f"{place}.vcotta")
    return [str(tmp_path / f"{place}.vcotta") for place in range(4)]


def test_files_are_merged_and_the_one_that_is_far_is_left_out(command, files, images) -> None:
    code, out, _ = command("merge", *files, "--out", "merged.vcotta")
    assert code == 0
    lines = out.splitlines()
    assert [line.rpartition(", ")[2] for line in lines[:-1]] == ["weight 0.33"] * 3 + ["left out"]
    assert "sigma from the median, agreement" in lines[0]
    assert lines[-1] == "Merged 3 adapters into merged.vcotta"
    assert vcotta.load("merged.vcotta")(images()).isfinite().all()
    assert command("merge", *files, "--out", "merged.vcotta")[0] == 2  # it exists
    weights = [word for place in (1, 1, 1, 2) for word in ("--weight", str(place))]
    kept = ("--rule", "product", "--keep-outliers", "--overwrite")
    code, out, _ = command("merge", *files, *weights, *kept, "--out", "merged.vcotta")
    assert code == 0
    assert "weight 2.00" in out.splitlines()[3]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ([], "Expected at least two states to merge, but got 1."),
        (["0.vcotta", "--rule", "mean"], "`rule`"),
        (["0.vcotta", "--weight", "1"], "Expected 2 weights above 0, one for each state, but got [1.0]."),
        (["none.vcotta"], "none.vcotta"),
    ],
)
def test_mistakes_are_one_line(command, files, more, text) -> None:
    code, out, err = command("merge", files[0], *more, "--out", "merged.vcotta")
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1
