import html
import re
from html.parser import HTMLParser

import pytest

from vcotta.data import load_digits
from vcotta.report.page import html_page, write_report
from vcotta.report.samples import samples

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
FOG, SNOW = ("fog", 5), ("snow", 5)


@pytest.fixture
def runs(make_run):
    alphas = [0.5, None, 0.25, 0.75]
    made = {
        "runs/source": make_run("source", {FOG: 10, SNOW: 4}),
        "runs/a": make_run("vcotta", {FOG: 2, SNOW: 1}, alphas=alphas),
        "runs/b": make_run("vcotta", {FOG: 4, SNOW: 1}, alphas=alphas),
        "runs/bn": make_run("bn", {FOG: 3, SNOW: 3}, nll=None),
    }
    for seed, run in enumerate(made.values()):
        run.manifest["seed"] = seed
    return made


class Outline(HTMLParser):
    """Elements with their attributes, and a check that every tag is closed in turn."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_complete_and_the_same_bytes_each_time(runs):
    page = html_page(runs)
    assert page == html_page(runs)
    elements = Outline(page).elements
    sections = [attrs["id"] for tag, attrs in elements if tag == "section"]
    assert sections[:5] == ["summary", "scores", "corruptions", "stream", "adaptation"]
    assert sections[5:] == ["reliability", "risk", "cost", "images", "manifests"]
    ids = [attrs["id"] for _, attrs in elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [attrs["href"][1:] for tag, attrs in elements if tag == "a"]
    assert set(links) <= set(ids)


def test_nothing_is_loaded_from_anywhere(runs):
    page = html_page(runs)
    for tag, attrs in Outline(page).elements:
        for name in ("src", "href", "srcset", "action", "data", "xlink:href"):
            assert attrs.get(name, "#").startswith(("#", "data:")), (tag, attrs)
        assert tag not in ("iframe", "object", "embed", "form", "base")
        assert not [name for name in attrs if name.startswith("on")]
    assert "@import" not in page
    assert page.count("url(") == page.count("url(#")  # parts of the same page
    assert "//" not in re.sub(r"data:[^\"]*", "", page)  # no address of any kind
    assert "default-src 'none'" in html.unescape(page)


def test_every_chart_has_a_title_and_a_description(runs):
    page = html_page(runs)
    charts = re.findall(r'<svg class="chart".*?</svg>', page, re.S)
    assert len(charts) >= 7
    for chart in charts:
        assert 'role="img"' in chart
        title, description = (
            re.search(rf"<{name} id=[^>]*>(.*?)</{name}>", chart).group(1) for name in ("title", "desc")
        )
        assert len(title) > 3
        assert len(description) > 10
        assert "nan" not in chart.lower()
    for _, attrs in Outline(page).elements:
        if "src" in attrs:
            assert attrs["alt"]


def test_intervals_are_shaded_for_three_runs_or_more_of_at_most_eight_methods(make_run):
    def bands(methods, seeds):
        runs = {}
        for method in range(methods):
            for seed in range(seeds):
                run = make_run(f"method_{method}", {FOG: 1 + seed, SNOW: 1})
                run.manifest["seed"] = seed
                runs[f"{method}-{seed}"] = run
        return html_page(runs).count("fill-opacity")

    assert bands(8, 3) == 8
    assert bands(9, 3) == 0
    assert bands(2, 2) == 0


def test_charts_take_their_colours_from_the_style_sheet(runs):
    charts = re.findall(r'<svg class="chart".*?</svg>', html_page(runs), re.S)
    assert charts
    for chart in charts:
        drawn = re.sub(r'(id|href)="[^"]*"|url\([^)]*\)', "", chart)
        assert not re.findall(r"#[0-9a-f]{6}", drawn)
        assert "currentColor" in drawn
        assert "var(--soft)" in drawn


def test_markers_show_their_values(runs):
    assert "<title>source: 50</title>" in html_page(runs)


def test_seeds_are_shown_as_mean_with_interval_and_infinity_as_such(runs):
    page = html_page(runs)
    assert "10.0" in page
    assert '<span class="interval">± 31.8</span>' in page  # errors of 7.5 and 12.5 per cent
    assert "∞" in page


def test_reconstructions_are_marked_with_a_footnote_under_each_table(make_run):
    runs = {name: make_run(name, {FOG: 1, SNOW: 2}) for name in ("dss", "bn")}
    page = html_page(runs)
    assert page.count('<th scope="row">dss \N{DAGGER}</th>') >= 2
    assert page.count("A reconstruction: ours") == 2
    assert "A reconstruction" not in html_page({"bn": runs["bn"]})


def test_nothing_in_a_run_can_become_markup(make_run):
    run = make_run(EVIL, {(EVIL, 5): 2, SNOW: 1}, alphas=[0.1, 0.2, 0.3, 0.4])
    for record in run.records:
        record["last"][EVIL] = 0.5
    run.manifest.update(
        {
            EVIL: {EVIL: [EVIL]},
            "seed": EVIL,
            "dataset": EVIL,
            "hardware": EVIL,
            "stream": {"data": {"name": EVIL}},
        }
    )
    page = html_page({EVIL: run})
    elements = Outline(page).elements
    assert [tag for tag, _ in elements].count("script") == 1
    assert not [attrs for _, attrs in elements if "onerror" in attrs or attrs.get("src") == "x"]


def test_manifests_with_missing_or_wrong_values_still_make_a_page(make_run):
    run = make_run("bn", {("clean", None): 0})
    run.manifest.update({"stream": {}, "config": [1], "runtime": None, "seed": None})
    page = html_page({"a": run})
    assert "No sample images" in page
    assert "record nothing but their passes" in page


def test_values_that_were_never_numbers_make_no_chart(make_run):
    run = make_run("bn", {FOG: 1})
    for record in run.records:
        record["last"] |= {"returned": True, "name": "x", "nothing": None}
    assert "record nothing but their passes" in html_page({"a": run})


def test_samples_are_digits_where_the_data_is_missing_and_none_where_no_corruption_is_known(make_run):
    run = make_run("bn", {FOG: 1, ("a_new_one", 3): 1})
    found = samples(run)
    assert [name for name, _ in found.strips] == ["clean", "fog"]
    assert "these are digits" in found.about
    assert all(address.startswith("data:image/png;base64,") for _, address in found.strips)
    assert samples(make_run("bn", {("clean", None): 1})).strips == ()


@pytest.mark.parametrize("named", [{"dataset": "digits"}, {"spec": {"data": "digits"}}])
def test_samples_are_the_runs_own_only_if_the_hash_is_the_same(make_run, named):
    run = make_run("bn", {FOG: 1})
    stream = {"pixels": "generated", "severity_table": 32, "seed": 0, "data": {"sha256": load_digits()[1].sha256()}}
    run.manifest.update({**named, "stream": stream})
    assert "runs' own data" in samples(run).about
    stream["data"] = {"sha256": "0" * 64}
    assert "these are digits" in samples(run).about


def test_a_report_writes_its_files_and_replaces_an_earlier_one(runs, tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.html").write_text("an earlier one")
    files = write_report(runs, tmp_path / "report")
    assert (tmp_path / "report" / "report.html").read_text() == html_page(runs)
    assert sorted(path for path in (tmp_path / "report").rglob("*") if path.is_file()) == sorted(files)
    names = {path.name for path in files}
    assert {"report.html", "report.md", "report.csv", "alpha.pdf", "error.png", "heat-map.pdf"} <= names
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| vcotta | **10.0 ± 31.8** |" in text


def test_a_report_draws_alpha_where_it_varies_and_both_priors_where_they_are_noted(make_run, tmp_path):
    fixed, adaptive = (make_run("vcotta", {FOG: 1, SNOW: 2}, alphas=alphas) for alphas in ([0.2] * 4, [0.1, 0.2] * 2))
    assert not {"alpha.png", "priors.png"} & {path.name for path in write_report({"a": fixed}, tmp_path, figures={})}
    assert "<b>alpha</b>" not in html_page({"a": fixed})
    assert ">alpha</th>" in html_page({"a": fixed})
    assert "<b>alpha</b>" in html_page({"a": adaptive})
    for step, record in enumerate(adaptive.records):
        record["last"] |= {"entropy_source": 0.5, "entropy_teacher": 0.5 - 0.01 * step}
    drawn = {path.name for path in write_report({"a": adaptive}, tmp_path, figures={})}
    assert {"alpha.png", "alpha.pdf", "priors.png", "priors.pdf"} <= drawn


def test_no_runs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one run"):
        write_report({}, tmp_path)


def test_mixed_batches_are_one_stretch_of_the_stream_and_many_columns(make_run):
    run = make_run("bn", {("mixed", 5): 2})
    run.manifest["stream"] = {"order": ["fog", "snow"]}
    for record in run.records:
        record["domains"], record["severities"] = ["fog"] * 10 + ["snow"] * 10, [5] * 20
        record["parts"] = [{"domain": name, "severity": 5, "nll": 0.5, "brier": 0.2} for name in ("snow", "fog")]
    page = html_page({"a": run})
    assert page.count("<span>fog</span>") == page.count("<span>snow</span>") == 1
    assert "2 domains" in page


def test_effective_classes_and_batch_share_are_charts_and_a_figure_where_runs_have_them(runs, tmp_path):
    assert "effective_classes" not in html_page(runs)
    for step, record in enumerate(runs["runs/a"].records):
        record["last"] |= {"effective_classes": 2.0 + step, "class_diversity": 0.1 * step, "batch_share": 0.2 * step}
    for step, classes in ((1, 3.5), (2, 2.5)):  # a method that looks at a few batches
        runs["runs/bn"].records[step]["last"] |= {"effective_classes": classes, "class_diversity": classes / 10}
    page = html_page(runs)
    assert "<b>effective_classes</b>: number of classes that a batch seems to hold" in page
    assert "<b>batch_share</b>: share of this and recent batches in BatchNorm&#39;s statistics" in page
    assert "<title>bn: 3.5</title>" in page
    assert "vcotta from 2 to 5; bn from 2.5 to 3.5" in page
    drawn = {path.name for path in write_report(runs, tmp_path, figures={})}
    assert {"classes.png", "classes.pdf"} <= drawn
