from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vcotta.report.stream_map import stream_map

ERRORS = np.array([[20.0, 5.0, np.nan], [0.0, 80.0, 10.0]])


@pytest.mark.parametrize("methods", [["source", "bn", "vcotta"], ["tent", "bn", "vcotta"]])
def test_the_map_is_drawn_with_gaps_with_and_without_source(tmp_path, methods) -> None:
    stream_map(["continual-50", "sorted-16"], methods, ERRORS, tmp_path / "map.png")
    with Image.open(tmp_path / "map.png") as picture:
        coloured = np.ptp(np.asarray(picture.convert("RGB")).astype(int), axis=2).max() > 50
    assert coloured == ("source" in methods)
