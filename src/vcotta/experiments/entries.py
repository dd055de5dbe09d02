"""Every table and figure of the paper, and a few of ours, each as one declarative entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vcotta.experiments.cells import Cell
from vcotta.experiments.paper_values import BRIER, NLL, PAPER
from vcotta.methods import METHODS

__all__ = ["ENTRIES", "Asked", "Entry"]


@dataclass(frozen=True)
class Asked:
    """What the caller of an experiment chose.

    Attributes:
        dataset: Name of the benchmark.
        preset: VCoTTA's preset.
        seeds: Seeds to average over.
        limit: Images of each domain; None for all.
        views: Most views a method may use; None for its own number.
    """

    dataset: str = "digits"
    preset: str = "best"
    seeds: Sequence[int] = (0,)
    limit: int | None = None
    views: int | None = None

    def cell(self, label: str, method: str = "vcotta", /, **more: Any) -> Cell:
        """A cell of a method, on its usual start network."""
        options = dict(more.pop("options", {}))
        variational = METHODS[method].needs_variational
        if variational:
            options = {"preset": self.preset} | options
        if self.views is not None and "views" in METHODS[method].Config.__dataclass_fields__:
            options["views"] = min(self.views, options.get("views", self.views))
        start = more.pop("start", "warmed" if variational else "source")
        return Cell(label, self.dataset, method, options, start, limit=self.limit, **more)


Cells = Callable[[Asked], list[Cell]]


@dataclass(frozen=True)
class Entry:
    """One experiment.

    Attributes:
        name: As given to `vcotta reproduce`.
        title: What it shows, in a sentence.
        where: Where the paper has it, or ``ours``.
        cells: Makes its runs for one seed.
        scores: What the table shows, the first is the one that ranks.
        paper: The paper's values of the first score, by data set and row.
        more_paper: The paper's values of further scores.
        picture: What is drawn: ``bars`` (one a row), ``curve`` (rows in order), or ``lines`` (along the stream).
        datasets: Where it makes sense.
    """

    name: str
    title: str
    where: str
    cells: Cells
    scores: tuple[str, ...] = ("error", "nll", "brier", "ece")
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    more_paper: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    picture: Literal["bars", "curve", "lines"] = "bars"
    datasets: tuple[str, ...] = ("digits", "cifar10", "cifar100", "imagenet")

    def all_cells(self, asked: Asked) -> list[Cell]:
        """The runs of every seed."""
        return [replace(cell, seed=seed) for seed in asked.seeds for cell in self.cells(asked)]


def _methods(*names: str, **more: Any) -> Cells:
    """One cell for each method."""
    return lambda asked: [asked.cell(name, name, **more) for name in names or METHODS]


def _grid(option: str, values: Sequence[Any], form: str) -> Cells:
    """VCoTTA with one option at several values."""
    return lambda asked: [asked.cell(form.format(value), options={option: value}) for value in values]


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
    numbers = [n for n in (0, 4, 8, 16, 32, 64) if asked.views is None or n <= asked.views]
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
        for order in range(10 if asked.limit is None else 3)
    ]


def _reset(asked: Asked) -> list[Cell]:
    pairs = (("", "continual"), (", reset", "reset_each_shift"))
    return [
        asked.cell(method + words, method, protocol=protocol)
        for method in ("cotta", "vcotta")
        for words, protocol in pairs
    ]


def _loops(asked: Asked) -> list[Cell]:
    rounds = {"rounds": 10 if asked.limit is None else 3}
    return [
        asked.cell(method, method, protocol="loops", protocol_options=rounds)
        for method in ("bn", "tent", "cotta", "vcotta")
    ]


def _batch_sizes(asked: Asked) -> list[Cell]:
    sizes = (1, 4, 16, 64, 200) if asked.limit is None else (4, 16, 50)
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
        Entry("main", "Every method on the fifteen corruptions.", "Table 1", _methods(), paper=PAPER["main"]),
        Entry(
            "imagenet-groups",
            "Error by group of corruptions: noise, blur, weather, digital.",
            "Figure: sum of error rate on ImageNet-C",
            _methods("source", "bn", "tent", "cotta", "vcotta"),
            paper=PAPER["imagenet-groups"],
        ),
        Entry(
            "ablation-components",
            "The warm-up (VWU) and the symmetric cross-entropy (SCE), with and without.",
            "Table: ablation study of auxiliary components",
            _ablation,
            paper=PAPER["ablation-components"],
        ),
        Entry(
            "mixture-weights",
            "The weight alpha of the source prior: fixed, or adaptive.",
            "Table: different weights for mixture of priors",
            _mixture,
            paper=PAPER["mixture-weights"],
        ),
        Entry(
            "uncertainty",
            "NLL and Brier score, with ECE and AURC beside them.",
            "Table: uncertainty estimation via NLL and BS",
            _methods("source", "bn", "tent", "cotta", "petal", "vcotta"),
            scores=("nll", "brier", "ece", "aurc", "error"),
            paper=NLL,
            more_paper={"brier": BRIER},
        ),
        Entry(
            "gradual",
            "Severities 1-2-3-4-5-4-3-2-1 within each corruption.",
            "Table: gradually changing",
            _methods("source", "bn", "tent", "cotta", "petal", "vcotta", protocol="gradual"),
            paper=PAPER["gradual"],
        ),
        Entry(
            "margin",
            "Epsilon of the view filter.",
            "Table: analysis on confidence margin",
            _margin,
            paper=PAPER["margin"],
            picture="curve",
        ),
        Entry(
            "augmentations",
            "The number N of views.",
            "Table: different number of augmentation",
            _augmentations,
            paper=PAPER["augmentations"],
            picture="curve",
        ),
        Entry(
            "warmup-vs-bnn",
            "The warm-up against a variational network trained from scratch, and against none.",
            "Figure: warm-up and directly BNN pretraining",
            _warm_up_kinds,
            paper=PAPER["warmup-vs-bnn"],
        ),
        Entry(
            "warmup-epochs",
            "Epochs of the warm-up; the grid is ours.",
            "Figure: different warm-up epochs",
            _warm_up_epochs,
            picture="curve",
        ),
        Entry(
            "warmup-data",
            "Share of the source data that the warm-up sees; the grid is ours.",
            "Figure: different warm-up data scale",
            _warm_up_data,
            picture="curve",
        ),
        Entry(
            "orders",
            "Ten random orders of the corruptions.",
            "Table: comparisons over 10 orders",
            _orders,
            paper=PAPER["orders"],
        ),
        Entry(
            "reset",
            "Resetting to the source when the domain shifts.",
            "Table: resetting to the source model",
            _reset,
            paper=PAPER["reset"],
        ),
        Entry("loops", "Ten rounds through the corruptions.", "Figure: 10 loops", _loops, picture="lines"),
        Entry(
            "batch-size",
            "Images in a batch, down to one; the grid is ours.",
            "Figure: different test batch sizes",
            _batch_sizes,
            picture="curve",
        ),
        Entry(
            "cost",
            "Seconds and memory a corruption.",
            "Table: time and memory cost",
            _methods("source", "bn", "tent", "cotta", "petal", "vcotta"),
            scores=("seconds", "peak_gib", "forwards", "backwards", "error"),
        ),
        Entry(
            "learning-rate",
            "The step size, in multiples of the preset's; the grid is ours.",
            "Figure: learning rate analysis",
            _learning_rates,
            picture="curve",
        ),
        Entry(
            "drift",
            "Alpha and the divergence from the source along the stream.",
            "ours",
            lambda asked: [*_mixture(asked), asked.cell("printed alpha", options={"alpha": "printed"})],
            picture="lines",
        ),
        Entry(
            "selective",
            "Risk and coverage: the error that remains when the least sure predictions are withheld.",
            "ours",
            _methods("source", "bn", "tent", "cotta", "vcotta"),
            scores=("aurc", "error"),
            picture="lines",
        ),
        Entry(
            "calibration",
            "Confidence against accuracy under shift.",
            "ours",
            _methods("source", "bn", "tent", "cotta", "vcotta"),
            scores=("ece", "nll", "error"),
            picture="lines",
        ),
    )
}
"""The experiments, by name."""
