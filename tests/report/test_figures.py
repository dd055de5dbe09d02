import subprocess
import sys

import matplotlib
import pytest
from PIL import Image

from vcotta.corruptions import STANDARD
from vcotta.report import alpha_along_stream, error_by_corruption, priors_along_stream, reliability
from vcotta.report.comparison_figures import (
    cost_against_error,
    error_along_stream,
    error_heat_map,
    risk_against_coverage,
)
from vcotta.report.looks import KNOWN, SPARE, looks

DRAWINGS = {
    "errors": lambda runs, path: error_by_corruption(runs, path),
    "alpha": lambda runs, path: alpha_along_stream(runs[-1], path),
    "priors": lambda runs, path: priors_along_stream(runs[-1], path),
    "reliability": lambda runs, path: reliability(runs, path),
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


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_nothing_is_drawn_up_to_the_edge(draw, runs, tmp_path):
    draw(runs, tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as image:
        grey = image.convert("L")
    width, height = grey.size
    for edge in [(0, 0, width, 1), (0, height - 1, width, height), (0, 0, 1, height), (width - 1, 0, width, height)]:
        assert grey.crop(edge).getextrema()[0] == 255, "a label is clipped"


@pytest.mark.parametrize("name", sorted(DRAWINGS.keys() - {"alpha", "priors"}))
def test_twenty_methods_are_all_named_within_the_figure(name, make_run, tmp_path):
    runs = [make_run(f"method_{place}", {("fog", 5): 2, ("snow", 5): 1}) for place in range(20)]
    test_nothing_is_drawn_up_to_the_edge(DRAWINGS[name], runs, tmp_path)


@pytest.mark.parametrize("draw", [error_by_corruption, error_heat_map, cost_against_error])
def test_a_pdf_embeds_its_fonts_and_is_the_same_bytes_each_time(draw, runs, tmp_path):
    for name in ("one.pdf", "two.pdf"):
        draw(runs, tmp_path / name)
    one = (tmp_path / "one.pdf").read_bytes()
    assert one == (tmp_path / "two.pdf").read_bytes()
    assert b"/FontFile2" in one
    assert b"/Type3" not in one
    assert b"/Subtype /Image" not in one  # vectors alone


def test_known_methods_keep_their_look_and_no_two_share_one():
    found = looks(["vcotta", "mine", "bn", "bn lr=1", "other", "vcotta lr=1"])
    assert found == [KNOWN["vcotta"], SPARE[0], KNOWN["bn"], SPARE[1], SPARE[2], SPARE[3]]
    many = looks([f"method {place}" for place in range(25)])
    assert len(set(many)) == 25


@pytest.mark.parametrize("draw", [alpha_along_stream, priors_along_stream])
def test_a_method_without_such_notes_is_named(draw, make_run, tmp_path):
    with pytest.raises(ValueError, match="`source` does not"):
        draw(make_run("source", {("fog", 5): 1}), tmp_path / "notes.png")
    assert not list(tmp_path.iterdir())


def test_other_formats_are_refused(runs, tmp_path):
    with pytest.raises(ValueError, match=r"end in \.png"):
        error_by_corruption(runs, tmp_path / "errors.svg")


def test_no_runs_are_refused(tmp_path):
    for draw in (error_by_corruption, reliability):
        with pytest.raises(ValueError, match="at least one run"):
            draw([], tmp_path / "figure.png")


def test_reading_runs_needs_neither_matplotlib_nor_scikit_learn():
    code = "import sys, vcotta.report, vcotta.data.digits; print({'matplotlib', 'sklearn'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
