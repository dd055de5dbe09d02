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


def shares_text() -> str:
    """Return the mean error of each rule for the prediction, and how far it is from the best fixed share."""
    rows: list[Row] = read_result("posterior", "shares.json")
    streams = list(dict.fromkeys((row["network"], row["stream"]) for row in rows))
    means = {
        (rule, stream): _mean([row for row in rows if (row["rule"], row["network"], row["stream"]) == (rule, *stream)])
        for rule in dict.fromkeys(row["rule"] for row in rows)
        for stream in streams
    }
    rules = list(dict.fromkeys(rule for rule, _ in means))
    best = {stream: min(means[rule, stream] for rule in rules if rule.startswith("source ")) for stream in streams}
    lines = []
    for rule in rules:
        errors = [means[rule, stream] for stream in streams]
        regrets = [means[rule, stream] - best[stream] for stream in streams]
        nll = statistics.mean(row["nll"] for row in rows if row["rule"] == rule)
        numbers = (statistics.mean(errors), nll, statistics.mean(regrets), max(regrets))
        lines.append((rule, *(f"{value:.{digits}f}" for value, digits in zip(numbers, (2, 3, 2, 2), strict=True))))
    return table(["Prediction", "Error %", "NLL", "Regret: mean", "worst"], lines)


def _by_network(part: str) -> list[tuple[str, list[Row]]]:
    rows = read_result("posterior", "posterior.json")[part]
    return [(name, [r for r in rows if r["network"] == name]) for name in dict.fromkeys(r["network"] for r in rows)]


def _seeds(rows: Sequence[Row]) -> str:
    seeds = len({row["seed"] for row in rows})
    return f", {rows[0]['dataset']}, {seeds} seed{'' if seeds == 1 else 's'}, torch {rows[0]['torch']}"


def _mean(rows: Sequence[Row], key: str = "error") -> float:
    return statistics.mean(row[key] for row in rows)


def _scores(rows: Sequence[Row], part: str) -> str:
    means = [statistics.mean(row[part][key] for row in rows) for key in ("error", "nll")]
    return f"{means[0]:.2f} / {means[1]:.3f}"


TABLES: dict[str, Callable[[], str]] = {
    "posterior-warmups": warmups_text,
    "posterior-cuts": cuts_text,
    "posterior-streams": streams_text,
    "posterior-shares": shares_text,
}
