"""Each method's settings on each data set are those of the code or the paper that its config names."""

from __future__ import annotations

import pytest

from vcotta.methods import configure

DATASETS = ("cifar10", "cifar100", "imagenet")
ADAM_OR_SGD = ("adam", "adam", "sgd")
ADAM_OR_MOMENTUM = ("adam", "adam", "momentum")
# Method, its variant, and an option's values on the three data sets.
PUBLISHED = {
    "tent": {"lr": (1e-3, 1e-3, 2.5e-4), "optimizer": ADAM_OR_SGD},
    "adacontrast": {"lr": (2e-4,) * 3, "weight_decay": (1e-4,) * 3, "queue": (16384,) * 3, "beta": (0.999,) * 3},
    "cotta": {
        "lr": (1e-3, 1e-3, 0.01),
        "optimizer": ADAM_OR_SGD,
        "beta": (0.999,) * 3,
        "restore": (0.01, 0.01, 0.001),
        "threshold": (0.92, 0.72, 0.1),
        "views": (32,) * 3,
        "loss": ("ce", "ce", "sce"),
    },
    "eata": {
        "lr": (1e-3, 1e-3, 2.5e-4),
        "optimizer": ADAM_OR_MOMENTUM,
        "entropy_margin": (0.4,) * 3,
        "similarity_margin": (0.4, 0.1, 0.05),
        "fisher_weight": (1, 1, 2000),
        "fisher_images": (2000,) * 3,
    },
    "rotta": {"lr": (1e-3,) * 3, "capacity": (64,) * 3, "update_every": (64,) * 3, "nu": (1e-3,) * 3},
    "petal": {
        "lr": (1e-3, 1e-3, 0.01),
        "optimizer": ADAM_OR_SGD,
        "threshold": (0.92, 0.72, 0.1),
        "prior_weight": (1e-9, 1e-8, 1e-11),
        "delta": (0.03, 0.03, 0.003),
    },
    "petal, restoration=random": {"prior_weight": (1e-9, 1e-9, 1e-11), "restore": (0.01, 0.01, 0.001)},
    "rmt": {"lr": (1e-3, 1e-3, 0.01), "optimizer": ADAM_OR_SGD, "warm_up_images": (50_000,) * 3},
    "santa": {"lr": (1e-3, 1e-3, 0.01), "optimizer": ADAM_OR_SGD, "temperature": (0.1,) * 3},
    "palm": {
        "lr": (5e-4, 5e-4, 5e-5),
        "weight_decay": (0, 5e-4, 0),
        "decay": (0.5, 0.1, 0.5),
        "temperature": (50, 100, 1000),
        "threshold": (1.0, 0.5, 0.3),
        "consistency": (0.01,) * 3,
    },
    "surgeon": {"lr": (1e-3, 3e-4, 2e-4)},
    "surgeon, layers=all": {"lr": (2.2e-5, 1e-5, 5e-6)},
    "obao": {
        "lr": (1e-3, 1e-3, 0.01),
        "optimizer": ADAM_OR_SGD,
        "buffer": (1000, 200, 1000),
        "replayed": (200, 200, 64),
        "margin": (0.1, 0.1, 0.2),
        "replay": (1, 1, 0.5),
        "relation": (1, 200, 1),
    },
    "tca": {"optimizer": ADAM_OR_SGD, "threshold": (0.92, 0.72, 0.1), "beta": (0.999,) * 3},
    "roid": {"lr": (1e-3, 1e-3, 2.5e-4), "optimizer": ADAM_OR_SGD, "temperature": (1 / 3,) * 3},
    "sar": {"lr": (1e-3, 1e-3, 2.5e-4), "entropy_margin": (0.4,) * 3, "rho": (0.05,) * 3, "reset_below": (0.2,) * 3},
    "rdumb": {
        "lr": (1e-3, 1e-3, 2.5e-4),
        "optimizer": ADAM_OR_MOMENTUM,
        "similarity_margin": (0.4, 0.4, 0.05),
        "period": (1000,) * 3,
    },
    "cmf": {"lr": (1e-3, 1e-3, 2.5e-4), "optimizer": ADAM_OR_SGD, "alpha": (0.99,) * 3, "noise": (0.005,) * 3},
    "deyo": {"lr": (1e-3, 1e-3, 2.5e-4), "optimizer": ADAM_OR_MOMENTUM, "drop": (0.2, 0.2, 0.3)},
    "foa": {"prompts": (3,) * 3, "discrepancy": (0.4,) * 3, "memory": (0.9,) * 3, "shift": (1,) * 3, "step": (1,) * 3},
    "come": {"lr": (1e-3, 1e-3, 2.5e-4), "optimizer": ADAM_OR_MOMENTUM},
    "rem": {"lr": (1e-3,) * 3, "share": (0.1,) * 3, "levels": (3,) * 3, "ranking": (1,) * 3, "margin": (0,) * 3},
    "ecotta": {
        "lr": (5e-3,) * 3,
        "optimizer": ("momentum",) * 3,
        "parts": (5,) * 3,
        "margin": (0.4,) * 3,
        "regularisation": (0.25,) * 3,
        "warm_up_epochs": (10, 10, 3),
        "warm_up_lr": (0.05,) * 3,
        "schedule": ("steps", "steps", "cosine"),
    },
    "becotta": {"experts": (6,) * 3, "active": (3,) * 3, "restore": (0.01,) * 3, "synergy": (5e-4,) * 3},
    "vcl": {"alpha": (0,) * 3, "beta": (0,) * 3},
    "vida": {
        "lr": (1e-4, 3e-4, 5e-7),
        "adapter_lr": (0.1, 1 / 300, 0.4),
        "optimizer": ADAM_OR_SGD,
        "low_rank": (1,) * 3,
        "high_rank": (128,) * 3,
        "views": (10,) * 3,
        "threshold": (0.05, 0.05, 0.2),
        "beta": (0.999,) * 3,
        "adapter_beta": (0.999, 0.999, 0.8),
        "restore": (0.1, 0.1, 0.0),
        "loss": ("ce", "ce", "sce"),
    },
    "continual-mae": {  # CIFAR10-C's, as no others are published
        "lr": (1e-5,) * 3,
        "optimizer": ("adam",) * 3,
        "views": (10,) * 3,
        "mask": (0.5,) * 3,
        "hog": (0.5,) * 3,
        "restore": (0.01,) * 3,
    },
}


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_are_the_published_ones(name, dataset) -> None:
    method, *variant = name.split(", ")
    config = configure(method, dataset=dataset, **dict(option.split("=") for option in variant))
    place = DATASETS.index(dataset)
    assert {option: getattr(config, option) for option in PUBLISHED[name]} == {
        option: values[place] for option, values in PUBLISHED[name].items()
    }


def test_what_the_caller_says_comes_before_a_variants_own_setting() -> None:
    assert configure("surgeon", layers="all").lr == 2.2e-5
    assert configure("surgeon", layers="all", lr=0.5).lr == 0.5
