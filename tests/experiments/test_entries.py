from __future__ import annotations

from dataclasses import replace

import pytest

from vcotta.experiments.cells import Cell
from vcotta.experiments.entries import ENTRIES, Asked
from vcotta.experiments.paper_rows import MEANS
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
    assert set(entry.paper) <= set(entry.scores)
    told = [*entry.paper.values(), entry.by_corruption or {}]
    for dataset, values in ((dataset, values) for printed in told for dataset, values in printed.items()):
        labels = {cell.label for cell in entry.cells(Asked(dataset))}
        assert set(values) <= labels, dataset


def test_the_papers_means_are_what_it_prints() -> None:
    assert ENTRIES["main"].paper["error"]["cifar10"]["vcotta"] == 13.1
    assert ENTRIES["augmentations"].paper["error"]["cifar10"]["petal, 16 views"] == 16.1
    assert ENTRIES["reset"].paper["error"]["cifar100"]["vcotta, reset"] == 29.9
    assert (NLL["cifar10"]["vcotta"], BRIER["imagenet"]["bn"]) == (0.5421, 0.8345)


def test_the_papers_rows_have_the_mean_it_prints() -> None:
    slips = {("cifar100", "rotta"), ("cifar100", "petal"), ("cifar10", "petal"), ("cifar100", "cotta, reset")}
    for name in ("main", "reset"):
        for dataset, rows in ENTRIES[name].by_corruption.items():
            for label, errors in rows.items():
                assert len(errors) == 15
                if (dataset, label) not in slips:
                    assert sum(errors) / 15 == pytest.approx(MEANS[name][dataset][label], abs=0.11), (dataset, label)


def test_a_few_methods_and_values_can_be_asked_for() -> None:
    main = ENTRIES["main"].all_cells(scaled("cifar10", "full", methods=("bn", "vcotta"), seeds=(3,)))
    assert [cell.key for cell in main] == [
        cell.key
        for cell in ENTRIES["main"].all_cells(scaled("cifar10", "full", seeds=(3,)))
        if cell.method in ("bn", "vcotta")
    ]
    some = ENTRIES["augmentations"].all_cells(scaled("cifar10", "full", methods=["vcotta"], values=(0, 8, 32.0)))
    assert [cell.options["views"] for cell in some] == [0, 8, 32] * 3
    parts = ENTRIES["warmup-data"].all_cells(scaled("cifar10", "full", values=(1 / 10, 1.0), seeds=(0,)))
    assert [cell.label for cell in parts] == ["1/1 of the source", "1/10 of the source"]


@pytest.mark.parametrize(
    ("name", "asked", "text"),
    [
        ("reset", {"methods": ["cota"]}, "`method` to be one of .*Did you mean 'cotta'"),
        ("reset", {"methods": ["bn"]}, "`method` to be one of cotta, vcotta, but got 'bn'"),
        ("augmentations", {"values": [3]}, "`value` to be one of 0, 4, 8, 16, 32, 64, but got '3'"),
        ("main", {"values": [3]}, "`values` only for an experiment that varies a number"),
    ],
)
def test_what_an_experiment_does_not_have_is_told(name, asked, text) -> None:
    with pytest.raises(ValueError, match=text):
        ENTRIES[name].all_cells(scaled("cifar10", "full", **asked))


def test_a_limit_on_images_does_not_shorten_the_grids_of_the_full_scale() -> None:
    for name in ("orders", "loops", "batch-size", "augmentations"):
        whole, limited = (ENTRIES[name].all_cells(scaled("cifar10", "full", limit=limit)) for limit in (None, 2000))
        assert len(whole) == len(limited)


def test_experiments_share_the_runs_they_have_in_common() -> None:
    asked = scaled("cifar10", "full", seeds=(0,))
    keys = {name: {cell.label: cell.key for cell in ENTRIES[name].all_cells(asked)} for name in ENTRIES}
    main = keys["main"]
    assert set(keys["cost"].values()) <= set(main.values())
    same = {"mixture-weights": "alpha 0.5", "reset": "vcotta", "ablation-components": "VWU", "warmup-vs-bnn": "warm-up"}
    for name, label in {**same, "augmentations": "vcotta, 32 views", "warmup-data": "1/1 of the source"}.items():
        assert keys[name][label] == main["vcotta"], name
    assert keys["augmentations"]["cotta, 32 views"] == keys["reset"]["cotta"] == main["cotta"]
    assert main["vcotta"] not in (keys["reset"]["vcotta, reset"], keys["mixture-weights"]["adaptive"])


def test_a_key_tells_cells_apart_by_all_but_their_label() -> None:
    one = Cell("vcotta", "digits", "vcotta")
    assert one.key == Cell("1/1 of the source", "digits", "vcotta").key
    changes = ({"seed": 1}, {"options": {"lr": 1.0}}, {"limit": 5}, {"start": "warmed"}, {"warm_up": {"epochs": 1}})
    changes += ({"protocol": "gradual"}, {"batch_size": 7}, {"source_share": 0.5}, {"dataset": "cifar10"})
    others = [replace(one, **change) for change in changes]
    assert len({one.key, *(other.key for other in others)}) == 1 + len(changes)
