"""The table of small batches: how many images to send at once."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from studies.files import read_result
from studies.markdown import table


def request_sizes_text() -> str:
    """Return the error by the number of images in a request."""
    found = read_result("small_batches", "request-sizes.json")
    rows, setting = found["rows"], found["setting"]
    sizes = dict.fromkeys(row["size"] for row in rows)
    shown = []
    for corruption in dict.fromkeys(row["corruption"] for row in rows):
        for key, how in (("error", "adapting"), ("error_without_adapting", "`adapt=false`")):
            same = [[row[key] for row in rows if (row["corruption"], row["size"]) == (corruption, n)] for n in sizes]
            kind = "clean" if corruption == "none" else corruption
            shown.append((f"{kind}, {how}", *(f"{statistics.mean(errors):.1f}" for errors in same)))
    note = (
        f"Error in per cent on {setting['images']} digits, mean over seeds {', '.join(map(str, setting['seeds']))}, "
        f"VCoTTA, each from its start; torch {setting['torch']} (`studies/small_batches/run_requests.py`)."
    )
    return f"{table(['Images in a batch', *map(str, sizes)], shown)}\n\n{note}"


TABLES: dict[str, Callable[[], str]] = {"request-sizes": request_sizes_text}
