"""Take the explorer's pictures for the documentation, on a made-up shop: `python tools/screenshots.py`.

It trains a small model, serves it, and looks at it with Chromium as a person would, in light and dark,
on a desk and on a phone. The pictures go to docs/images/explorer-*.png.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from chromium import browsing, missing_programs, serving, set_screen
from named_shop import train_named_shop
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

PERSON, BUNDLE = "Ada 1", "B-0003"
NEW_ITEMS = ("tent", "moka pot", "enamel mug", "burr grinder")
NEW_NAME = "Coffee outdoors"
DESK, PHONE = (1280, 860), (390, 844)
PICTURES = Path(__file__).resolve().parents[1] / "docs" / "images"


class Photographer:
    """Opens a view, waits until it is complete, and takes its picture."""

    def __init__(self, browser: Chrome, url: str, place: Path):
        self.browser, self.url, self.place = browser, url, place

    def open(self, view: str) -> None:
        self.browser.get("about:blank")
        self.browser.get(f"{self.url}/#/{view}")

    def wait_for(self, selector: str) -> None:
        WebDriverWait(self.browser, 60).until(
            lambda browser: (
                browser.find_elements(By.CSS_SELECTOR, selector)
                and not browser.find_elements(By.CSS_SELECTOR, ".skeleton, [aria-busy]")
            )
        )
        time.sleep(0.4)  # colours fade in

    def take(self, name: str) -> None:
        path = self.place / f"explorer-{name}.png"
        self.browser.save_screenshot(str(path))
        print(path)

    def people(self, name: str) -> None:
        self.open(f"people/{quote(PERSON)}")
        self.wait_for("#list .card")
        self.take(name)

    def compose(self, name: str) -> None:
        self.open("compose")
        box = self.browser.find_element(By.ID, "item-search")
        for count, item in enumerate(NEW_ITEMS, start=1):
            box.send_keys(item, Keys.ENTER)
            self.wait_for(f"#basket li:nth-child({count})")
        self.browser.find_element(By.ID, "bundle-name").send_keys(NEW_NAME)
        self.wait_for("#audience .rows")
        self.take(name)

    def publish(self, name: str) -> None:
        self.browser.find_element(By.ID, "publish").click()
        self.wait_for("#published .place")
        self.take(name)

    def bundle(self, name: str) -> None:
        self.open(f"bundles/{BUNDLE}")
        self.wait_for(".bundle-page")
        self.take(name)

    def model(self, name: str) -> None:
        self.open("model")
        self.wait_for("#model-content figure")
        self.take(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURES, help="where the pictures go")
    place: Path = parser.parse_args().out
    if missing_programs():
        missing = " ".join(missing_programs())
        parser.error(f"not installed: {missing}; on Debian: apt install chromium chromium-driver")
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        run = train_named_shop(Path(scratch))
        with serving(run, Path(scratch) / "state") as served, browsing(*DESK) as browser:
            photographer = Photographer(browser, served.url, place)
            set_screen(browser, *DESK)
            photographer.people("people")
            photographer.bundle("bundle")
            photographer.model("model")
            photographer.compose("compose")
            set_screen(browser, *DESK, dark=True)
            photographer.people("people-dark")
            photographer.compose("compose-dark")
            photographer.publish("published-dark")
            set_screen(browser, *PHONE)
            photographer.people("phone")


if __name__ == "__main__":
    main()
