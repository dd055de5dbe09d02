"""Every number of the pages comes from a result file, and every link of theirs leads somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from studies.files import ROOT, STUDIES, keep_runs, portable
from studies.markdown import listed, table
from studies.update import PAGES, tables, updated


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_number_comes_from_a_result_file(page) -> None:
    assert updated(page.read_text(), tables()) == page.read_text()


def test_every_table_is_shown_on_a_page() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in tables() if f"<!-- {name}:begin -->" not in text] == []


def test_every_study_has_a_script_a_page_with_a_summary_and_results() -> None:
    for page in STUDIES.glob("*/page.md"):
        folder = page.parent
        assert list(folder.glob("run*.py")), folder
        assert any((folder / "results").glob("*")) or "is not measured yet" in page.read_text(), folder
        title, empty, *summary, rest = page.read_text().split("\n")[:6]
        assert title.startswith("# "), page
        assert empty == rest == "", page
        assert all(summary), page


def test_a_marker_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected a table missing"):
        updated("<!-- missing:begin -->\n<!-- missing:end -->", {})


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_a_kept_run_has_no_folder_of_its_machine_and_the_name_of_its_variant(tmp_path) -> None:
    spec = {"method": "rmt", "weights": "/data/net.pt", "corrupted": None}
    manifest = {"method": "rmt", "command": ["/opt/bin/vcotta", "run"], "platform": "there", "spec": spec}
    for name in ("first", "rmt-cold"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
        (tmp_path / name / "summary.json").write_text("{}")
    keep_runs([tmp_path / "first", tmp_path / "rmt-cold"], tmp_path / "kept")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["rmt", "rmt-cold"]
    kept = json.loads((tmp_path / "kept" / "rmt" / "manifest.json").read_text())
    assert kept == {"method": "rmt", "command": ["vcotta", "run"], "spec": spec | {"weights": "net.pt"}}


def test_a_table_aligns_words_left_and_numbers_right() -> None:
    assert table(["Method", "Error %"], [("bn", 20.1)]) == "| Method | Error % |\n|:--|--:|\n| bn | 20.1 |"


@pytest.mark.parametrize(("words", "text"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")])
def test_words_are_listed_as_in_a_sentence(words, text) -> None:
    assert listed(words) == text


def test_folders_of_the_machine_are_not_kept() -> None:
    spec = {"weights": "/home/me/w.pt", "corrupted": None, "data": "folder:/home/me/pets", "source": None}
    stopped = {"batch": 3, "command": ["run.py", "--work", "/home/me/work"]}
    kept = portable({"command": ["vcotta"], "platform": "x", "spec": spec, "resumed": [stopped]})
    assert kept["resumed"] == [{"batch": 3, "command": ["run.py", "--work", "work"]}]
    assert kept["spec"] == {"weights": "w.pt", "corrupted": None, "data": "folder:pets", "source": None}


def test_tables_of_studies_mark_reconstructions_with_a_footnote() -> None:
    drawn = table(["Error %", "swa", "bn"], [("dss", 1, 2), ("fog", "dss", 3)])
    assert drawn.startswith("| Error % | swa \N{DAGGER} | bn |")
    assert "| dss \N{DAGGER} | 1 | 2 |\n| fog | dss | 3 |\n\n\N{DAGGER} A reconstruction" in drawn
    assert table(["", "bn"], [("fog", 1)]) == "|  | bn |\n|:--|--:|\n| fog | 1 |"


def test_every_method_of_the_papers_tables_has_a_row_without_a_gap() -> None:
    rows = [line for line in tables()["seed-systems"]().splitlines() if line.startswith("| `")]
    assert len(rows) >= 20
    assert all(cell.strip() not in ("", "-") for line in rows for cell in line.strip("|").split("|"))
