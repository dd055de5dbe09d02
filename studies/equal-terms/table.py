"""The tables of all methods on equal terms."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable
from pathlib import Path

from studies.files import results_of
from studies.markdown import listed, table
from studies.scores import SCORES, Row, circumstances, mean_errors, mean_scores, read_rows
from vcotta.methods import VCoTTAConfig

RESULTS = results_of("equal-terms")
STARTS = ("plain", "warmed")
TITLES = {"cifar10c": "CIFAR10-C", "cifar100c": "CIFAR100-C", "digits": "The digits stream"}
SHOWN = SCORES | {"forwards": ("Forwards", ".1f"), "backwards": ("Backwards", ".1f")}


def rows_of(part: str, folder: Path = RESULTS) -> list[Row]:
    """Return the rows of a part, none if it was not run."""
    return read_rows(folder / f"{part}.json")


def kinds_of(part: str, folder: Path = RESULTS) -> dict[tuple[str, int | None], list[Row]]:
    """Return the rows of a part by network and number of images, in the order in which they were measured."""
    kinds: dict[tuple[str, int | None], list[Row]] = {}
    for row in rows_of(part, folder):
        kinds.setdefault((row["network"], row["images"]), []).append(row)
    return kinds


def part_text(part: str, folder: Path = RESULTS) -> str:
    """Return the tables of a part, one for each number of images, or say that it was not measured."""
    kinds = kinds_of(part, folder)
    if not kinds:
        return f"{TITLES[part]} is not measured yet: `python -m studies.equal-terms.run {part}`."
    picture = f"![Error of each method from the plain and from the warmed network](results/{part}.png)"
    return "\n\n".join([picture, *(_kind_text(part, *kind, rows) for kind, rows in kinds.items())])


def summary_text(folder: Path = RESULTS) -> str:
    """Say which parts were measured, and VCoTTA's error beside that of the best other method."""
    lines = []
    for part, title in TITLES.items():
        means = means_of(_compared(rows_of(part, folder)))
        ours = {key: error for key, error in means.items() if key[0].startswith("vcotta")}
        others = {key: error for key, error in means.items() if key not in ours}
        if not (ours and others):
            lines.append(f"{title} is not measured yet.")
            continue
        (own, least), (name, start) = min(ours, key=ours.__getitem__), min(others, key=others.__getitem__)
        lines.append(
            f"{title}: {own} has {ours[own, least]:.2f} % from the {least} network, the best of the others measured, "
            f"{name}, {others[name, start]:.2f} % from the {start} one."
        )
    return " ".join(lines)


def found_text(part: str = "cifar10c", folder: Path = RESULTS) -> str:
    """Say what the warm-up gives each method, and how VCoTTA compares with the best other one from either network."""
    groups = _groups(_compared(rows_of(part, folder)))
    means = {key: statistics.fmean(row["error"] for row in group) for key, group in groups.items()}
    gains = {name: means[name, "plain"] - means[name, "warmed"] for name, start in means if start == "plain"}
    learning = {name: gain for name, gain in gains.items() if name not in ("source", "bn")}
    least, most = min(learning, key=learning.__getitem__), max(learning, key=learning.__getitem__)
    lines = [
        f"- **The warm-up helps every method**: BN by {gains['bn']:.1f} points, those that learn by "
        f"{gains[least]:.1f} ({least}) to {gains[most]:.1f} ({most})."
    ]
    for start in reversed(STARTS):
        names = [name for name, other in means if other == start]  # the lowest error first
        own = next(name for name in names if name.startswith("vcotta"))
        best = next(name for name in names if name != own)
        ours, theirs = groups[own, start][0], groups[best, start][0]
        ahead = names[: names.index(own)]
        behind = [f"{means[name, start]:.1f} % ({name})" for name in names[names.index(own) + 1 :][:1]]
        apart = [
            f"{domain.replace('_', ' ')} ({mine:.1f} and {other:.1f} %)"
            for domain, mine, other in zip(ours["domains"], ours["errors"], theirs["errors"], strict=True)
            if mine - other > 2
        ]
        lines.append(
            f"- **From the {start} network** VCoTTA has {means[own, start]:.1f} %; ahead are "
            f"{listed(ahead) or 'none'}, the next has {listed(behind)}. Beside {best} its NLL is {ours['nll']:.3f} and "
            f"{theirs['nll']:.3f}, its ECE {ours['ece']:.3f} and {theirs['ece']:.3f}. It is more than two points worse "
            f"in {listed(apart) or 'no corruption'}."
        )
    full = [row for row in rows_of(part, folder) if row["images"] is None and row["method"] == "vcotta"]
    if full:
        count = len(full)
        error, nll = (statistics.fmean(row[name] for row in full) for name in ("error", "nll"))
        runs = "one run" if count == 1 else f"the mean of {count} runs"
        lines.append(f"- **On all images** VCoTTA has {error:.2f} % and an NLL of {nll:.3f} ({runs}).")
    return "\n".join(lines)


