"""What the paper prints, for the tables to stand beside; its figures are not in the text."""

from __future__ import annotations

from collections.abc import Mapping

from vcotta.experiments.paper_rows import MEANS

__all__ = ["BRIER", "COST", "NLL", "ORDERS_SPREAD", "PAPER"]

Values = Mapping[str, float]

_IMAGENET = {"vcotta": 64.2, "cotta": 66.7}  # the text alone; the table is a figure

PAPER: Mapping[str, Mapping[str, Values]] = {
    "main": {**MEANS["main"], "imagenet": _IMAGENET},
    "imagenet-groups": {"imagenet": _IMAGENET},
    "ablation-components": {
        "cifar10": {"neither": 18.4, "SCE": 17.1, "VWU": 13.9, "VWU + SCE": 13.1},
        "cifar100": {"neither": 31.5, "SCE": 31.2, "VWU": 28.8, "VWU + SCE": 28.4},
        "imagenet": {"neither": 68.1, "SCE": 68.3, "VWU": 64.2, "VWU + SCE": 64.7},
    },
    "mixture-weights": {
        "cifar10": {"alpha 1": 17.4, "alpha 0.5": 14.7, "alpha 0": 16.3, "adaptive": 13.1},
        "cifar100": {"alpha 1": 35.0, "alpha 0.5": 31.3, "alpha 0": 33.7, "adaptive": 28.4},
        "imagenet": {"alpha 1": 69.9, "alpha 0.5": 67.0, "alpha 0": 71.2, "adaptive": 64.7},
    },
    "gradual": {
        "cifar10": {"source": 23.9, "bn": 13.5, "tent": 39.1, "cotta": 10.6, "petal": 10.5, "vcotta": 8.9},
        "cifar100": {"source": 32.9, "bn": 29.7, "tent": 72.7, "cotta": 26.3, "petal": 27.1, "vcotta": 24.4},
        "imagenet": {"source": 81.7, "bn": 54.1, "tent": 53.7, "cotta": 42.1, "petal": 60.5, "vcotta": 39.9},
    },
    "margin": {
        "cifar10": {
            "epsilon -1": 15.1,
            "epsilon 0": 13.23,
            "epsilon 0.0001": 13.23,
            "epsilon 0.001": 13.22,
            "epsilon 0.01": 13.14,
            "epsilon 0.1": 13.31,
        },
        "cifar100": {
            "epsilon -1": 29.3,
            "epsilon 0": 28.78,
            "epsilon 0.1": 28.55,
            "epsilon 0.2": 28.45,
            "epsilon 0.3": 28.43,
            "epsilon 0.4": 28.54,
        },
        "imagenet": {
            "epsilon -1": 66.4,
            "epsilon 0": 65.0,
            "epsilon 0.001": 65.0,
            "epsilon 0.01": 64.8,
            "epsilon 0.1": 64.7,
            "epsilon 0.2": 66.2,
        },
    },
    "augmentations": {
        "cifar10": {
            f"{method}, {views} views": error
            for method, errors in {
                "cotta": (17.5, 17.0, 16.6, 16.5, 16.3, 16.2),
                "petal": (17.3, 16.9, 16.4, 16.1, 16.0, 16.0),
                "vcotta": (14.9, 13.8, 13.6, 13.3, 13.1, 13.1),
            }.items()
            for views, error in zip((0, 4, 8, 16, 32, 64), errors, strict=True)
        }
    },
    "warmup-vs-bnn": {"cifar10": {"warm-up": 13.1, "BNN from scratch": 13.2, "no warm-up": 17.1}},
    "orders": {
        "cifar10": {"cotta": 17.3, "petal": 16.0, "vcotta": 13.1},
        "cifar100": {"cotta": 32.2, "petal": 33.8, "vcotta": 28.2},
        "imagenet": {"cotta": 63.4, "petal": 62.7, "vcotta": 62.8},
    },
    "reset": MEANS["reset"],
}
"""Mean error in per cent, by experiment, data set and row."""

NLL: dict[str, Values] = {
    "cifar10": {"source": 3.0566, "bn": 0.9988, "tent": 1.9391, "cotta": 0.7192, "petal": 0.5899, "vcotta": 0.5421},
    "cifar100": {"source": 2.4933, "bn": 1.3932, "tent": 7.1097, "cotta": 1.2907, "petal": 1.2267, "vcotta": 1.2287},
    "imagenet": {"source": 5.0703, "bn": 3.9971, "tent": 3.6902, "cotta": 3.6235, "petal": 3.6391, "vcotta": 3.4469},
}
"""The paper's NLL, by data set and method."""

BRIER: dict[str, Values] = {
    "cifar10": {"source": 0.7478, "bn": 0.3354, "tent": 0.3713, "cotta": 0.2761, "petal": 0.2458, "vcotta": 0.2130},
    "cifar100": {"source": 0.6707, "bn": 0.4740, "tent": 1.0838, "cotta": 0.4433, "petal": 0.4327, "vcotta": 0.4307},
    "imagenet": {"source": 0.9460, "bn": 0.8345, "tent": 0.8281, "cotta": 0.7972, "petal": 0.8017, "vcotta": 0.8092},
}
"""The paper's Brier scores."""

ORDERS_SPREAD: dict[str, Values] = {
    "cifar10": {"cotta": 0.3, "petal": 0.1, "vcotta": 0.1},
    "cifar100": {"cotta": 0.3, "petal": 0.3, "vcotta": 0.2},
    "imagenet": {"cotta": 3.0, "petal": 2.6, "vcotta": 1.1},
}
"""The paper's standard deviations over ten orders."""

COST: dict[str, dict[str, Values]] = {
    "seconds": {"cifar10": {"cotta": 272.0, "petal": 261.0, "vcotta": 279.0}},
    "peak_gib": {"cifar10": {"cotta": 10.3, "petal": 10.2, "vcotta": 11.1}},
}
"""Seconds a corruption and memory (printed as Gb) on the paper's RTX 4090."""
