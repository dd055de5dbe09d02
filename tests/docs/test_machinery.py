"""Links of the repository lead to the same places in the site; generated pages show every command and setting."""

from __future__ import annotations

import pytest

from docs.machinery.commands import commands, commands_text
from docs.machinery.links import ROOT, from_elsewhere, home_of, relinked, summary_on_top, uri_of

STUDY = ROOT / "studies" / "guards" / "page.md"


@pytest.mark.parametrize(
    ("page", "link", "leads_to"),
    [
        ("docs/results/index.md", "../../studies/guards/page.md#x", "../studies/guards.md#x"),
        ("docs/results/index.md", "../../benchmarks/page.md", "../studies/speed.md"),
        ("docs/results/index.md", "methods.md", "methods.md"),
        ("studies/guards/page.md", "../../docs/results/index.md", "../results/index.md"),
        ("studies/guards/page.md", "../../README.md", "../index.md"),
        ("studies/guards/page.md", "../headline/page.md#where-it-stands", "headline.md#where-it-stands"),
        ("studies/guards/page.md", "../equal-terms/page.md", "equal-terms.md"),
        ("studies/guards/page.md", "https://example.org/page.md", "https://example.org/page.md"),
        ("studies/guards/page.md", "missing.md", "missing.md"),
    ],
)
def test_a_link_leads_to_the_same_page_in_the_site(page, link, leads_to) -> None:
    text, copied = relinked(f"See [this]({link}).", uri_of(ROOT / page), ROOT / page)
    assert text == f"See [this]({leads_to})."
    assert not copied


def test_a_file_that_is_no_page_is_copied_into_the_site() -> None:
    text, copied = relinked("![](results/guards.json)", "studies/guards.md", STUDY)
    assert text == "![](../files/studies/guards/results/guards.json)"
    assert copied == {"files/studies/guards/results/guards.json": STUDY.parent / "results" / "guards.json"}


def test_an_included_file_keeps_its_own_links() -> None:
    text, _ = relinked(
        '[a](index.md)\n\n--8<-- "studies/README.md"\n', "results/methods.md", ROOT / "docs/results/methods.md"
    )
    assert "[a](index.md)" in text
    assert "](../studies/headline.md)" in text


def test_a_page_is_written_where_it_is_found() -> None:
    assert from_elsewhere()["studies/guards.md"] == STUDY == home_of("studies/guards.md")
    assert home_of("results/index.md") == ROOT / "docs" / "results" / "index.md"
    assert all(uri_of(path) == uri for uri, path in from_elsewhere().items())


def test_a_study_shows_its_three_lines_as_a_box() -> None:
    shown = summary_on_top("# Title\n\nOne.\nTwo.\nThree.\n\nMore.\n")
    assert shown == '# Title\n\n!!! abstract "In short"\n\n    - One.\n    - Two.\n    - Three.\n\nMore.\n'


def test_every_command_and_option_is_in_the_reference() -> None:
    text = commands_text()
    for name, command in commands():
        assert f"\n## {name}\n" in text
        for part in command.params:
            assert part.param_type_name == "argument" or part.opts[0] in text, part.name


def test_every_setting_is_in_the_reference_with_its_meaning() -> None:
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    from docs.machinery.settings import settings_text

    rows = [line.split(" | ") for line in settings_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row[-1].strip(" |") == ""] == []


def test_formulas_of_docstrings_become_mathml() -> None:
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    pytest.importorskip("latex2mathml", reason="the extra docs is not installed")
    from docs.machinery.docstrings import rewritten
    from docs.machinery.formulas import with_formulas

    assert rewritten("Sum.\n\n.. math::\n\n    a\n    + b\n\nExample:\n    x") == (
        "Sum.\n\n:display-math:`a + b`\n\nExamples:\n    x"
    )
    assert with_formulas("<p>:math:<code>x_1</code></p>").startswith("<p><math")
