"""The site builds without a warning, leads nowhere wrong, asks no other host, and works in a real browser."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow
for needed in ("mkdocs", "material", "mkdocstrings_handlers.python", "latex2mathml"):
    pytest.importorskip(needed, reason="the extra docs is not installed")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build the site as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


class Read(HTMLParser):
    """Collects what a page loads, where it links to, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.classes: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        self.classes |= set((found.get("class") or "").split())
        if tag == "a":
            self.links += [found["href"]] if found.get("href") else []
        else:
            self.loads += [value for key in ("src", "href", "srcset", "data", "poster") if (value := found.get(key))]


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Read]:
    return {path: Read(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def test_no_page_loads_anything_from_another_host(site, pages) -> None:
    for path, page in pages.items():
        assert [link for link in page.loads if urlsplit(link).netloc] == [], path
        assert "mermaid" not in page.classes, path  # the theme would fetch a script to draw it
    for path in site.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import\s)\s*[\"']?([^\"')\s]+)", path.read_text(encoding="utf-8"))
        assert [link for link in found if urlsplit(link).netloc] == [], path


def test_every_link_and_anchor_of_the_built_pages_is_there(site, pages) -> None:
    wrong = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = target.is_file() and (not parts.fragment or unquote(parts.fragment) in anchors(pages, target))
            wrong += [] if there else [f"{path.relative_to(site)}: {link}"]
    assert wrong == []


def anchors(pages: dict[Path, Read], target: Path) -> set[str]:
    return pages[target].anchors | {"__tabbed"} if target in pages else set()


def test_no_page_shows_raw_markup_of_docstrings(pages) -> None:
    for path in pages:
        text = re.sub(r"<[^>]+>", "", path.read_text(encoding="utf-8"))
        assert not re.search(r":math:|:display-math:|\.\. math::|<!-- generated", text), path


@pytest.fixture(scope="module")
def served(site) -> str:
    """Serve the site on this machine; yields its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def opened(browser, served):
    """The first page in a real browser of a desktop's size, with empty logs."""
    browser.get("about:blank")
    browser.get_log("browser"), browser.get_log("performance")
    screen(browser, 1280)
    browser.get(f"{served}/index.html")
    return browser


def screen(browser, width: int, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})


def until(browser, script: str, *arguments: object):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 20).until(lambda _: browser.execute_script(script, *arguments))


def check_logs(browser, served: str) -> None:
    """The browser reports no error, and has asked nobody but us."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert [url for url in asked if not url.startswith((served, "data:", "blob:", "about:"))] == []
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def test_tabs_lead_through_the_site(opened, served) -> None:
    count = len(opened.find_elements("css selector", ".md-tabs__link"))
    assert count >= 8
    for place in range(count):
        tab = opened.find_elements("css selector", ".md-tabs__link")[place]
        name = tab.text
        tab.click()
        until(opened, "return document.readyState === 'complete' && document.querySelector('h1')")
        active = opened.find_element("css selector", ".md-tabs__item--active")
        assert active.text == name
    check_logs(opened, served)


def test_search_finds_the_guards(opened, served) -> None:
    box = until(opened, "return document.querySelector('.md-search__input')")
    opened.execute_script("arguments[0].focus()", box)
    box.send_keys("guard")
    until(opened, "return document.querySelectorAll('.md-search-result__item').length > 2")
    links = opened.execute_script("return [...document.querySelectorAll('.md-search-result__link')].map(a => a.href)")
    assert any("how-to/guards" in link for link in links)
    check_logs(opened, served)


def test_copying_a_console_leaves_the_prompt_out(opened, served) -> None:
    opened.get(f"{served}/how-to/data-and-networks.html")
    script = """const code = document.querySelector('code .gp').closest('code');
        const shown = code.innerText; code.setAttribute('data-md-copying', ''); return [shown, code.innerText]"""
    shown, copied = opened.execute_script(script)
    assert shown.startswith("$ vcotta")
    assert copied.startswith("vcotta")


def background(browser) -> list[int]:
    script = "return getComputedStyle(document.body).backgroundColor"
    return [int(number) for number in re.findall(r"\d+", browser.execute_script(script))[:3]]


def test_dark_mode_follows_the_system_and_the_switch(opened, served) -> None:
    assert min(background(opened)) > 200
    opened.find_element("css selector", "label[title='Switch to dark mode']").click()
    until(opened, "return document.body.getAttribute('data-md-color-scheme') === 'slate'")
    assert max(background(opened)) < 60
    opened.refresh()
    assert max(background(opened)) < 60  # it is remembered
    opened.execute_script("localStorage.clear()")
    screen(opened, 1280, "dark")
    opened.get(f"{served}/results/index.html")
    assert max(background(opened)) < 60
    check_logs(opened, served)


@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_fits_the_screen_and_reports_no_error(width, opened, served, site, pages) -> None:
    screen(opened, width)
    wide = []
    for path in pages:
        opened.get(f"{served}/{path.relative_to(site).as_posix()}")
        extent = opened.execute_script("return document.scrollingElement.scrollWidth")
        wide += [f"{path.relative_to(site)}: {extent}"] if extent > width else []
    assert wide == []
    check_logs(opened, served)
