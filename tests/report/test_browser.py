"""The page in a real browser: it opens, sorts, loads nothing, and is readable in the dark and on a phone."""

import json

import pytest

from vcotta.report.page import html_page

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys


@pytest.fixture
def page(browser, make_run, tmp_path):
    """Open the report of three methods, one with two seeds and notes, one with a name that looks like markup."""
    domains = {(name, 5): wrong for name, wrong in (("gaussian_noise", 1), ("fog", 4), ("jpeg_compression", 2))}
    runs = {
        "source": make_run("source", {domain: 3 * wrong for domain, wrong in domains.items()}, seconds=0.1),
        "<b>evil</b>": make_run("<script>alert(1)</script>", domains, nll=None),
        "one": make_run("vcotta", domains, alphas=[0.5, 0.4, None, 0.3, 0.2, 0.1], seconds=2.0, nll=0.1),
        "two": make_run("vcotta", dict.fromkeys(domains, 1), alphas=[0.5] * 6, seconds=1.0, nll=0.2),
    }
    for seed, run in enumerate(runs.values()):
        run.manifest["seed"] = seed
    path = tmp_path / "report.html"
    path.write_text(html_page(runs), encoding="utf-8")
    browser.get_log("browser"), browser.get_log("performance")
    screen(browser, 1200)
    browser.get(path.as_uri())
    return browser


def screen(browser, width, scheme="light"):
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})


def column(browser, place):
    script = "return [...document.querySelectorAll('.scores tbody tr')].map(r => r.cells[arguments[0]].dataset.value)"
    return [float(value.replace("inf", "Infinity")) for value in browser.execute_script(script, place)]


def sorted_by(browser):
    script = "return [...document.querySelectorAll('.scores th[aria-sort]')].map(h => [h.innerText, h.ariaSort])"
    return [(name.strip(), order) for name, order in browser.execute_script(script)]


def luminance(colour):
    parts = [value / 255 for value in colour]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(browser, selector):
    """Return the contrast of an element's text with what is painted behind it, all layers blended."""
    script = """
    const rgba = text => { const c = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
      c.fillStyle = text; c.fillRect(0, 0, 1, 1); const d = c.getImageData(0, 0, 1, 1).data;
      return [d[0], d[1], d[2], d[3] / 255]; };
    let element = document.querySelector(arguments[0]);
    const text = rgba(getComputedStyle(element).color), layers = [];
    for (; element; element = element.parentElement) layers.push(rgba(getComputedStyle(element).backgroundColor));
    return [text, layers.reverse()];
    """
    text, layers = browser.execute_script(script, selector)
    behind = (255, 255, 255)
    for *colour, alpha in layers:
        behind = [alpha * new + (1 - alpha) * old for new, old in zip(colour, behind, strict=True)]
    light, dark = sorted((luminance(text[:3]), luminance(behind)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_page_opens_without_an_error_and_requests_nothing_from_the_network(page):
    assert page.title.startswith("Adapting at test time")
    assert page.get_log("browser") == []
    events = [json.loads(line["message"])["message"] for line in page.get_log("performance")]
    requested = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in requested if not url.startswith("data:")] == [page.current_url]
    script = "return performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith('data:'))"
    assert page.execute_script(script) == []
    broken = "return [...document.images].filter(i => !(i.complete && i.naturalWidth)).length"
    assert page.execute_script("return document.images.length") > 1
    assert page.execute_script(broken) == 0


def test_a_click_on_a_heading_sorts_and_a_second_one_reverses_the_order(page):
    assert sorted_by(page) == [("Error %", "ascending")]
    button = page.find_element("xpath", "//th/button[text()='NLL']")
    button.click()
    assert sorted_by(page) == [("NLL", "ascending")]
    assert column(page, 2) == sorted(column(page, 2))
    button.click()
    assert sorted_by(page) == [("NLL", "descending")]
    assert column(page, 2) == sorted(column(page, 2), reverse=True)
    assert "Sorted by NLL, highest first" in page.execute_script("return document.getElementById('said').textContent")


def test_the_keyboard_reaches_the_skip_link_and_sorts(page):
    page.find_element("css selector", "body").send_keys(Keys.TAB)
    focused = page.switch_to.active_element
    assert focused.get_attribute("class") == "skip"
    assert focused.rect["y"] >= 0
    heading = page.find_element("xpath", "//th/button[text()='Seconds']")
    for key in (Keys.ENTER, Keys.SPACE):
        heading.send_keys(key)
        assert page.switch_to.active_element == heading
    assert sorted_by(page) == [("Seconds", "descending")]
    assert column(page, 6) == sorted(column(page, 6), reverse=True)
    style = page.execute_script(
        "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, s.outlineWidth]"
    )
    assert style == ["solid", "3px"]


def test_the_legend_hides_a_method_in_every_chart(page):
    def shown():
        script = (
            "return [...document.querySelectorAll('.s.m0')].filter(g => getComputedStyle(g).display != 'none').length"
        )
        return page.execute_script(script)

    everything = shown()
    assert everything > 3
    first, second = page.find_elements("css selector", ".legend button[data-method='0']")[:2]
    first.click()
    assert shown() == 0
    assert second.get_attribute("aria-pressed") == "false"
    second.send_keys(Keys.ENTER)
    assert shown() == everything


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(page, scheme):
    screen(page, 1200, scheme)
    background = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (luminance([int(v) for v in background[4:-1].split(",")]) < 0.1) == (scheme == "dark")
    for selector in ("h1", "p.soft", ".tile span", ".scores td", ".scores th button", ".interval", "figcaption", "pre"):
        assert contrast(page, selector) >= 4.5, selector
    deepest = "[...document.querySelectorAll('.heat td')].sort((a, b) => b.innerText - a.innerText)[0]"
    page.execute_script(f"{deepest}.id = 'deepest'")
    assert contrast(page, "#deepest") >= 4.5
    for place in range(3):
        assert contrast(page, f".s.m{place}") >= 3


@pytest.mark.parametrize("width", [320, 375, 768])
def test_a_narrow_screen_never_scrolls_the_page_sideways(page, width):
    screen(page, width)
    page.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert page.execute_script("return document.body.scrollWidth") <= width
    boxes = "return [...document.querySelectorAll('.scroll')].some(b => b.scrollWidth > b.clientWidth)"
    assert page.execute_script(boxes) or width == 768


def test_print_is_light_and_has_no_navigation(page):
    screen(page, 1200, "dark")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert page.execute_script("return getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert contrast(page, ".scores td") >= 7


def test_names_from_files_are_shown_as_text(page):
    assert "<script>alert(1)</script>" in page.find_element("css selector", ".scores").text
    assert page.execute_script("return document.scripts.length") == 1
