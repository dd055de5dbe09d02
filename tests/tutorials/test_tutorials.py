"""The tutorials run, what they claim holds, and their pages show what the scripts print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tutorials import build

LARGEST_PICTURE = 60_000


def page_of(name: str, folder: Path = build.PAGES) -> str:
    return (folder / f"{name}.md").read_text(encoding="utf-8")


def without_outputs(page: str) -> str:
    """The prose and the code of a page."""
    page = re.sub(re.escape(build.OUTPUT) + r"\n.*?\n```\n\n", "", page, flags=re.S)
    page = re.sub(r"^!\[[^]]*\]\(pictures/[^)]*\)\n\n", "", page, flags=re.M)
    return page.rpartition("\n*Executed in")[0]


def outline(page: str) -> list[str]:
    """A page with its numbers masked and its spaces collapsed; the last line, about the machine, is left out."""
    page = page.rpartition("\n*Executed in")[0]
    page = re.sub(r"[-+]?\d[\d.]*(e[-+]?\d+)?", "#", page)
    return [re.sub(r"[\s─━]+", " ", line).strip() for line in page.splitlines()]


def test_every_script_is_in_the_index_in_order() -> None:
    scripts = {path.stem for path in build.SCRIPTS.glob("*.py")} - {"build"}
    assert scripts == set(build.NAMES)
    assert re.findall(r"\]\((\w+)\.md\)", page_of("index")) == list(build.NAMES)


@pytest.mark.parametrize("name", build.NAMES)
def test_prose_and_code_of_the_page_are_those_of_the_script(name) -> None:
    tutorial = build.read_script(build.SCRIPTS / f"{name}.py")
    texts = [f"```python\n{cell.text}\n```" if cell.is_code else cell.text for cell in tutorial.cells]
    texts = [re.sub(r"^!\[[^]]*\]\([^)]*\)\n\n", "", text, flags=re.M) for text in texts]
    expected = "\n\n".join([f"# {tutorial.title}", tutorial.summary, *texts])
    assert without_outputs(page_of(name)).partition("-->")[2].strip() == expected, "Run `make tutorials`."


@pytest.mark.parametrize("name", build.NAMES)
def test_the_page_takes_under_a_minute_and_its_pictures_are_small_and_described(name) -> None:
    page = page_of(name)
    assert int(re.search(r"\*Executed in (\d+) seconds", page)[1]) < 60
    pictures = re.findall(r"!\[([^]]+)\]\((pictures/[^)]+)\)", page)
    assert {path for _, path in pictures} == {f"pictures/{p.name}" for p in build.PAGES.glob(f"pictures/{name}-*.png")}
    assert all((build.PAGES / path).stat().st_size < LARGEST_PICTURE for _, path in pictures)


@pytest.mark.slow
@pytest.mark.parametrize("name", build.NAMES)
def test_the_tutorial_runs_and_prints_what_its_page_shows(name, tmp_path) -> None:
    if name == "serve":
        pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
    command = [sys.executable, str(build.SCRIPTS / "build.py"), name, "--out", str(tmp_path), "--here"]
    subprocess.run(command, env=os.environ | build.ENVIRONMENT, check=True, timeout=600)
    assert outline(page_of(name, tmp_path)) == outline(page_of(name))


def test_a_script_is_taken_apart_into_title_prose_and_code(tmp_path) -> None:
    script = tmp_path / "short.py"
    script.write_text(
        '"""A title.\n\nA summary of\ntwo lines.\n"""\n\n# %% [markdown]\n# Prose.\n#\n# More.\n\n# %%\nx = 1\n'
    )
    tutorial = build.read_script(script)
    assert (tutorial.title, tutorial.summary) == ("A title", "A summary of two lines.")
    assert [(cell.is_code, cell.text) for cell in tutorial.cells] == [(False, "Prose.\n\nMore."), (True, "x = 1")]


def test_a_claim_that_does_not_hold_fails_the_build(tmp_path, monkeypatch) -> None:
    (tmp_path / "wrong.py").write_text('"""Wrong.\n\nIt is.\n"""\n\n# %%\nprint("so far")\n\n# %%\nassert 2 < 1\n')
    monkeypatch.setattr(build, "SCRIPTS", tmp_path)
    with pytest.raises(AssertionError):
        build.write_page("wrong", tmp_path)
    assert not (tmp_path / "wrong.md").exists()


def test_a_failed_tutorial_keeps_its_pictures_and_shows_what_it_printed(tmp_path, monkeypatch, capfd) -> None:
    text = '"""Short.\n\nIt is.\n"""\n\n# %%\nfrom PIL import Image\nImage.new("L", (4, 4), {grey}).save("a.png")\n'
    picture = "\n# %% [markdown]\n# ![A colour](a.png)\n"
    monkeypatch.setattr(build, "SCRIPTS", tmp_path / "tutorials")
    build.SCRIPTS.mkdir()
    script = build.SCRIPTS / "short.py"
    script.write_text(text.format(grey=10) + picture)
    build.write_page("short", tmp_path)
    files = {path: path.read_bytes() for path in (tmp_path / "short.md", tmp_path / "pictures" / "short-1.png")}
    failing = '\n# %%\nimport os\nos.write(1, b"a hint")\nassert 2 < 1\n'
    script.write_text(text.format(grey=200) + picture + failing)
    with pytest.raises(AssertionError):
        build.write_page("short", tmp_path)
    assert {path: path.read_bytes() for path in files} == files
    assert "a hint" in capfd.readouterr().err
    script.write_text(text.format(grey=200))
    build.write_page("short", tmp_path)
    assert not list((tmp_path / "pictures").iterdir())
