"""A real Chromium without a network: Debian's, headless, driven by Debian's driver."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

#: Nothing has an address in there but this machine itself.
NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
ARGUMENTS = ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", NO_NETWORK)
#: Starting a browser on a busy machine takes long.
PATIENCE_S = 120


def program(name: str) -> str:
    """Its path. Where it is not, the test is skipped: `make test` has it installed before."""
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not here: python3 -m tools.bootstrap browser")
    return found


@contextlib.contextmanager
def chromium(width: int = 1400, height: int = 1000) -> Iterator[Browser]:
    """A browser until the body ends."""
    paths = program("chromium"), program("chromedriver")
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not here: make setup-dev")
    options = selenium.ChromeOptions()
    options.binary_location = paths[0]
    # Root cannot have Chromium's sandbox; the pages are our own.
    for argument in (*ARGUMENTS, f"--window-size={width},{height}", *["--no-sandbox"] * (os.geteuid() == 0)):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(prefix="temper-chromium-") as profile:
        options.add_argument(f"--user-data-dir={profile}")
        service = selenium.ChromeService(paths[1])
        driver = selenium.Chrome(options=options, service=service)
        try:
            driver.set_page_load_timeout(PATIENCE_S)
            driver.set_script_timeout(PATIENCE_S)
            yield Browser(driver)
        finally:
            driver.quit()


class Browser:
    """A window of it."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver
        self.prefer("light")

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file anew."""
        from selenium.webdriver.support.ui import WebDriverWait

        self.driver.get("about:blank")
        self.driver.get(page.as_uri() + fragment)
        # On a busy machine the driver came back with half of the page read.
        WebDriverWait(self.driver, PATIENCE_S).until(
            lambda _: (
                self.ask("document.URL.startsWith(arguments[0]) && document.readyState", page.as_uri())
                == "complete"
            )
        )

    def ask(self, expression: str, *arguments: Any) -> Any:
        """What an expression of JavaScript is on the page."""
        return self.driver.execute_script(f"return {expression}", *arguments)

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def errors(self) -> list[str]:
        """What the console said since the last call."""
        found = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in found]

    def requests(self) -> list[str]:
        """The addresses that pages asked for since the last call, but for what their policy stopped."""
        log = self.driver.get_log("performance")  # type: ignore[no-untyped-call]
        messages = [json.loads(entry["message"])["message"] for entry in log]
        stopped = {
            one["params"]["requestId"]
            for one in messages
            if one["method"] == "Network.loadingFailed" and one["params"].get("blockedReason") == "csp"
        }
        sent = [one["params"] for one in messages if one["method"] == "Network.requestWillBeSent"]
        # On a busy machine the page that the browser begins with is still asking for its own parts.
        asked = [one for one in sent if not one["documentURL"].startswith("chrome:")]
        urls = [one["request"]["url"] for one in asked if one["requestId"] not in stopped]
        return [url for url in urls if not url.startswith(("data:", "about:"))]

    def prefer(self, scheme: str, media: str = "") -> None:
        """Light or dark, on a screen or on paper."""
        # What moves is not where a click is aimed at.
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.command("Emulation.setEmulatedMedia", media=media, features=features)

    def width(self, pixels: int) -> None:
        """Show pages in a window of another width, which no scroll bar makes narrower."""
        self.command("Emulation.setScrollbarsHidden", hidden=True)
        self.command(
            "Emulation.setDeviceMetricsOverride", width=pixels, height=900, deviceScaleFactor=1, mobile=False
        )

    def picture(self, top: int, height: int, width: int = 1400) -> bytes:
        """A part of the page as PNG."""
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        taken = self.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(taken["data"])
