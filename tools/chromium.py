"""Chromium without a window, and a running service for it: for tests of the explorer and its pictures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service as Driver

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def missing_programs() -> list[str]:
    """Which of Chromium and its driver are not installed."""
    return [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]


@contextmanager
def browsing(width: int = 1280, height: int = 900, language: str = "en-GB") -> Iterator[webdriver.Chrome]:
    """A fresh browser, closed at the end; its console is kept for `get_log("browser")`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.add_argument(f"--lang={language}")
        options.add_experimental_option("prefs", {"intl.accept_languages": language})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        browser = webdriver.Chrome(options, Driver(shutil.which("chromedriver")))
        try:
            yield browser
        finally:
            browser.quit()


def set_screen(browser: webdriver.Chrome, width: int, height: int, dark: bool = False) -> None:
    """The size and the preferred colours of the screen; narrow ones are phones."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [colours]})


@dataclass(frozen=True)
class Served:
    """A running `coheat serve`."""

    url: str
    process: subprocess.Popen[str]

    def ask(self, path: str) -> dict[str, object]:
        """What the service itself answers, past the page."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            found: dict[str, object] = json.load(answer)
        return found

    def post(self, path: str, body: object, method: str = "POST") -> dict[str, object]:
        """The same for a question that has a body."""
        asked = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            found: dict[str, object] = json.load(answer)
        return found


@contextmanager
def serving(run: Path | Sequence[str], state: Path) -> Iterator[Served]:
    """A service of a run (or of several, as options) on a free port, once it is ready; ended in good order
    afterwards."""
    coheat = Path(sys.executable).with_name("coheat")
    runs = [str(run)] if isinstance(run, Path) else run
    state.mkdir(parents=True, exist_ok=True)
    with (state / "service.log").open("w") as log:
        process = subprocess.Popen(
            [coheat, "serve", *runs, "--port", "0", "--json", "--state", state],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    try:
        served = Served(_announced(process, state / "service.log"), process)
        _wait_until_ready(served)
        yield served
    finally:
        process.terminate()
        process.wait(timeout=60)
        assert process.stdout is not None
        process.stdout.close()


def _announced(process: subprocess.Popen[str], log: Path) -> str:
    """The address from the JSON that the command prints; it may be spread over lines."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        try:
            return str(json.loads(text)["url"])
        except json.JSONDecodeError:
            continue
    raise RuntimeError(f"the service did not start:\n{text}{log.read_text()}")


def _wait_until_ready(served: Served, tries: int = 300) -> None:
    for _ in range(tries):
        try:
            served.ask("/health/ready")
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise RuntimeError("the service did not become ready")
