from __future__ import annotations

import pytest

from vcotta.experiments.paper.experiments import EXPERIMENTS, ExperimentOptions
from vcotta.experiments.paper.values import BRIER, MEANS, NLL
from vcotta.experiments.reproduce import scaled
from vcotta.methods import find_method

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
    "streams",
]


def test_every_experiment_of_the_paper_and_ours_is_there() -> None:
    assert list(EXPERIMENTS) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dataset", ["digits", "cifar10", "cifar100", "imagenet"])
@pytest.mark.parametrize("scale", ["quick", "full"])
def test_every_cell_can_be_configured(name, dataset, scale) -> None:
    specs = EXPERIMENTS[name].all_specs(scaled(dataset, scale, preset="paper"))
    assert len({spec.key for spec in specs}) == len(specs)
    for spec in specs:
        warmed = name == "streams" or find_method(spec.method).needs_variational  # there all start from one network
        assert (spec.resolved_start != "source") == warmed


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_values_belong_to_rows(name) -> None:
    experiment = EXPERIMENTS[name]
    assert set(experiment.paper) <= set(experiment.scores)
    tables = [*experiment.paper.values(), experiment.by_corruption or {}]
    for dataset, values in ((dataset, values) for printed in tables for dataset, values in printed.items()):
        labels = {spec.label for spec in experiment.specs(ExperimentOptions(dataset))}
        assert set(values) <= labels, dataset


def test_the_papers_means_are_what_it_prints() -> None:
    assert EXPERIMENTS["main"].paper["error"]["cifar10"]["vcotta"] == 13.1
    assert EXPERIMENTS["augmentations"].paper["error"]["cifar10"]["petal, 16 views"] == 16.1
    assert EXPERIMENTS["reset"].paper["error"]["cifar100"]["vcotta, reset"] == 29.9
    assert (NLL["cifar10"]["vcotta"], BRIER["imagenet"]["bn"]) == (0.5421, 0.8345)


def test_the_papers_rows_have_the_mean_it_prints() -> None:
    misprints = {("cifar100", "rotta"), ("cifar100", "petal"), ("cifar10", "petal"), ("cifar100", "cotta, reset")}
    for name in ("main", "reset"):
        for dataset, rows in EXPERIMENTS[name].by_corruption.items():
            for label, errors in rows.items():
                assert len(errors) == 15
                if (dataset, label) not in misprints:
                    assert sum(errors) / 15 == pytest.approx(MEANS[name][dataset][label], abs=0.11), (dataset, label)


def test_a_few_methods_and_values_can_be_chosen() -> None:
    main = EXPERIMENTS["main"].all_specs(scaled("cifar10", "full", methods=("bn", "vcotta"), seeds=(3,)))
    assert [spec.key for spec in main] == [
        spec.key
        for spec in EXPERIMENTS["main"].all_specs(scaled("cifar10", "full", seeds=(3,)))
        if spec.method in ("bn", "vcotta")
    ]
    some = EXPERIMENTS["augmentations"].all_specs(scaled("cifar10", "full", methods=["vcotta"], values=(0, 8, 32.0)))
    assert [spec.options["views"] for spec in some] == [0, 8, 32] * 3
    parts = EXPERIMENTS["warmup-data"].all_specs(scaled("cifar10", "full", values=(1 / 10, 1.0), seeds=(0,)))
    assert [spec.label for spec in parts] == ["1/1 of the source", "1/10 of the source"]


@pytest.mark.parametrize(
    ("name", "chosen", "text"),
    [
        ("reset", {"methods": ["cota"]}, "`method` to be one of .*Did you mean 'cotta'"),
        ("reset", {"methods": ["bn"]}, "`method` to be one of cotta, vcotta, but got 'bn'"),
        ("augmentations", {"values": [3]}, "`value` to be one of 0, 4, 8, 16, 32, 64, but got '3'"),
        ("main", {"values": [3]}, "`values` only for an experiment that varies a number"),
    ],
)
def test_methods_and_values_that_an_experiment_does_not_have_are_refused(name, chosen, text) -> None:
    with pytest.raises(ValueError, match=text):
        EXPERIMENTS[name].all_specs(scaled("cifar10", "full", **chosen))


def test_a_limit_on_images_does_not_shorten_the_grids_of_the_full_scale() -> None:
    for name in ("orders", "loops", "batch-size", "augmentations"):
        whole, limited = (EXPERIMENTS[name].all_specs(scaled("cifar10", "full", limit=limit)) for limit in (None, 2000))
        assert len(whole) == len(limited)


def test_experiments_share_the_runs_they_have_in_common() -> None:
    chosen = scaled("cifar10", "full", seeds=(0,))
    keys = {name: {spec.label: spec.key for spec in EXPERIMENTS[name].all_specs(chosen)} for name in EXPERIMENTS}
    main = keys["main"]
    assert set(keys["cost"].values()) <= set(main.values())
    same = {"reset": "vcotta", "ablation-components": "VWU", "warmup-vs-bnn": "warm-up"}
    for name, label in {**same, "augmentations": "vcotta, 8 views", "warmup-data": "1/1 of the source"}.items():
        assert keys[name][label] == main["vcotta"], name
    assert keys["augmentations"]["cotta, 32 views"] == keys["reset"]["cotta"] == main["cotta"]
    assert main["vcotta"] not in (keys["reset"]["vcotta, reset"], keys["mixture-weights"]["adaptive"])


def test_any_method_can_be_chosen_for_the_streams() -> None:
    specs = EXPERIMENTS["streams"].all_specs(scaled("digits", "quick", methods=("eata",), seeds=(0,)))
    assert {spec.method for spec in specs} == {"eata"}
    assert specs[0].label == "continual-50: eata"


def test_step_sizes_are_varied_on_any_data_set() -> None:
    specs = EXPERIMENTS["learning-rate"].all_specs(ExperimentOptions("tiny-imagenet"))
    assert [round(spec.config.lr, 6) for spec in specs] == [0.0003, 0.003, 0.009, 0.03, 0.09, 0.3]
