"""Every table and figure of the paper, and a few of ours, each as one declarative entry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vcotta.corruptions import GROUPS
from vcotta.experiments.cells import Cell
from vcotta.experiments.entry import Asked, Cells, Entry, Varied
from vcotta.experiments.paper_rows import BY_CORRUPTION
from vcotta.experiments.paper_values import BRIER, COST, NLL, ORDERS_SPREAD, PAPER
from vcotta.methods import METHODS
from vcotta.protocols import ORDERS

__all__ = ["ENTRIES", "Asked", "Entry"]


def _methods(*names: str, **more: Any) -> Cells:
    """One cell for each method."""
    return lambda asked: [asked.cell(name, name, **more) for name in names or METHODS]


def _ablation(asked: Asked) -> list[Cell]:
    rows = [("neither", "unwarmed", "ce"), ("SCE", "unwarmed", "sce")]
    rows += [("VWU", "warmed", "ce"), ("VWU + SCE", "warmed", "sce")]
    return [asked.cell(label, start=start, options={"loss": loss}) for label, start, loss in rows]


def _mixture(asked: Asked) -> list[Cell]:
    fixed = [asked.cell(f"alpha {alpha:g}", options={"alpha": alpha}) for alpha in (1.0, 0.5, 0.0)]
    return [*fixed, asked.cell("adaptive", options={"alpha": "entropy"})]


def _margin(asked: Asked) -> list[Cell]:
    grids = {"cifar100": (-1.0, 0.0, 0.1, 0.2, 0.3, 0.4), "imagenet": (-1.0, 0.0, 1e-3, 1e-2, 0.1, 0.2)}
    values = grids.get(asked.dataset, (-1.0, 0.0, 1e-4, 1e-3, 1e-2, 0.1))
    return [asked.cell(f"epsilon {value:g}", options={"margin": value}) for value in values]


def _augmentations(asked: Asked) -> list[Cell]:
    every = replace(asked, views=None)
    numbers = (0, 4, 8, 16) if asked.quick else (0, 4, 8, 16, 32, 64)
    return [
        every.cell(f"{method}, {n} views", method, options={"views": n})
        for method in ("cotta", "petal", "vcotta")
        for n in numbers
    ]


def _warm_up_kinds(asked: Asked) -> list[Cell]:
    kinds = (("warm-up", "warmed"), ("BNN from scratch", "scratch"), ("no warm-up", "unwarmed"))
    return [asked.cell(label, start=start) for label, start in kinds]


def _warm_up_epochs(asked: Asked) -> list[Cell]:
    return [asked.cell(f"{epochs} epochs", warm_up={"epochs": epochs}) for epochs in (1, 2, 5, 10, 20)]


def _warm_up_data(asked: Asked) -> list[Cell]:
    return [asked.cell(f"1/{part} of the source", source_share=1 / part) for part in (1, 2, 5, 10, 20)]


def _orders(asked: Asked) -> list[Cell]:
    return [
        asked.cell(method, method, protocol="orders", protocol_options={"order": order})
        for method in ("cotta", "petal", "vcotta")
        for order in range(5 if asked.quick else ORDERS)
    ]


def _reset(asked: Asked) -> list[Cell]:
    pairs = (("", "continual"), (", reset", "reset_each_shift"))
    return [
        asked.cell(method + words, method, protocol=protocol)
        for method in ("cotta", "vcotta")
        for words, protocol in pairs
    ]


def _loops(asked: Asked) -> list[Cell]:
    rounds = {"rounds": 5 if asked.quick else 10}
    return [
        asked.cell(method, method, protocol="loops", protocol_options=rounds)
        for method in ("bn", "tent", "cotta", "vcotta")
    ]


def _batch_sizes(asked: Asked) -> list[Cell]:
    sizes = (1, 4, 16, 50, 100) if asked.quick else (1, 4, 16, 64, 200)
    return [
        asked.cell(f"{method}, {size}", method, batch_size=size)
        for method in ("bn", "tent", "cotta", "vcotta")
        for size in sizes
    ]


def _learning_rates(asked: Asked) -> list[Cell]:
    factors = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
    usual = METHODS["vcotta"].Config.preset(asked.preset, asked.dataset).lr
    return [asked.cell(f"lr {usual * factor:.1g}", options={"lr": usual * factor}) for factor in factors]


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "main",
            "Every method on the fifteen corruptions.",
            "Table: error rates on CIFAR10-C and CIFAR100-C",
            _methods(),
            paper={"error": PAPER["main"]},
            by_corruption=BY_CORRUPTION["main"],
            picture="heat map",
        ),
        Entry(
            "imagenet-groups",
            "Error by group of corruptions: noise, blur, weather, digital.",
            "Figure: sum of error rate on ImageNet-C",
            _methods("source", "bn", "tent", "cotta", "vcotta"),
            scores=("error", *GROUPS),
            paper={"error": PAPER["imagenet-groups"]},
            picture="groups",
        ),
        Entry(
            "ablation-components",
            "The warm-up (VWU) and the symmetric cross-entropy (SCE), with and without.",
            "Table: ablation study of auxiliary components",
            _ablation,
            paper={"error": PAPER["ablation-components"]},
        ),
        Entry(
            "mixture-weights",
            "The weight alpha of the source prior: fixed, or adaptive.",
            "Table: different weights for mixture of priors",
            _mixture,
            paper={"error": PAPER["mixture-weights"]},
        ),
        Entry(
            "uncertainty",
            "NLL and Brier score, with ECE and AURC beside them.",
            "Table: uncertainty estimation via NLL and BS",
            _methods("source", "bn", "tent", "cotta", "petal", "vcotta"),
            scores=("nll", "brier", "ece", "aurc", "error"),
            paper={"nll": NLL, "brier": BRIER},
        ),
        Entry(
            "gradual",
            "Severities 1-2-3-4-5-4-3-2-1 within each corruption.",
            "Table: gradually changing",
            _methods("source", "bn", "tent", "cotta", "petal", "vcotta", protocol="gradual"),
            paper={"error": PAPER["gradual"]},
            picture="gradual",
        ),
        Entry(
            "margin",
            "Epsilon of the view filter.",
            "Table: analysis on confidence margin",
            _margin,
            paper={"error": PAPER["margin"]},
            varied=Varied("margin epsilon of the view filter", lambda cell: cell.options["margin"]),
            picture="curve",
        ),
        Entry(
            "augmentations",
            "The number N of views.",
            "Table: different number of augmentation",
            _augmentations,
            paper={"error": PAPER["augmentations"]},
            varied=Varied("number N of views", lambda cell: cell.options["views"]),
            picture="curve",
        ),
        Entry(
            "warmup-vs-bnn",
            "The warm-up against a variational network trained from scratch, and against none.",
            "Figure: warm-up and directly BNN pretraining; its numbers are in the text",
            _warm_up_kinds,
            paper={"error": PAPER["warmup-vs-bnn"]},
        ),
        Entry(
            "warmup-epochs",
            "Epochs of the warm-up; the grid is ours.",
            "Figure: different warm-up epochs",
            _warm_up_epochs,
            varied=Varied("epochs of the warm-up", lambda cell: cell.warm_up["epochs"]),
            picture="curve",
        ),
        Entry(
            "warmup-data",
            "Share of the source data that the warm-up sees; the grid is ours.",
            "Figure: different warm-up data scale",
            _warm_up_data,
            varied=Varied(
                "part of the source data that the warm-up sees",
                lambda cell: cell.source_share,
                lambda share: f"1/{1 / share:.0f}",
            ),
            picture="curve",
        ),
        Entry(
            "orders",
            "Ten random orders of the corruptions.",
            "Table: comparisons over 10 orders",
            _orders,
            scores=("error", "spread", "nll", "brier", "ece"),
            paper={"error": PAPER["orders"], "spread": ORDERS_SPREAD},
            picture="orders",
        ),
        Entry(
            "reset",
            "Resetting to the source when the domain shifts.",
            "Table: resetting to the source model",
            _reset,
            paper={"error": PAPER["reset"]},
            by_corruption=BY_CORRUPTION["reset"],
        ),
        Entry("loops", "Ten rounds through the corruptions.", "Figure: 10 loops", _loops, picture="loops"),
        Entry(
            "batch-size",
            "Images in a batch, down to one; the grid is ours.",
            "Figure: different test batch sizes",
            _batch_sizes,
            varied=Varied("images in a batch", lambda cell: cell.batch_size or 0),
            picture="curve",
        ),
        Entry(
            "cost",
            "Seconds and memory a corruption.",
            "Table: time and memory cost",
            _methods("source", "bn", "tent", "cotta", "petal", "vcotta"),
            scores=("seconds", "peak_gib", "forwards", "backwards", "error"),
            paper=COST,
            picture="cost",
        ),
        Entry(
            "learning-rate",
            "The step size, in multiples of the preset's; the grid is ours.",
            "Figure: learning rate analysis",
            _learning_rates,
            varied=Varied("step size", lambda cell: cell.options["lr"], "{:.1g}".format),
            picture="curve",
        ),
        Entry(
            "drift",
            "Alpha and the divergence of the teacher from the source along the stream.",
            "ours",
            lambda asked: [*_mixture(asked), asked.cell("printed alpha", options={"alpha": "printed"})],
            picture="drift",
        ),
        Entry(
            "selective",
            "Risk and coverage: the error that remains when the least sure predictions are withheld.",
            "ours",
            _methods("source", "bn", "tent", "cotta", "vcotta"),
            scores=("aurc", "error"),
            picture="risk",
        ),
        Entry(
            "calibration",
            "Confidence against accuracy under shift.",
            "ours",
            _methods("source", "bn", "tent", "cotta", "vcotta"),
            scores=("ece", "nll", "error"),
            picture="reliability",
        ),
    )
}
"""The experiments, by name."""
