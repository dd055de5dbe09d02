"""The status page in a real browser, on a real server."""

from __future__ import annotations

import json
import threading
import time

import pytest

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

import torch
from selenium.webdriver.support.ui import WebDriverWait

from vcotta.serve.app import create_app
from vcotta.serve.service import Service

from .noting import FEW, MANY, note_steps


@pytest.fixture
def page(browser, bundle):
    """A service behind a real server, and the browser on its status page."""
    with Service(bundle, wait=0.0) as service:
        server = uvicorn.Server(uvicorn.Config(create_app(service), port=0, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        browser.get_log("browser"), browser.get_log("performance")
        browser.get(f"http://127.0.0.1:{port}/")
        browser.service_under_test = service
        yield browser
        browser.get("about:blank")
        server.should_exit = True
        thread.join()


def text(browser, place: str) -> str:
    return browser.execute_script("return document.getElementById(arguments[0]).textContent", place)


def until(browser, condition) -> None:
    WebDriverWait(browser, 60, 0.1).until(condition)


def test_the_page_shows_new_batches_without_errors_or_foreign_requests(page, images) -> None:
    until(page, lambda b: "No batch yet" in text(b, "message"))
    assert text(page, "about").startswith("tent on wrn-10-1, 4 classes")
    service = page.service_under_test
    real = service.engine.adapter.predict_and_adapt

    def noting(batch):
        service.engine.adapter.note(alpha=0.25, guard={"action": "<b>pulled back</b>"} if len(batch) == 5 else {})
        return real(batch)

    service.engine.adapter.predict_and_adapt = noting
    for count in (6, 6, 5):
        service.predict(images(count)).result(60)
    until(page, lambda b: text(b, "tile-steps") == "3")
    assert text(page, "tile-images") == "17"
    assert text(page, "now-alpha") == "0.25"
    for key in ("entropy", "alpha", "parameter_distance", "seconds"):
        assert page.execute_script(f"return document.getElementById('line-{key}').points.length") >= 2
        assert "now" in page.execute_script(f"return document.getElementById('chart-{key}').getAttribute('aria-label')")
    rows = page.find_elements("css selector", "#events tr")
    assert [row.text.split()[0] for row in rows] == ["3"]
    assert "<b>pulled back</b>" in rows[0].text
    assert page.get_log("browser") == []
    events = [json.loads(line["message"])["message"] for line in page.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert all(url.startswith((page.current_url, "data:")) for url in asked)


def test_the_page_shows_that_batches_hold_few_classes_and_lists_that_once(page, images) -> None:
    until(page, lambda b: "No batch yet" in text(b, "message"))
    service, hint = page.service_under_test, page.find_element("id", "few-classes")
    assert not hint.is_displayed()
    note_steps(service.engine, [FEW, FEW, MANY, *[FEW] * 2])
    for _ in range(5):
        service.predict(images(6)).result(60)
    until(page, lambda b: text(b, "tile-steps") == "5")
    assert hint.is_displayed()
    assert (text(page, "now-effective_classes"), text(page, "now-batch_share")) == ("1.25", "0.05")
    assert (text(page, "tile-guarded"), text(page, "tile-updates")) == ("0", "5")
    rows = page.find_elements("css selector", "#events tr")
    assert [(row.text.split()[0], row.text.endswith("diversity: note")) for row in rows] == [("4", True), ("1", True)]


@pytest.mark.slow
def test_the_page_can_be_paused_by_keyboard_and_has_a_dark_mode_and_fits_a_phone(page, images) -> None:
    until(page, lambda b: "No batch yet" in text(b, "message"))
    button = page.find_element("id", "pause")
    button.send_keys(" ")
    assert (button.text, button.get_attribute("aria-pressed")) == ("Continue", "true")
    page.service_under_test.predict(images(6)).result(60)
    time.sleep(1.5)
    assert text(page, "tile-steps") == "0"
    button.send_keys(" ")
    until(page, lambda b: text(b, "tile-steps") == "1")
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(15, 18, 22)"
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 320, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    assert page.execute_script("return document.documentElement.scrollWidth") <= 320
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert page.get_log("browser") == []


@pytest.mark.slow
def test_the_page_says_when_the_server_does_not_answer(page) -> None:
    until(page, lambda b: "No batch yet" in text(b, "message"))
    page.execute_cdp_cmd("Network.enable", {})
    page.execute_cdp_cmd(
        "Network.emulateNetworkConditions",
        {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
    )
    until(page, lambda b: "does not answer" in text(b, "message"))
    page.execute_cdp_cmd(
        "Network.emulateNetworkConditions",
        {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1},
    )
    until(page, lambda b: "No batch yet" in text(b, "message"))


def fleet(service, images) -> None:
    """Some streams, of which one is flagged and one pinned."""
    for number in range(6):
        for seed in range(3):
            service.predict(images(6, seed), stream=f"camera-{number}").result(60)
    sure = torch.eye(4).repeat(30, 1)
    service.find("camera-4").comparison.see(sure, sure.roll(1, 0))
    service.pin("camera-5", True).result(60)


def test_the_page_lists_streams_the_flagged_and_pinned_ones_first_and_shows_the_chosen_one(page, images) -> None:
    service = page.service_under_test
    fleet(service, images)
    until(page, lambda b: len(b.find_elements("css selector", "#stream-rows tr")) == 7)
    rows = [row.text for row in page.find_elements("css selector", "#stream-rows tr")]
    assert rows[0].startswith("camera-4 worse: contradiction 18 ")
    assert rows[1].startswith("camera-5 pinned to the source 18 ")
    assert [row.split()[0] for row in rows[2:]] == ["camera-0", "camera-1", "camera-2", "camera-3", "default"]
    assert "1 stream seems to do worse than the source: camera-4." in text(page, "flagged")
    assert text(page, "memory").startswith("7 of at most 64 streams, 7 in memory: ")
    page.execute_script(
        "document.querySelector('a[href=\"#stream=camera-2\"]').click()"
    )  # rows are replaced each second
    until(page, lambda b: text(b, "chosen") == "camera-2" and text(b, "tile-steps") == "3")
    assert page.execute_script("return document.getElementById('line-entropy').points.length") >= 2
    service.delete("camera-2").result(60)
    until(page, lambda b: text(b, "chosen") == "default" and text(b, "tile-steps") == "0")
    assert [line for line in page.get_log("browser") if "404" not in line["message"]] == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_many_streams_is_not_wider_than_the_window(page, images, width, tmp_path) -> None:
    fleet(page.service_under_test, images)
    until(page, lambda b: len(b.find_elements("css selector", "#stream-rows tr")) == 7)
    size = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    page.save_screenshot(str(tmp_path / f"streams-{width}.png"))
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
