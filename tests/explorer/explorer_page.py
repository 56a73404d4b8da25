"""What a person does and sees in the explorer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE = 120


class Page:
    """What a person does and sees."""

    def __init__(self, browser: Chrome, url: str):
        self.browser, self.url = browser, url

    def open(self, place: str = "") -> None:
        self.browser.get("about:blank")
        self.browser.get(f"{self.url}/{place}")

    def one(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
        found: list[str] = self.browser.execute_script(script, selector)
        return found

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        wait = WebDriverWait(
            self.browser, PATIENCE, poll_frequency=0.05, ignored_exceptions=[StaleElementReferenceException]
        )
        return wait.until(lambda _: condition(), f"waited in vain for {what}")

    def wait_for_text(self, selector: str, pattern: str) -> str:
        found = self.until(
            lambda: next((t for t in self.texts(selector) if re.search(pattern, t)), None),
            f"{pattern!r} in {selector}",
        )
        return str(found)

    def type_into(self, selector: str, text: str) -> None:
        """Type; what no key of a keyboard gives, such as an emoji, is inserted as its panel would do it."""
        box = self.one(selector)
        for part in filter(None, re.split("([\U00010000-\U0010ffff]+)", text)):
            if ord(part[0]) < 0x10000:
                box.send_keys(part)
            else:
                self.browser.execute_script("arguments[0].focus()", box)
                self.browser.execute_cdp_cmd("Input.insertText", {"text": part})

    def search(self, box: str, text: str, wanted: str) -> None:
        """Type into a search box and click the entry that reads `wanted`."""
        self.type_into(f"#{box}-search", text)
        entry = f"#{box}-options [role=option]"
        self.until(lambda: wanted in self.texts(f"{entry} .option-name"), f"{wanted!r} among those found")
        position = self.texts(f"{entry} .option-name").index(wanted)
        self.all(entry)[position].click()

    def show_list_of(self, user: str) -> None:
        self.open(f"#/people/{quote(user, safe='')}")
        self.wait_for_list()

    def wait_for_list(self) -> None:
        self.until(lambda: self.all("#list .card") and not self.all("#list[aria-busy]"), "a list")

    def compose(self, items: list[str], name: str) -> None:
        self.open("#/compose")
        for item in items:
            self.search("item", item, item)
        self.type_into("#bundle-name", name)

    def hacked(self) -> Any:
        return self.browser.execute_script("return window.hacked ?? null")

    def complaints(self) -> list[str]:
        """What the browser complained of, refusals by the service aside: those are part of the talk."""
        log: list[dict[str, Any]] = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        return [str(row["message"]) for row in log if "Failed to load resource" not in str(row["message"])]
