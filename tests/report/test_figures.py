import subprocess
import sys

import matplotlib
import pytest
from PIL import Image

from vcotta.corruptions import STANDARD
from vcotta.report.figures import (
    cost_against_error,
    error_along_stream,
    error_by_corruption,
    error_heat_map,
    notes_along_stream,
    place_names,
    priors_along_stream,
    reliability,
    risk_against_coverage,
)
from vcotta.report.groups import group_runs
from vcotta.report.method_styles import KNOWN, SPARE, method_styles

DRAWINGS = {
    "errors": error_by_corruption,
    "notes": lambda runs, path: notes_along_stream(group_runs(runs), {"alpha": "α", "forwards": "passes"}, path),
    "priors": lambda runs, path: priors_along_stream(runs[-1], path),
    "reliability": reliability,
    "heat map": error_heat_map,
    "stream": error_along_stream,
    "risk": risk_against_coverage,
    "cost": cost_against_error,
}


@pytest.fixture
def runs(make_run):
    errors = {(name, 5): place for place, name in enumerate(STANDARD)}
    alphas = [0.1 + 0.02 * step for step in range(29)] + [None]
    vcotta = make_run("vcotta", errors, alphas=alphas, confidence=0.7)
    for step, record in enumerate(vcotta.records):
        record["last"] |= {"entropy_source": 0.5, "entropy_teacher": 0.5 - 0.01 * step}
    return [make_run("source", errors), vcotta]


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_figure_is_a_png_of_the_same_bytes_each_time_and_changes_no_settings(draw, runs, tmp_path):
    before = dict(matplotlib.rcParams)
    for name in ("one.png", "two.png"):
        draw(runs, tmp_path / name)
    assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    with Image.open(tmp_path / "one.png") as image:
        assert image.format == "PNG"
        assert image.width > 800
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.png", "two.png"]


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_settings_of_the_user_do_not_change_the_figure(draw, runs, tmp_path):
    draw(runs, tmp_path / "one.png")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        draw(runs, tmp_path / "two.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def has_white_edges(path):
    """Return whether nothing is drawn up to the edge of a picture, where a label would be clipped."""
    with Image.open(path) as image:
        grey = image.convert("L")
    width, height = grey.size
    edges = [(0, 0, width, 1), (0, height - 1, width, height), (0, 0, 1, height), (width - 1, 0, width, height)]
    return all(grey.crop(edge).getextrema()[0] == 255 for edge in edges)


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_nothing_is_drawn_up_to_the_edge(draw, runs, tmp_path):
    draw(runs, tmp_path / "figure.png")
    assert has_white_edges(tmp_path / "figure.png")


@pytest.mark.parametrize("name", sorted(DRAWINGS.keys() - {"notes", "priors"}))
def test_twenty_methods_are_all_named_within_the_figure(name, make_run, tmp_path):
    runs = [make_run(f"method_{place}", {("fog", 5): 2, ("snow", 5): 1}) for place in range(20)]
    DRAWINGS[name](runs, tmp_path / "figure.png")
    assert has_white_edges(tmp_path / "figure.png")


def test_names_of_points_overlap_neither_each_other_nor_a_point():
    names = [f"method {place}" for place in range(14)]
    points = [(220.0 + 7 * (place % 3), 190.0 + place) for place in range(14)]
    box, size = (38.0, 380.0, 32.0, 340.0), 9.0
    starts = place_names(names, points, box, size)
    boxes = [(x, x + 5.4 * len(name), y - 4.5, y + 4.5) for (x, y), name in zip(starts, names, strict=True)]
    marks = [(x - 4.5, x + 4.5, y - 4.5, y + 4.5) for x, y in points]
    for place, (a, b, c, d) in enumerate(boxes):
        assert box[0] <= a
        assert b <= box[1]
        for e, f, g, h in boxes[:place] + marks:
            assert not (a < f and e < b and c < h and g < d)


@pytest.mark.parametrize("draw", [error_by_corruption, error_heat_map, cost_against_error])
def test_a_pdf_embeds_its_fonts_and_is_the_same_bytes_each_time(draw, runs, tmp_path):
    for name in ("one.pdf", "two.pdf"):
        draw(runs, tmp_path / name)
    one = (tmp_path / "one.pdf").read_bytes()
    assert one == (tmp_path / "two.pdf").read_bytes()
    assert b"/FontFile2" in one
    assert b"/Type3" not in one
    assert b"/Subtype /Image" not in one  # vectors alone


def test_known_methods_keep_their_style_and_no_two_share_one():
    found = method_styles(["vcotta", "mine", "bn", "bn lr=1", "other", "vcotta lr=1"])
    assert found == [KNOWN["vcotta"], SPARE[0], KNOWN["bn"], SPARE[1], SPARE[2], SPARE[3]]
    many = method_styles([f"method {place}" for place in range(25)])
    assert len(set(many)) == 25


def test_a_method_that_does_not_note_its_priors_is_named(make_run, tmp_path):
    with pytest.raises(ValueError, match="`source` does not"):
        priors_along_stream(make_run("source", {("fog", 5): 1}), tmp_path / "priors.png")
    assert not list(tmp_path.iterdir())


def test_other_formats_are_refused(runs, tmp_path):
    with pytest.raises(ValueError, match=r"end in \.png"):
        error_by_corruption(runs, tmp_path / "errors.svg")


def test_a_method_without_passes_is_left_out_of_the_costs(make_run, tmp_path):
    run = make_run("mine", {("fog", 5): 1})
    for record in run.records:
        del record["last"]["forwards"]
    cost_against_error([run], tmp_path / "one.png")
    cost_against_error([run, make_run("bn", {("fog", 5): 1})], tmp_path / "two.png")


def test_no_runs_are_refused(tmp_path):
    for draw in (error_by_corruption, reliability):
        with pytest.raises(ValueError, match="at least one run"):
            draw([], tmp_path / "figure.png")


def test_reading_runs_needs_neither_matplotlib_nor_scikit_learn():
    code = "import sys, vcotta.report.page, vcotta.data; print({'matplotlib', 'sklearn'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
