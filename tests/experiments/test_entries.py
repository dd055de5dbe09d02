from __future__ import annotations

import pytest

from vcotta.experiments.cells import Cell
from vcotta.experiments.entries import ENTRIES, Asked
from vcotta.experiments.paper_values import BRIER, NLL
from vcotta.experiments.reproduce import scaled
from vcotta.methods import METHODS, configure
from vcotta.protocols import build_protocol

NAMES = [
    "main",
    "imagenet-groups",
    "ablation-components",
    "mixture-weights",
    "uncertainty",
    "gradual",
    "margin",
    "augmentations",
    "warmup-vs-bnn",
    "warmup-epochs",
    "warmup-data",
    "orders",
    "reset",
    "loops",
    "batch-size",
    "cost",
    "learning-rate",
    "drift",
    "selective",
    "calibration",
]


def test_every_experiment_of_the_paper_and_ours_is_there() -> None:
    assert list(ENTRIES) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dataset", ["digits", "cifar10", "cifar100", "imagenet"])
@pytest.mark.parametrize("scale", ["quick", "full"])
def test_every_cell_is_a_real_setting(name, dataset, scale) -> None:
    cells = ENTRIES[name].all_cells(scaled(dataset, scale, preset="paper"))
    assert len({cell.key for cell in cells}) == len(cells)
    for cell in cells:
        configure(cell.method, dataset=dataset, **cell.options)
        build_protocol(cell.protocol, **cell.protocol_options)
        assert (cell.start != "source") == METHODS[cell.method].needs_variational


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_values_belong_to_rows(name) -> None:
    entry = ENTRIES[name]
    for dataset, values in entry.paper.items():
        labels = {cell.label for cell in entry.cells(Asked(dataset))}
        assert set(values) <= labels, dataset


def test_the_papers_means_are_what_it_prints() -> None:
    assert ENTRIES["main"].paper["cifar10"]["vcotta"] == 13.1
    assert ENTRIES["augmentations"].paper["cifar10"]["petal, 16 views"] == 16.1
    assert (NLL["cifar10"]["vcotta"], BRIER["imagenet"]["bn"]) == (0.5421, 0.8345)


def test_experiments_share_the_runs_they_have_in_common() -> None:
    asked = scaled("digits")
    main, cost = ({cell.key for cell in ENTRIES[name].all_cells(asked)} for name in ("main", "cost"))
    assert cost <= main


def test_a_key_tells_cells_apart_by_everything() -> None:
    one = Cell("vcotta", "digits", "vcotta")
    assert one.key == Cell("vcotta", "digits", "vcotta").key
    others = [Cell("vcotta", "digits", "vcotta", seed=1), Cell("vcotta", "digits", "vcotta", {"lr": 1.0})]
    assert len({one.key, *(other.key for other in others)}) == 3
    assert "/" not in Cell("1/2 of the source", "digits", "vcotta").key
