"""What an experiment is, and what its caller can choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vcotta._messages import unknown_name
from vcotta.experiments.cells import Cell, printed_warm_up
from vcotta.methods import METHODS

__all__ = ["Asked", "Entry", "Varied"]

Picture = Literal[
    "heat map", "groups", "bars", "curve", "gradual", "orders", "loops", "drift", "risk", "reliability", "cost"
]
Paper = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class Asked:
    """What the caller of an experiment chose.

    Attributes:
        dataset: Name of the benchmark.
        preset: VCoTTA's preset; ``paper`` also warms up as printed (`printed_warm_up`).
        seeds: Seeds to average over.
        limit: Images of each domain; None for all.
        views: Most views a method may use; None for its own number.
        quick: Whether the shorter grids will do.
        methods: The only methods to run; None for all of the experiment.
        values: The only values of the setting that the experiment varies; None for all.
    """

    dataset: str = "digits"
    preset: str = "best"
    seeds: Sequence[int] = (0,)
    limit: int | None = None
    views: int | None = None
    quick: bool = False
    methods: Sequence[str] | None = None
    values: Sequence[float] | None = None

    def cell(self, label: str, method: str = "vcotta", /, **more: Any) -> Cell:
        """A cell of a method, on its usual start network."""
        options = dict(more.pop("options", {}))
        variational = METHODS[method].needs_variational
        if variational:
            options = {"preset": self.preset} | options
        if self.views is not None and "views" in METHODS[method].Config.__dataclass_fields__:
            options["views"] = min(self.views, options.get("views", self.views))
        start = more.pop("start", "warmed" if variational else "source")
        more["varies_warm_up"] = "warm_up" in more
        if start == "warmed" and self.preset == "paper":
            more["warm_up"] = printed_warm_up(self.dataset) | more.get("warm_up", {})
        return Cell(label, self.dataset, method, options, start, limit=self.limit, **more)


Cells = Callable[[Asked], list[Cell]]


@dataclass(frozen=True)
class Varied:
    """The setting that an experiment varies.

    Attributes:
        name: What it is, as on the axis of the picture.
        of: Its value in a cell.
        text: Writes a value.
    """

    name: str
    of: Callable[[Cell], float]
    text: Callable[[float], str] = "{:g}".format


@dataclass(frozen=True)
class Entry:
    """One experiment.

    Attributes:
        name: As given to `vcotta reproduce`.
        title: What it shows, in a sentence.
        where: Where the paper has it, or ``ours``.
        cells: Makes its runs for one seed.
        scores: What the table shows, the first is the one that ranks.
        paper: The paper's values, by score, data set and row.
        by_corruption: The paper's errors on each corruption, by data set and row; None for no such table.
        varied: The setting it varies, None where its rows are no numbers.
        picture: What is drawn.
    """

    name: str
    title: str
    where: str
    cells: Cells
    scores: tuple[str, ...] = ("error", "nll", "brier", "ece")
    paper: Paper = field(default_factory=dict)
    by_corruption: Mapping[str, Mapping[str, Sequence[float]]] | None = None
    varied: Varied | None = None
    picture: Picture = "bars"

    def all_cells(self, asked: Asked) -> list[Cell]:
        """The runs of every seed, those alone that were asked for.

        Raises:
            ValueError: A method or value was asked for that the experiment does not have.
        """
        cells = self._chosen(self.cells(asked), asked)
        return [replace(cell, seed=seed) for seed in asked.seeds for cell in cells]

    def _chosen(self, cells: list[Cell], asked: Asked) -> list[Cell]:
        if asked.methods is not None:
            _check("method", asked.methods, dict.fromkeys(cell.method for cell in cells))
            cells = [cell for cell in cells if cell.method in asked.methods]
        if asked.values is not None:
            if self.varied is None:
                raise ValueError(
                    f"Expected `values` only for an experiment that varies a number, but got them for {self.name}."
                )
            of, text = self.varied.of, self.varied.text
            wanted = [text(value) for value in asked.values]
            _check("value", wanted, dict.fromkeys(text(of(cell)) for cell in cells))
            cells = [cell for cell in cells if text(of(cell)) in wanted]
        return cells


def _check(kind: str, wanted: Sequence[str], known: Iterable[str]) -> None:
    names = list(known)
    for name in wanted:
        if name not in names:
            raise unknown_name(kind, name, names)