def earlier_text(folder: Path = RESULTS) -> str:
    """Return errors of the network that was measured before, of some methods."""
    rows = rows_of("cifar10c-30-epochs", folder)
    names = ("source", "bn", "cotta", "rmt", "tca", "vcotta")
    shown = [row for row in rows if row["method"] in names and row["images"] is not None]
    means = means_of([row for row in shown if row["method"] != "vcotta" or row["views"] == VCoTTAConfig().views])
    methods = list(dict.fromkeys(name for name, _ in means))
    cells = [(name, *(f"{means[name, s]:.1f}" if (name, s) in means else "" for s in STARTS)) for name in methods]
    full = [row for row in rows if row["images"] is None]
    note = "; ".join(f"{_name(row)} on all images, {row['start']}: {row['error']:.1f} %" for row in full)
    return f"{table(['Error %', *STARTS], cells)}\n\n{circumstances(shown)}; {note}."


def _compared(rows: list[Row]) -> list[Row]:
    """Return the rows of all images, or else of the most, of which VCoTTA has some and other methods, too."""
    for count in sorted({row["images"] for row in rows}, key=lambda images: -(images or math.inf)):
        found = [row for row in rows if row["images"] == count]
        if 0 < sum(row["method"] == "vcotta" for row in found) < len(found):
            return found
    return []


def _groups(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of all seeds by the name of the method and the start."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((_name(row), row["start"]), []).append(row)
    return dict(sorted(found.items(), key=lambda pair: statistics.fmean(row["error"] for row in pair[1])))


def _name(row: Row) -> str:
    """Return the method of a row, with its preset and views if it has them."""
    views = None if row["views"] is None else f"{row['views']} views"
    words = [word for word in (row["preset"], views) if word]
    return f"{row['method']} ({', '.join(words)})" if words else str(row["method"])


def means_of(rows: list[Row]) -> dict[tuple[str, str], float]:
    """Return the mean error over seeds by the name of the method and the start, the lowest first."""
    return {key: statistics.fmean(row["error"] for row in group) for key, group in _groups(rows).items()}


def _kind_text(part: str, network: str, images: int | None, rows: list[Row]) -> str:
    """Return scores and cost of each method and start, the lowest error first, and the errors by corruption."""
    groups = _groups(rows)
    cells = [[name, start, *mean_scores(group, SHOWN)] for (name, start), group in groups.items()]
    headings = ["Method", "Network", *(heading for heading, _ in SHOWN.values())]
    by_corruption = [[f"{name}, {start}", *mean_errors(group)] for (name, start), group in groups.items()]
    domains = [domain.replace("_", " ") for domain in rows[0]["domains"]]
    count = f"{images} images of each corruption" if images else "all images"
    title = f"{TITLES[part]}, {network}, {count}:"
    tables = (table(headings, cells, left=2), table(["Error %", *domains], by_corruption))
    note = f"{circumstances(rows)} (`studies/equal-terms/run.py`). Seconds are for a corruption, the first left out; "
    note += "passes are over a batch."
    return "\n\n".join([title, *tables, note])


TABLES: dict[str, Callable[[], str]] = {
    "equal-summary": summary_text,
    "equal-found": found_text,
    "equal-earlier": earlier_text,
    **{f"equal-{part}": functools.partial(part_text, part) for part in TITLES},
}
