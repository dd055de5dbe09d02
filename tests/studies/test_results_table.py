"""README's table of results: which rows it takes, and what it says of VCoTTA beside the best other method."""

from __future__ import annotations

import pytest

import studies.results_table as page
from vcotta.methods import VCoTTAConfig

VIEWS = VCoTTAConfig().views


def row(method: str, error: float, start: str = "plain", **more) -> dict:
    facts = {"method": method, "error": error, "start": start, "preset": None, "seed": 0, "images": 2000, "views": None}
    facts |= {"network": "net", "protocol": "continual", "hardware": "a GPU"}
    return facts | more


def ours(error: float, start: str = "warmed", **more) -> dict:
    return row("vcotta", error, start, **{"preset": "best", "views": VIEWS} | more)


@pytest.fixture
def drawn(monkeypatch):
    """Draw the table from rows of our own; each case adds some to the few that every part needs."""

    def draw(cifar=(), hundred=(), photographs=()) -> str:
        files = {
            "equal-terms": [row("bn", 20.0), row("bn", 14.0, "warmed"), ours(12.0), *cifar],
            "imagenet": [row("bn", 64.0), ours(52.0), *photographs],
        }
        headline = [row("bn", 32.0), row("bn-warmed", 31.0), row("cotta", 29.0), ours(26.0), *hundred]
        names = {"bn-warmed": "bn-warmed", "vcotta": "vcotta-best"}
        headline = [one | {"name": names.get(one["method"], one["method"])} for one in headline]
        monkeypatch.setattr(page, "read_result", lambda study, _: files[study])
        monkeypatch.setattr(page, "headline_rows", lambda *_: headline)
        return page.results_text()

    return draw


def line(text: str, label: str) -> list[str]:
    """The cells of a method's row."""
    (found,) = [one for one in text.splitlines() if one.startswith(f"| {label} |")]
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


def test_each_method_has_a_cell_for_each_benchmark_and_start_empty_if_not_measured(drawn) -> None:
    text = drawn(cifar=[row("tca", 11.2, "warmed")])
    assert line(text, "BN") == ["20.0", "14.0", "32.0", "31.0", "64.0", ""]
    assert line(text, "TCA") == ["", "11.2", "", "", "", ""]
    assert line(text, "**VCoTTA**") == ["", "12.0", "", "26.0", "", "52.0"]
    assert line(text, "PALM") == [""] * 6


def test_cells_are_means_over_seeds(drawn) -> None:
    assert line(drawn(cifar=[row("bn", 21.0, seed=1)]), "BN")[0] == "20.5"


def test_rows_of_other_views_presets_and_numbers_of_images_do_not_count(drawn) -> None:
    others = [ours(90.0, views=VIEWS + 1), ours(90.0, preset="paper"), ours(90.0, images=None)]
    text = drawn(cifar=others, photographs=[ours(90.0, views=VIEWS + 1), ours(90.0, preset="paper")])
    assert line(text, "**VCoTTA**") == ["", "12.0", "", "26.0", "", "52.0"]


def test_it_is_compared_from_the_same_network_where_a_method_that_learns_was_run_from_it(drawn) -> None:
    plain = drawn(cifar=[row("tca", 5.0)])
    assert "on CIFAR10-C 12.0 %, 7.0 points more than TCA from the plain network" in plain
    both = drawn(cifar=[row("tca", 5.0), row("palm", 12.5, "warmed")])
    assert "on CIFAR10-C 12.0 %, 0.5 points less than PALM from the same network" in both
    assert "on CIFAR100-C 26.0 %, 3.0 points less than CoTTA from the plain network" in both
    assert "on ImageNet-C 52.0 %, 12.0 points less than BN from the plain network" in both


def test_a_best_method_that_the_table_leaves_out_is_named_all_the_same(drawn) -> None:
    assert "points less than cmf" in drawn(cifar=[row("cmf", 12.5, "warmed")]).lower()


def test_runs_on_fewer_photographs_are_not_mixed_with_those_on_more(drawn) -> None:
    assert line(drawn(photographs=[ours(70.0, images=100)]), "**VCoTTA**")[-1] == "52.0"
