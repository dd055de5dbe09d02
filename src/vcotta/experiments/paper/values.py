"""The values that the paper prints, to compare with ours; those of its figures are not in its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["BRIER", "BY_CORRUPTION", "COST", "MEANS", "NLL", "ORDERS_SPREAD", "PAPER"]

Values = Mapping[str, float]

Rows = dict[str, dict[str, str]]

_MAIN: Rows = {
    "cifar10": {
        "source": "72.3 65.7 72.9 46.9 54.3 34.8 42.0 25.1 41.3 26.0 9.3 46.7 26.6 58.5 30.3 43.5",
        "tent": "24.8 20.6 28.6 14.4 31.1 16.5 14.1 19.1 18.6 18.6 12.2 20.3 25.7 20.8 24.9 20.7",
        "adacontrast": "29.1 22.5 30.0 14.0 32.7 14.1 12.0 16.6 14.9 14.4 8.1 10.0 21.9 17.7 20.0 18.5",
        "cotta": "24.3 21.3 26.6 11.6 27.6 12.2 10.3 14.8 14.1 12.4 7.5 10.6 18.3 13.4 17.3 16.2",
        "eata": "27.3 20.3 28.6 13.5 27.8 14.6 13.5 17.9 19.0 16.4 10.7 14.6 20.8 16.4 19.1 18.7",
        "rotta": "30.3 25.4 34.6 18.3 34.0 14.7 11.0 16.4 14.6 14.0 8.0 12.4 20.3 16.8 19.4 19.3",
        "petal": "26.0 18.9 27.2 12.1 26.4 13.2 12.1 16.5 18.5 15.0 10.2 13.2 19.4 15.0 17.6 17.3",
        "rmt": "24.0 20.4 25.6 12.6 25.4 14.2 12.2 15.4 15.1 14.1 10.3 13.7 17.1 13.5 16.0 16.7",
        "santa": "23.9 20.1 28.0 11.6 27.4 12.6 10.2 14.1 13.2 12.2 7.4 10.3 19.1 13.3 18.5 16.1",
        "obao": "23.6 19.9 26.0 11.8 25.3 13.2 10.9 14.3 13.5 12.7 9.0 11.9 17.1 12.7 15.9 15.8",
        "palm": "25.9 18.1 22.7 12.4 25.3 13.2 10.8 13.5 13.2 12.2 8.5 11.9 17.9 12.0 15.5 15.5",
        "surgeon": "25.3 20.0 27.4 12.0 28.0 13.7 11.1 15.3 14.3 14.1 8.2 11.8 19.2 13.5 18.7 16.8",
        "tca": "22.6 19.4 23.2 11.0 23.4 12.0 10.1 13.3 13.5 11.9 7.9 11.0 16.7 12.3 15.7 14.9",
        "becotta": "22.9 19.1 26.9 10.2 27.5 12.7 10.4 14.7 14.3 12.4 7.2 9.4 20.9 15.2 20.2 16.3",
        "swa": "23.9 20.5 24.5 11.2 26.3 11.8 10.1 14.0 12.7 11.5 7.6 9.5 17.6 12.0 15.8 15.3",
        "dss": "24.1 21.3 25.4 11.7 26.9 12.2 10.5 14.5 14.1 12.5 7.8 10.8 18.0 13.1 17.3 16.0",
        "vcotta": "18.1 14.9 22.0 9.7 22.6 11.0 9.5 11.4 10.6 10.5 6.5 9.4 15.6 11.0 14.5 13.1",
    },
    "cifar100": {
        "source": "73.0 68.0 39.4 29.3 54.1 30.8 28.8 39.5 45.8 50.3 29.5 55.1 37.2 74.7 41.2 46.4",
        "tent": "37.2 35.8 41.7 37.9 51.2 48.3 48.5 58.4 63.7 71.1 70.4 82.3 88.0 88.5 90.4 60.9",
        "adacontrast": "42.3 36.8 38.6 27.7 40.1 29.1 27.5 32.9 30.7 38.2 25.9 28.3 33.9 33.3 36.2 33.4",
        "cotta": "40.1 37.7 39.7 26.9 38.0 27.9 26.4 32.8 31.8 40.3 24.7 26.9 32.5 28.3 33.5 32.5",
        "eata": "46.7 34.5 42.4 25.9 36.8 31.6 25.3 35.6 33.8 41.1 22.6 28.6 36.6 28.4 33.5 33.6",
        "rotta": "49.1 44.9 45.5 30.2 42.7 29.5 26.1 32.2 30.7 37.5 24.7 26.9 32.5 28.3 33.5 32.5",
        "petal": "42.1 38.6 38.7 28.1 38.1 28.1 27.5 31.2 30.7 37.2 26.4 28.7 29.4 28.6 31.6 32.8",
        "rmt": "40.5 36.1 36.3 27.7 33.9 28.5 26.4 29.0 29.0 32.5 25.1 27.4 28.2 26.3 29.3 30.4",
        "santa": "36.5 33.1 35.1 25.9 34.9 27.7 25.4 29.5 29.9 33.1 23.6 26.7 31.9 27.5 35.2 30.3",
        "obao": "38.8 35.0 35.4 26.7 33.2 27.4 25.4 29.4 28.8 32.8 24.1 26.1 30.9 26.9 32.0 30.2",
        "palm": "37.3 32.5 34.9 26.2 35.3 27.5 24.6 29.1 29.2 34.1 23.5 27.0 31.1 26.6 34.1 30.2",
        "surgeon": "40.3 35.6 38.1 26.4 36.7 28.1 25.5 31.2 30.0 35.6 24.8 27.2 31.3 28.2 36.1 31.7",
        "tca": "38.5 36.0 36.6 25.8 34.8 27.2 25.1 30.5 27.8 30.5 24.1 25.7 27.3 26.6 30.5 29.8",
        "becotta": "42.1 38.0 42.2 30.2 42.9 31.7 29.8 35.1 33.9 38.5 27.9 32.0 36.7 31.6 39.9 35.5",
        "swa": "39.4 36.4 37.4 25.0 36.0 26.6 25.0 29.1 28.4 35.0 23.5 25.1 28.5 25.8 29.6 30.0",
        "dss": "39.7 36.0 37.2 26.3 35.6 27.5 25.1 31.4 30.0 37.8 24.2 26.0 30.0 26.3 31.3 30.9",
        "vcotta": "35.3 32.8 38.9 23.8 34.6 25.5 23.2 27.5 26.7 30.4 22.1 23.0 28.1 24.2 30.4 28.4",
    },
}
_RESET: Rows = {
    "cifar100": {
        "cotta": "40.1 37.7 39.7 26.9 38.0 27.9 26.4 32.8 31.8 40.3 24.7 26.9 32.5 28.3 33.5 32.5",
        "cotta, reset": "40.1 40.2 42.5 27.4 41.6 29.5 27.6 34.6 34.8 41.2 26.4 30.0 35.3 32.6 40.8 35.1",
        "vcotta": "35.3 32.8 38.9 23.8 34.6 25.5 23.2 27.5 26.7 30.4 22.1 23.0 28.1 24.2 30.4 28.4",
        "vcotta, reset": "35.3 33.7 38.7 24.0 37.0 26.2 24.1 29.2 28.6 33.9 22.2 23.7 30.9 26.2 34.5 29.9",
    }
}


def _numbers(rows: Rows) -> dict[str, dict[str, list[float]]]:
    return {
        data: {row: [float(n) for n in text.split()] for row, text in lines.items()} for data, lines in rows.items()
    }


def _line(row: str, values: Sequence[float], errors: Sequence[float]) -> dict[str, float]:
    """The errors of the rows that are named after the values."""
    return {row.format(f"{value:g}"): error for value, error in zip(values, errors, strict=True)}


_VIEWS = (0, 4, 8, 16, 32, 64)
_PRINTED = {"main": _numbers(_MAIN), "reset": _numbers(_RESET)}

BY_CORRUPTION = {
    name: {data: {row: line[:15] for row, line in lines.items()} for data, lines in rows.items()}
    for name, rows in _PRINTED.items()
}
"""Error in per cent on C1 to C15, by experiment, data set and row."""

MEANS = {
    name: {data: {row: line[15] for row, line in lines.items()} for data, lines in rows.items()}
    for name, rows in _PRINTED.items()
}
"""The means as printed; those of PETAL, RoTTA (CIFAR100-C) and CoTTA with resets are not those of their rows."""

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
        "cifar10": _line("epsilon {}", (-1, 0, 0.0001, 0.001, 0.01, 0.1), (15.1, 13.23, 13.23, 13.22, 13.14, 13.31)),
        "cifar100": _line("epsilon {}", (-1, 0, 0.1, 0.2, 0.3, 0.4), (29.3, 28.78, 28.55, 28.45, 28.43, 28.54)),
        "imagenet": _line("epsilon {}", (-1, 0, 0.001, 0.01, 0.1, 0.2), (66.4, 65.0, 65.0, 64.8, 64.7, 66.2)),
    },
    "augmentations": {
        "cifar10": {
            **_line("cotta, {} views", _VIEWS, (17.5, 17.0, 16.6, 16.5, 16.3, 16.2)),
            **_line("petal, {} views", _VIEWS, (17.3, 16.9, 16.4, 16.1, 16.0, 16.0)),
            **_line("vcotta, {} views", _VIEWS, (14.9, 13.8, 13.6, 13.3, 13.1, 13.1)),
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
