"""Where a file of the repository is found in the site, and links that lead there."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "studies/README.md": "studies/index.md",
    "benchmarks/page.md": "studies/speed.md",
}
"""Pages outside of docs/ that have another name in the site; the first two are shown by pages of docs/."""

INCLUDE = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def from_elsewhere() -> dict[str, Path]:
    """Return the pages of the site that are written outside of docs/, by their place in the site."""
    found = {PAGES[name]: ROOT / name for name in ("studies/README.md", "benchmarks/page.md")}
    return found | {uri_of(path): path for path in sorted(ROOT.glob("studies/*/page.md"))}


def home_of(uri: str) -> Path:
    """Return the file that a page of the site is written in."""
    return from_elsewhere().get(uri, DOCS / uri)


def uri_of(path: Path) -> str:
    """Return the place in the site of a file of the repository."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    if study := re.fullmatch(r"studies/([\w-]+)/page\.md", name):
        return f"studies/{study[1]}.md"
    return PAGES.get(name, f"files/{name}{'.txt' * (path.suffix == '.md')}")


def relinked(text: str, uri: str, home: Path) -> tuple[str, dict[str, Path]]:
    """Return a page whose links to files of the repository lead to their place in the site.

    A line ``--8<-- "FILE"`` becomes that file of the repository, with the file's own links.

    Args:
        text: The page, written in ``home``.
        uri: Its place in the site.
        home: The file that its links are relative to.

    Returns:
        The page, and the files that must be copied into the site for it, by their place there.
    """
    copied: dict[str, Path] = {}

    def link(found: re.Match[str], start: Path) -> str:
        target = (start.parent / found[1]).resolve()
        if not target.is_file() or not target.is_relative_to(ROOT):
            return found[0]  # another host's, or wrong: mkdocs says so
        place = uri_of(target)
        if not target.is_relative_to(DOCS) and not place.endswith(".md"):
            copied[place] = target
        return f"]({os.path.relpath(place, Path(uri).parent)}{found[2] or ''})"

    def include(found: re.Match[str]) -> str:
        path = ROOT / found[1]
        return LINK.sub(lambda one: link(one, path), path.read_text(encoding="utf-8"))

    parts, end = [], 0
    for included in INCLUDE.finditer(text):
        parts += [LINK.sub(lambda one: link(one, home), text[end : included.start()]), include(included)]
        end = included.end()
    parts.append(LINK.sub(lambda one: link(one, home), text[end:]))
    return "".join(parts), copied


def summary_on_top(page: str) -> str:
    """Return a study's page with the three lines below its title as a box of three points."""
    title, _, *rest = page.split("\n")
    lines = rest[: rest.index("")] if "" in rest else rest
    box = ['!!! abstract "In short"', "", *(f"    - {line}" for line in lines if line)]
    return "\n".join([title, "", *box, *rest[len(lines) :]])
