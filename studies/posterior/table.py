"""The tables of the posterior: warm-ups, what can be cut, and what helps at test time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from studies.files import read_result
from studies.markdown import table

Row = dict[str, Any]


def warmups_text() -> str:
    """Return a table for each network, a row for each warm-up."""
    return "\n\n".join(_warmups(network, rows) for network, rows in _by_network("warmups"))


def _warmups(network: str, found: Sequence[Row]) -> str:
    headings = ["Warm-up", "Clean: means", "eight draws", "BN, corrupted: means", "draws"]
    headings += ["Sigma varies by: least", "median", "VCoTTA"]
    rows = []
    for name in dict.fromkeys(row["name"] for row in found):
        same = [row for row in found if row["name"] == name]
        cells = [_scores(same, part) for part in ("clean", "clean_draws", "corrupted", "corrupted_draws")]
        spread = [f"{statistics.mean(row['spread'][part] for row in same):.2f}" for part in ("least", "median")]
        rows.append((name, *cells, *spread, _scores(same, "adapted")))
    return f"**{network}**{_seeds(found)}\n\n{table(headings, rows)}"


def cuts_text() -> str:
    """Return the errors after cutting, a row for each network and share."""
    parts = []
    for network, found in _by_network("cuts"):
        rules = list(dict.fromkeys(row["rule"] for row in found))
        rows = []
        for share in dict.fromkeys(row["share"] for row in found):
            cells = []
            for rule in rules:
                errors = [row["error"] for row in found if (row["share"], row["rule"]) == (share, rule)]
                cells.append(f"{statistics.mean(errors):.1f}")
            rows.append((f"{share:.0%}", *cells))
        headings = ["Cut", *(rule.replace("|", "\\|") for rule in rules)]
        parts.append(f"**{network}**{_seeds(found)}\n\n{table(headings, rows)}")
    return "\n\n".join(parts)


def streams_text() -> str:
    """Return error and NLL of each variant on each stream, a table for each network."""
    parts = []
    for network, found in _by_network("streams"):
        streams = list(dict.fromkeys(row["stream"] for row in found))
        rows = []
        for variant in dict.fromkeys(row["variant"] for row in found):
            cells = []
            for stream in streams:
                same = [row for row in found if (row["stream"], row["variant"]) == (stream, variant)]
                cells.append(f"{_mean(same, 'error'):.2f} / {_mean(same, 'nll'):.3f}")
            rows.append((variant, *cells))
        parts.append(f"**{network}**{_seeds(found)}\n\n{table(['VCoTTA', *streams], rows)}")
    return "\n\n".join(parts)


def regret_text() -> str:
    """Return in words how far each rule for the prediction is from the best fixed share, over all streams."""
    fixed = {
        "the teacher alone": "prediction of the teacher alone",
        "a tenth": "prediction: a tenth of the source",
        "half, the default": "default",
        "the source alone": "prediction of the source alone",
    }
    regrets: dict[str, list[float]] = {name: [] for name in ("by evidence", *fixed)}
    for _, found in _by_network("streams"):
        for stream in dict.fromkeys(row["stream"] for row in found):
            errors = {
                row_name: _mean([r for r in found if (r["stream"], r["variant"]) == (stream, variant)], "error")
                for row_name, variant in {"by evidence": "by evidence", **fixed}.items()
            }
            best = min(errors[name] for name in fixed)
            for name, error in errors.items():
                regrets[name].append(error - best)
    words = [
        f"{name}: {statistics.mean(values):+.2f} in the mean, {max(values):+.2f} at worst"
        for name, values in regrets.items()
    ]
    count = len(next(iter(regrets.values())))
    return (
        f"Points of error more than the best of the four fixed shares, chosen for each stream in hindsight, over "
        f"{count} streams and networks. The source's share {'; '.join(words)}."
    )


def _by_network(part: str) -> list[tuple[str, list[Row]]]:
    rows = read_result("posterior", "posterior.json")[part]
    return [(name, [r for r in rows if r["network"] == name]) for name in dict.fromkeys(r["network"] for r in rows)]


def _seeds(rows: Sequence[Row]) -> str:
    seeds = len({row["seed"] for row in rows})
    return f", {rows[0]['dataset']}, {seeds} seed{'' if seeds == 1 else 's'}, torch {rows[0]['torch']}"


def _mean(rows: Sequence[Row], key: str) -> float:
    return statistics.mean(row[key] for row in rows)


def _scores(rows: Sequence[Row], part: str) -> str:
    means = [statistics.mean(row[part][key] for row in rows) for key in ("error", "nll")]
    return f"{means[0]:.2f} / {means[1]:.3f}"


TABLES: dict[str, Callable[[], str]] = {
    "posterior-warmups": warmups_text,
    "posterior-cuts": cuts_text,
    "posterior-streams": streams_text,
    "posterior-regret": regret_text,
}
