"""A look at each corruption: a few images of the runs' own data, or of the digits where that is not at hand."""

from __future__ import annotations

import base64
import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vcotta.runs import Run

__all__ = ["Samples", "samples"]

SHOWN = 4
SIDE = 64


@dataclass(frozen=True)
class Samples:
    """Pictures for the page.

    Attributes:
        about: Where they come from, or why there are none.
        strips: Name of each corruption, clean images first, and a ``data:`` address of a PNG with a few images.
        small: Whether the images are so small that they are best shown with square pixels.
    """

    about: str
    strips: tuple[tuple[str, str], ...] = ()
    small: bool = False


def samples(run: Run) -> Samples:
    """Return a few images of each corruption of a run, at its highest severity.

    They are the first images of the run's data if that is at hand and is the same by its hash, and digits otherwise.
    Nothing is fetched.
    """
    from vcotta.corruptions import EXTRA, STANDARD, frost_source

    levels: dict[str, int] = {}
    for name, severity in _visited(run):
        known = name in (*STANDARD, *EXTRA) and isinstance(severity, int) and 1 <= severity <= 5
        if known and (name != "frost" or run.manifest.get("frost") in (None, frost_source())):
            levels[name] = max(severity, levels.get(name, 1))
    if not levels:
        return Samples("No sample images: this stream has no corruption that can be made here.")
    stream = run.manifest.get("stream")
    facts: dict[str, Any] = stream if isinstance(stream, dict) else {}
    images, about = _own_images(run, facts), "The first images of the runs' own data, clean and corrupted."
    if images is None:
        images, about = _digits(), "The runs' own images are not at hand: these are digits, corrupted in the same way."
    small = images.shape[1] < SIDE
    table, seed = facts.get("severity_table"), facts.get("seed")
    return Samples(about, tuple(_strips(images, levels, table, seed if isinstance(seed, int) else 0)), small)


def _visited(run: Run) -> dict[tuple[Any, Any], None]:
    """The (corruption, severity) pairs of a run in order, those within mixed batches too."""
    found: dict[tuple[Any, Any], None] = {}
    for record in run.records:
        names, severities = record.get("domains", [record["domain"]]), record.get("severities", [record["severity"]])
        found |= dict.fromkeys(zip(names, severities, strict=True))
    return found


def _own_images(run: Run, facts: dict[str, Any]) -> NDArray[np.uint8] | None:
    """Return the first images of the run's data, or None if other images, or none, are found under its name."""
    from vcotta.experiments.benchmark import find_benchmark

    data = facts.get("data")
    if facts.get("pixels") != "generated" or not isinstance(data, dict):
        return None
    try:
        found = find_benchmark(str(run.manifest.get("dataset"))).load()
        return np.array(found.images[:SHOWN]) if found.sha256() == data.get("sha256") else None
    except (OSError, ValueError, RuntimeError):
        return None


def _digits() -> NDArray[np.uint8]:
    from vcotta.data.digits import load_digits

    return load_digits()[1].images[:SHOWN]


def _strips(images: NDArray[np.uint8], levels: dict[str, int], table: Any, seed: int) -> list[tuple[str, str]]:
    from vcotta.corruptions import corrupt

    strips = [("clean", _png(images))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which textures frost uses was told when the run was made
        for name, severity in levels.items():
            made = corrupt(images, name, severity, seed, table=table if table in (32, 64, 224) else None)
            strips.append((name.replace("_", " "), _png(made)))
    return strips


def _png(images: NDArray[np.uint8]) -> str:
    """Return images side by side as the ``data:`` address of a PNG, large ones made smaller."""
    strip = Image.fromarray(np.concatenate(list(images), axis=1))
    if strip.height > 2 * SIDE:
        strip = strip.resize((strip.width * 2 * SIDE // strip.height, 2 * SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    strip.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
