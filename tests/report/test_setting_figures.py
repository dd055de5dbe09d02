import math

import pytest
from PIL import Image

from vcotta.report.setting_figures import Series, bar_panels, curves, dots, stacked_bars

NAN = math.nan
LINES = [
    Series("cotta", [5.0, 60.0, 4.0], [0.5, NAN, 1.0], [6.0, NAN, 3.0]),
    Series("vcotta", [4.0, NAN, 3.0], [NAN, NAN, NAN], [NAN, NAN, NAN]),
]


DRAWINGS = {
    "bars": lambda path: bar_panels(["one", "a long name"], ["cotta", "vcotta"], _bars(), path),
    "curves": lambda path: curves(["0", "1e-4", "1/20"], LINES, "a setting", path),
    "stacked": lambda path: stacked_bars(["bn", "vcotta"], {"noise": [3.0, 1.0], "blur": [NAN, 2]}, "x", path),
    "dots": lambda path: dots({"cotta": [3.0, 4.0], "vcotta": [2.0]}, {"vcotta": 13.1}, "error", path),
}


def _bars():
    return [Series("Error %", [3.0, NAN], [0.5, NAN], [4.0, NAN]), Series("NLL", [0.1, 0.2], [NAN, NAN], [NAN, NAN])]


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_a_figure_is_the_same_bytes_each_time_with_nothing_at_its_edge(draw, tmp_path):
    for name in ("one.png", "two.png"):
        draw(tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    with Image.open(tmp_path / "one.png") as image:
        grey = image.convert("L")
    width, height = grey.size
    for edge in [(0, 0, width, 1), (0, height - 1, width, height), (0, 0, 1, height), (width - 1, 0, width, height)]:
        assert grey.crop(edge).getextrema()[0] == 255, "a label is clipped"


def test_paper_values_change_the_picture(tmp_path):
    with_paper, without = tmp_path / "one.png", tmp_path / "two.png"
    curves(["0", "1", "2"], LINES[:1], "a setting", with_paper)
    curves(["0", "1", "2"], [Series("cotta", LINES[0].values, LINES[0].widths, [NAN] * 3)], "a setting", without)
    assert with_paper.read_bytes() != without.read_bytes()


def test_the_numbers_beside_bars_say_which_are_the_papers(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr("matplotlib.axes.Axes.text", lambda axes, x, y, words, **how: written.append(words))
    bars = Series("Error %", [12.0, 11.5], [NAN, NAN], [14.7, NAN])
    bar_panels(["one", "two"], ["vcotta", "vcotta"], [bars], tmp_path / "one.png")
    assert written == ["12.00 (paper 14.70)", "11.50"]
