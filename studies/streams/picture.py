"""The heat map of the study of streams: the error of each method on each stream, a picture a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from studies.streams.table import RESULTS, comparison, networks
from vcotta.report.stream_map import stream_map


def draw_streams(folder: Path = RESULTS) -> None:
    """Draw the heat map of every network in the result file of ``folder``; of a partial file what it has."""
    for network in networks(folder):
        streams, methods, cells = comparison(network, folder)
        errors = np.array([[cells.get((stream, method), np.nan) for method in methods] for stream in streams])
        stream_map([stream.name for stream in streams], methods, errors, folder / f"streams-{network}.png")
