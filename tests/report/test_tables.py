import io

import pytest
from rich.console import Console

from vcotta.methods import RECONSTRUCTION_NOTE
from vcotta.report.tables import by_corruption, comparison, csv_text, rows

FOG, SNOW = ("fog", 5), ("snow", 5)


@pytest.fixture
def runs(make_run):
    return [
        make_run("source", {FOG: 10, SNOW: 4}, seconds=0.25, nll=1.5),
        make_run("bn", {FOG: 2, SNOW: 4}, seconds=0.5, nll=None),
    ]


def test_rows_have_exactly_the_documented_keys_with_error_in_per_cent(runs):
    source, bn = rows(runs)
    assert list(source) == ["method", "error", "nll", "brier", "ece", "seconds"]
    assert source["method"] == "source"
    assert source["error"] == pytest.approx(35)  # mean of 50 % and 20 %
    assert source["nll"] == pytest.approx(1.5)
    assert source["brier"] == pytest.approx(0.25)
    assert source["ece"] == pytest.approx((0.4 + 0.1) / 2)
    assert source["seconds"] == pytest.approx(1.0)
    assert bn["nll"] == float("inf")


def test_markdown_of_the_comparison(runs):
    assert comparison(runs).markdown() == (
        "| Method | Error % | NLL | Brier | ECE | Seconds |\n"
        "|:--|--:|--:|--:|--:|--:|\n"
        "| source | 35.0 | **1.500** | 0.250 | 0.250 | 1.0 |\n"
        "| bn | **15.0** | inf | 0.250 | **0.050** | 2.0 |\n"
    )


def test_markdown_by_corruption_ends_with_the_mean(runs):
    assert by_corruption(runs).markdown() == (
        "| Corruption | source | bn |\n"
        "|:--|--:|--:|\n"
        "| fog | 50.0 | **10.0** |\n"
        "| snow | 20.0 | 20.0 |\n"
        "| mean | 35.0 | **15.0** |\n"
    )


def test_reconstructions_are_marked_in_every_table_with_a_footnote(make_run):
    both = [make_run("swa", {FOG: 2, SNOW: 4}), make_run("bn", {FOG: 4, SNOW: 4})]
    for table in (comparison(both), by_corruption(both)):
        assert "swa \N{DAGGER} |" in table.markdown()
        assert table.markdown().endswith(f"\n\n{RECONSTRUCTION_NOTE}\n")
        console = Console(file=io.StringIO(), width=200)
        console.print(table.rich())
        assert "\N{DAGGER} A reconstruction" in console.file.getvalue()
    assert "\N{DAGGER}" not in comparison(both[1:]).markdown()


def test_values_that_are_equal_once_rounded_are_both_best(make_run):
    runs = [make_run(name, {FOG: wrong}) for name, wrong in (("a", 3), ("b", 3), ("c", 4))]
    assert by_corruption(runs).best == {(0, 1), (0, 2), (1, 1), (1, 2)}


def test_terminal_table_fits_eighty_columns_and_sets_the_best_in_bold(runs):
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    console.print(comparison(runs).rich())
    console.print(by_corruption(runs).rich())
    text = console.file.getvalue()
    assert "\x1b[1m15.0\x1b[0m" in text
    assert "\x1b[1m35.0" not in text
    assert "…" not in text


def test_labels_have_severities_where_there_are_several(make_run):
    grid = by_corruption([make_run("source", {("fog", 3): 1, ("motion_blur", 5): 2})])
    assert [row[0] for row in grid.cells] == ["fog 3", "motion blur 5", "mean"]


def test_runs_of_different_streams_are_refused(make_run):
    with pytest.raises(ValueError, match="`bn` and `source` differ"):
        by_corruption([make_run("source", {FOG: 1}), make_run("bn", {SNOW: 1})])
    with pytest.raises(ValueError, match="at least one run"):
        by_corruption([])


def test_the_csv_has_a_line_for_each_run_and_a_column_for_each_visit(seeded, make_run):
    lines = csv_text({"a": seeded("bn", 2, 0), "b": seeded("bn", 4, 1)}).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("run,method,label,seed,error,nll")
    assert lines[0].endswith("error fog,error snow")
    assert lines[2].startswith("b,bn,bn,1,0.2,")
    run = make_run("bn", {FOG: 1, SNOW: 2})
    run.records.extend(dict(record, batch=4 + k) for k, record in enumerate(run.records[:2]))
    run.timing.extend(dict(line, batch=4 + k) for k, line in enumerate(run.timing[:2]))
    assert csv_text({"a": run}).splitlines()[0].endswith("error fog,error snow,error fog (2)")


def test_markdown_shows_odd_names_as_they_are(seeded):
    assert r"| a\|b\* &lt;i> |" in comparison([seeded("a|b* <i>", 1, 0)]).markdown()
    assert "\N{REPLACEMENT CHARACTER}" in by_corruption([seeded("a\x1b[2Jb\n", 1, 0)]).header[1]
