"""A few images of each corruption, from the runs' own data or else from the digits."""

from __future__ import annotations

import base64
import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vcotta.corruptions import EXTRA, STANDARD, corrupt, frost_source
from vcotta.data import load_digits
from vcotta.data.named import load_images
from vcotta.report.groups import frost_textures, manifest_part
from vcotta.runs.run import Run

__all__ = ["Samples", "samples"]

SHOWN = 4
SIDE = 64


@dataclass(frozen=True)
class Samples:
    """Pictures for the page.

    Attributes:
        about: Where they come from, or why there are none.
        strips: Name of each corruption and ``data:`` URL of a PNG with a few images; clean images come first.
        small: Whether the browser should enlarge them without smoothing.
    """

    about: str
    strips: tuple[tuple[str, str], ...] = ()
    small: bool = False


def samples(run: Run) -> Samples:
    """Return a few images of each corruption of a run, at its highest severity; nothing is downloaded.

    They are the first images of the run's data if that is on this machine and has the same hash, otherwise digits.
    """
    levels: dict[str, int] = {}
    for name, severity in _visited(run):
        known = name in (*STANDARD, *EXTRA) and isinstance(severity, int) and 1 <= severity <= 5
        if known and (name != "frost" or frost_textures(run) in (None, frost_source())):
            levels[name] = max(severity, levels.get(name, 1))
    if not levels:
        return Samples("No sample images: this stream has no corruption that vcotta can make.")
    stream = manifest_part(run, "stream")
    images, about = _own_images(run, stream), "The first images of the runs' own data, clean and corrupted."
    if images is None:
        images = load_digits()[1].images[:SHOWN]
        about = "The runs' own images are not on this machine: these are digits, corrupted in the same way."
    small = images.shape[1] < SIDE
    table, seed = stream.get("severity_table"), stream.get("seed")
    return Samples(about, tuple(_strips(images, levels, table, seed if isinstance(seed, int) else 0)), small)


def _visited(run: Run) -> dict[tuple[Any, Any], None]:
    """The (corruption, severity) pairs of a run in order, those in mixed batches included."""
    found: dict[tuple[Any, Any], None] = {}
    for record in run.records:
        names, severities = record.get("domains", [record["domain"]]), record.get("severities", [record["severity"]])
        found |= dict.fromkeys(zip(names, severities, strict=True))
    return found


def _own_images(run: Run, stream: dict[str, Any]) -> NDArray[np.uint8] | None:
    """The first images of the run's data, if this machine has data of its name and hash."""
    data = stream.get("data")
    if stream.get("pixels") != "generated" or not isinstance(data, dict):
        return None
    try:
        found = load_images(str(manifest_part(run, "spec").get("data") or run.manifest.get("dataset")))
        return np.array(found.images[:SHOWN]) if found.sha256() == data.get("sha256") else None
    except (OSError, ValueError, RuntimeError):
        return None


def _strips(images: NDArray[np.uint8], levels: dict[str, int], table: Any, seed: int) -> list[tuple[str, str]]:
    strips = [("clean", _png(images))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run already warned about the textures of frost
        for name, severity in levels.items():
            made = corrupt(images, name, severity, seed, table=table if table in (32, 64, 224) else None)
            strips.append((name.replace("_", " "), _png(made)))
    return strips


def _png(images: NDArray[np.uint8]) -> str:
    """Images side by side as the ``data:`` URL of a PNG, at most 128 pixels high."""
    strip = Image.fromarray(np.concatenate(list(images), axis=1))
    if strip.height > 2 * SIDE:
        strip = strip.resize((strip.width * 2 * SIDE // strip.height, 2 * SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    strip.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
