"""What an experiment is, and what a caller can choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vcotta._util.errors import unknown_name
from vcotta.methods import find_method
from vcotta.runs.spec import RunSpec

__all__ = ["Experiment", "ExperimentOptions", "Varied"]

Picture = Literal[
    "heat map",
    "streams",
    "groups",
    "bars",
    "curve",
    "gradual",
    "orders",
    "loops",
    "drift",
    "risk",
    "reliability",
    "cost",
]
Paper = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class ExperimentOptions:
    """What the caller of an experiment chooses.

    Attributes:
        dataset: Name of the benchmark.
        preset: VCoTTA's preset; ``paper`` also warms up as the paper does.
        seeds: Seeds to average over.
        limit: Images of each domain; None for all.
        views: Most views a method may use; None for its own number.
        quick: Whether to use the shorter grids.
        methods: The only methods to run; None for all of the experiment.
        values: The only values to run of the setting that the experiment varies; None for all.
    """

    dataset: str = "digits"
    preset: str = "best"
    seeds: Sequence[int] = (0,)
    limit: int | None = None
    views: int | None = None
    quick: bool = False
    methods: Sequence[str] | None = None
    values: Sequence[float] | None = None

    def spec(self, label: str, method: str = "vcotta", /, **more: Any) -> RunSpec:
        """The run of a method under these options."""
        options = dict(more.pop("options", {}))
        if find_method(method).needs_variational:
            options = {"preset": self.preset} | options
        if self.views is not None and "views" in find_method(method).Config.__dataclass_fields__:
            options["views"] = min(self.views, options.get("views", self.views))
        return RunSpec(method, self.dataset, options=options, limit=self.limit, label=label, **more)


Specs = Callable[[ExperimentOptions], list[RunSpec]]


@dataclass(frozen=True)
class Varied:
    """The setting that an experiment varies.

    Attributes:
        name: What it is, as on the axis of the figure.
        of: Its value in a run.
        text: Formats a value.
    """

    name: str
    of: Callable[[RunSpec], float]
    text: Callable[[float], str] = "{:g}".format


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
        name: Its name for `vcotta reproduce`.
        title: What it shows, in a sentence.
        where: Its table or figure in the paper, or ``ours``.
        specs: Makes its runs for one seed.
        scores: Scores of the table; the first one ranks the rows.
        paper: The paper's values, by score, data set and row.
        by_corruption: The paper's errors on each corruption, by data set and row; None for no such table.
        varied: The number it varies; None where its rows differ in something else.
        picture: Kind of its figure.
    """

    name: str
    title: str
    where: str
    specs: Specs
    scores: tuple[str, ...] = ("error", "nll", "brier", "ece")
    paper: Paper = field(default_factory=dict)
    by_corruption: Mapping[str, Mapping[str, Sequence[float]]] | None = None
    varied: Varied | None = None
    picture: Picture = "bars"

    def all_specs(self, chosen: ExperimentOptions) -> list[RunSpec]:
        """Return the runs of every seed, restricted to the chosen methods and values.

        Raises:
            ValueError: A method or value was chosen that the experiment does not have.
        """
        specs = self._select(self.specs(chosen), chosen)
        return [replace(spec, seed=seed) for seed in chosen.seeds for spec in specs]

    def _select(self, specs: list[RunSpec], chosen: ExperimentOptions) -> list[RunSpec]:
        if chosen.methods is not None:
            _check("method", chosen.methods, dict.fromkeys(spec.method for spec in specs))
            specs = [spec for spec in specs if spec.method in chosen.methods]
        if chosen.values is not None:
            if self.varied is None:
                raise ValueError(
                    f"Expected `values` only for an experiment that varies a number, but got them for {self.name}. "
                    "Leave them out."
                )
            of, text = self.varied.of, self.varied.text
            wanted = [text(value) for value in chosen.values]
            _check("value", wanted, dict.fromkeys(text(of(spec)) for spec in specs))
            specs = [spec for spec in specs if text(of(spec)) in wanted]
        return specs


def _check(kind: str, wanted: Sequence[str], known: Iterable[str]) -> None:
    names = list(known)
    for name in wanted:
        if name not in names:
            raise unknown_name(kind, name, names)
