"""What mkdocs does beyond reading ``docs/``: the studies' pages, links into the repository, generated reference.

    make docs

A page stays where it is written and is written once. The lab notebooks ``studies/NAME/page.md`` become pages of the
site; links between ``docs/`` and the rest of the repository, which work where the repository is hosted, are pointed
to the site's own pages or to copies of the files. ``<!-- generated: NAME -->`` is replaced by what the code says.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "src")) if path not in sys.path]

from docs.machinery.commands import commands_text  # noqa: E402
from docs.machinery.formulas import with_formulas  # noqa: E402
from docs.machinery.links import from_elsewhere, home_of, relinked, summary_on_top  # noqa: E402
from docs.machinery.settings import settings_text  # noqa: E402

GENERATED = {"commands": commands_text, "settings": settings_text}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are written outside of ``docs/``."""
    for uri, path in from_elsewhere().items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put generated and included text in its place and point links out of ``docs/`` to where they lead in the site."""
    uri = page.file.src_uri
    if re.fullmatch(r"studies/[\w-]+\.md", uri) and uri != "studies/index.md":
        markdown = summary_on_top(markdown)
    markdown, copied = relinked(markdown, uri, home_of(uri))
    for name, path in copied.items():
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return re.sub(r"<!-- generated: (\w+) -->", lambda found: GENERATED[found[1]](), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Show formulas."""
    return with_formulas(html)
