"""The tables and figures of the paper, and a few of our own, each described as an `Experiment`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vcotta.corruptions import GROUPS
from vcotta.experiments.paper.experiment import Experiment, ExperimentOptions, Specs, Varied
from vcotta.experiments.paper.values import BRIER, BY_CORRUPTION, COST, NLL, ORDERS_SPREAD, PAPER
from vcotta.experiments.streams import METHODS, stream_settings
from vcotta.methods import list_general_methods
from vcotta.runs.spec import RunSpec
from vcotta.streams.protocols import ORDERS

__all__ = ["EXPERIMENTS", "Experiment", "ExperimentOptions"]


def _methods(*names: str, **more: Any) -> Specs:
    """One run of each method that takes any network."""
    return lambda chosen: [chosen.spec(name, name, **more) for name in names or list_general_methods()]


def _ablation(chosen: ExperimentOptions) -> list[RunSpec]:
    rows = [("neither", "unwarmed", "ce"), ("SCE", "unwarmed", "sce")]
    rows += [("VWU", "warmed", "ce"), ("VWU + SCE", "warmed", "sce")]
    return [chosen.spec(label, start=start, options={"loss": loss}) for label, start, loss in rows]


def _mixture(chosen: ExperimentOptions) -> list[RunSpec]:
    fixed = [chosen.spec(f"alpha {alpha:g}", options={"alpha": alpha}) for alpha in (1.0, 0.5, 0.0)]
    return [*fixed, chosen.spec("adaptive", options={"alpha": "entropy"})]


def _margin(chosen: ExperimentOptions) -> list[RunSpec]:
    grids = {"cifar100": (-1.0, 0.0, 0.1, 0.2, 0.3, 0.4), "imagenet": (-1.0, 0.0, 1e-3, 1e-2, 0.1, 0.2)}
    values = grids.get(chosen.dataset, (-1.0, 0.0, 1e-4, 1e-3, 1e-2, 0.1))
    return [chosen.spec(f"epsilon {value:g}", options={"margin": value}) for value in values]


def _augmentations(chosen: ExperimentOptions) -> list[RunSpec]:
    every = replace(chosen, views=None)
    numbers = (0, 4, 8, 16) if chosen.quick else (0, 4, 8, 16, 32, 64)
    return [
        every.spec(f"{method}, {n} views", method, options={"views": n})
        for method in ("cotta", "petal", "vcotta")
        for n in numbers
    ]


def _warm_up_kinds(chosen: ExperimentOptions) -> list[RunSpec]:
    kinds = (("warm-up", "warmed"), ("BNN from scratch", "scratch"), ("no warm-up", "unwarmed"))
    return [chosen.spec(label, start=start) for label, start in kinds]


def _warm_up_epochs(chosen: ExperimentOptions) -> list[RunSpec]:
    return [chosen.spec(f"{epochs} epochs", warm_up={"epochs": epochs}) for epochs in (1, 2, 5, 10, 20)]


def _warm_up_data(chosen: ExperimentOptions) -> list[RunSpec]:
    return [chosen.spec(f"1/{part} of the source", source_share=1 / part) for part in (1, 2, 5, 10, 20)]


def _orders(chosen: ExperimentOptions) -> list[RunSpec]:
    return [
        chosen.spec(method, method, protocol="orders", protocol_options={"order": order})
        for method in ("cotta", "petal", "vcotta")
        for order in range(5 if chosen.quick else ORDERS)
    ]


def _reset(chosen: ExperimentOptions) -> list[RunSpec]:
    pairs = (("", "continual"), (", reset", "reset_each_shift"))
    return [
        chosen.spec(method + words, method, protocol=protocol)
        for method in ("cotta", "vcotta")
        for words, protocol in pairs
    ]


def _loops(chosen: ExperimentOptions) -> list[RunSpec]:
    rounds = {"rounds": 5 if chosen.quick else 10}
    return [
        chosen.spec(method, method, protocol="loops", protocol_options=rounds)
        for method in ("bn", "tent", "cotta", "vcotta")
    ]


def _batch_sizes(chosen: ExperimentOptions) -> list[RunSpec]:
    sizes = (1, 4, 16, 50, 100) if chosen.quick else (1, 4, 16, 64, 200)
    return [
        chosen.spec(f"{method}, {size}", method, batch_size=size)
        for method in ("bn", "tent", "cotta", "vcotta")
        for size in sizes
    ]


def _learning_rates(chosen: ExperimentOptions) -> list[RunSpec]:
    factors = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
    usual = chosen.spec("usual").config.lr
    return [chosen.spec(f"lr {usual * factor:.1g}", options={"lr": usual * factor}) for factor in factors]


def _streams(chosen: ExperimentOptions) -> list[RunSpec]:
    """Every method, also one of the user's choice, starts from the warmed network."""
    return [
        chosen.spec(
            f"{stream.name}: {method}",
            method,
            start="warmed",
            protocol=stream.protocol,
            protocol_options=stream.options,
            batch_size=stream.batch_size,
        )
        for stream in stream_settings(chosen.dataset, chosen.quick)
        for method in chosen.methods or METHODS
    ]


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "main",
            "Every method on the fifteen corruptions.",
            "Table: error rates on CIFAR10-C and CIFAR100-C",
            _methods(),
            paper={"error": PAPER["main"]},
            by_corruption=BY_CORRUPTION["main"],
            picture="heat map",
        ),
        Experiment(
            "imagenet-groups",
            "Error by group of corruptions: noise, blur, weather, digital.",
            "Figure: sum of error rate on ImageNet-C",
            _methods("source", "bn", "tent", "cotta", "vcotta"),
            scores=("error", *GROUPS),
            paper={"error": PAPER["imagenet-groups"]},
            picture="groups",
        ),
        Experiment(
            "ablation-components",
            "The warm-up (VWU) and the symmetric cross-entropy (SCE), with and without.",
            "Table: ablation study of auxiliary components",
            _ablation,
            paper={"error": PAPER["ablation-components"]},
        ),
        Experiment(
            "mixture-weights",
            "The weight alpha of the source prior: fixed, or adaptive.",
            "Table: different weights for mixture of priors",
            _mixture,
            paper={"error": PAPER["mixture-weights"]},
        ),
        Experiment(
            "uncertainty",
            "NLL and Brier score, with ECE and AURC beside them.",
            "Table: uncertainty estimation via NLL and BS",
            _methods("source", "bn", "tent", "cotta", "petal", "vcotta"),
            scores=("nll", "brier", "ece", "aurc", "error"),
            paper={"nll": NLL, "brier": BRIER},
        ),
        Experiment(
            "gradual",
            "Severities 1-2-3-4-5-4-3-2-1 within each corruption.",
            "Table: gradually changing",
            _methods("source", "bn", "tent", "cotta", "petal", "vcotta", protocol="gradual"),
            paper={"error": PAPER["gradual"]},
            picture="gradual",
        ),
        Experiment(
            "margin",
            "Epsilon of the view filter.",
            "Table: analysis on confidence margin",
            _margin,
            paper={"error": PAPER["margin"]},
            varied=Varied("margin epsilon of the view filter", lambda spec: spec.options["margin"]),
            picture="curve",
        ),
        Experiment(
            "augmentations",
            "The number N of views.",
            "Table: different number of augmentation",
            _augmentations,
            paper={"error": PAPER["augmentations"]},
            varied=Varied("number N of views", lambda spec: spec.options["views"]),
            picture="curve",
        ),
        Experiment(
            "warmup-vs-bnn",
            "The warm-up against a variational network trained from scratch, and against none.",
            "Figure: warm-up and directly BNN pretraining; its numbers are in the text",
            _warm_up_kinds,
            paper={"error": PAPER["warmup-vs-bnn"]},
        ),
        Experiment(
            "warmup-epochs",
            "Epochs of the warm-up; the grid is ours.",
            "Figure: different warm-up epochs",
            _warm_up_epochs,
            varied=Varied("epochs of the warm-up", lambda spec: spec.warm_up["epochs"]),
            picture="curve",
        ),
        Experiment(
            "warmup-data",
            "Share of the source data that the warm-up sees; the grid is ours.",
            "Figure: different warm-up data scale",
            _warm_up_data,
            varied=Varied(
                "part of the source data that the warm-up sees",
                lambda spec: spec.source_share,
                lambda share: f"1/{1 / share:.0f}",
            ),
            picture="curve",
        ),
        Experiment(
            "orders",
            "Ten random orders of the corruptions.",
            "Table: comparisons over 10 orders",
            _orders,
            scores=("error", "spread", "nll", "brier", "ece"),
            paper={"error": PAPER["orders"], "spread": ORDERS_SPREAD},
            picture="orders",
        ),
        Experiment(
            "reset",
            "Resetting to the source when the domain shifts.",
            "Table: resetting to the source model",
            _reset,
            paper={"error": PAPER["reset"]},
            by_corruption=BY_CORRUPTION["reset"],
        ),
        Experiment("loops", "Ten rounds through the corruptions.", "Figure: 10 loops", _loops, picture="loops"),
        Experiment(
            "batch-size",
            "Images in a batch, down to one; the grid is ours.",
            "Figure: different test batch sizes",
            _batch_sizes,
            varied=Varied("images in a batch", lambda spec: spec.batch_size or 0),
            picture="curve",
        ),
        Experiment(
            "cost",
            "Seconds and memory a corruption.",
            "Table: time and memory cost",
            _methods("source", "bn", "tent", "cotta", "petal", "vcotta"),
            scores=("seconds", "peak_gib", "forwards", "backwards", "error"),
            paper=COST,
            picture="cost",
        ),
        Experiment(
            "learning-rate",
            "The step size, in multiples of the preset's; the grid is ours.",
            "Figure: learning rate analysis",
            _learning_rates,
            varied=Varied("step size", lambda spec: spec.options["lr"], "{:.1g}".format),
            picture="curve",
        ),
        Experiment(
            "drift",
            "Alpha and the drift, the divergence of the student from the source, along the stream.",
            "ours",
            lambda chosen: [*_mixture(chosen), chosen.spec("printed alpha", options={"alpha": "printed"})],
            picture="drift",
        ),
        Experiment(
            "selective",
            "Risk and coverage: the error that remains when the least confident predictions are withheld.",
            "ours",
            _methods("source", "bn", "tent", "cotta", "vcotta"),
            scores=("aurc", "error"),
            picture="risk",
        ),
        Experiment(
            "calibration",
            "Confidence against accuracy under shift.",
            "ours",
            _methods("source", "bn", "tent", "cotta", "vcotta"),
            scores=("ece", "nll", "error"),
            picture="reliability",
        ),
        Experiment(
            "streams",
            "Correlated labels, small batches, mixed and returning domains.",
            "ours",
            _streams,
            scores=("error", "nll", "ece"),
            picture="streams",
        ),
    )
}
"""The experiments, by name."""
