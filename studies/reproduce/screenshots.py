"""Take the pictures of the report's page that docs/how-to/reproduce.md shows, with a real Chromium.

    python -m studies.reproduce.screenshots FOLDER/main-digits/report.html

Needs selenium (extra `test`), Debian's `chromium` and `chromium-driver`.
"""

from __future__ import annotations

import argparse
import base64
import io
import shutil
from pathlib import Path

from PIL import Image
from selenium import webdriver

from studies.files import ROOT

PICTURES = ROOT / "docs" / "pictures" / "report"
SHOTS = {  # name: width, height, colour scheme, the section it begins at
    "light": (1100, 1240, "light", None),
    "dark": (1100, 1240, "dark", "stream"),
    "phone": (390, 1240, "light", None),
}


def take(page: Path) -> None:
    """Write a picture for each of `SHOTS`."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    PICTURES.mkdir(parents=True, exist_ok=True)
    with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as browser:
        for name, (width, height, scheme, section) in SHOTS.items():
            screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            features.append({"name": "prefers-reduced-motion", "value": "reduce"})
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            browser.get(page.absolute().as_uri())
            if section:
                browser.execute_script("document.getElementById(arguments[0]).scrollIntoView()", section)
            shot = base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", {})["data"])
            with Image.open(io.BytesIO(shot)) as drawn:
                drawn.convert("RGB").quantize(200, dither=Image.Dither.NONE).save(
                    PICTURES / f"{name}.png", optimize=True
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="report.html of an experiment, or of `vcotta report`")
    take(parser.parse_args().page)
