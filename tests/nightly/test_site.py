"""The documentation as a site: it is built strictly, and a browser without a network finds pages in it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.nightly.__main__ import ROOT
from tests.unit.pages.browser import PATIENCE_S, chromium

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.pages.browser import Browser

QUERY = "[data-md-component=search-query]"
FOUND = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def search(browser: Browser, word: str, until: str) -> list[str]:
    """Type a word, wait until an expression is true, and return the addresses that were found."""
    query = browser.driver.find_element(By.CSS_SELECTOR, QUERY)
    query.click()
    query.clear()
    query.send_keys(word)
    WebDriverWait(browser.driver, PATIENCE_S).until(lambda _: browser.ask(until))
    found: list[str] = browser.ask(FOUND)
    return found


def test_search_finds_the_page_and_asks_no_network(site: Path) -> None:
    with chromium() as browser:
        browser.open(site / "docs/index.html")
        for word, page in (
            ("nouveau", "docs/operate/nvidia_stack.html"),
            ("os_tuning_nofile", "docs/reference/variables.html"),
        ):
            assert search(browser, word, f"{FOUND}.some(link => link.includes('/{page}'))")
        asked = browser.requests()
        assert asked
        assert [url for url in asked if not url.startswith((site.as_uri(), "chrome"))] == []
        assert browser.errors() == []


def test_word_that_is_nowhere_is_not_found(site: Path) -> None:
    with chromium() as browser:
        browser.open(site / "docs/index.html")
        said = "document.querySelector('.md-search-result__meta').innerText"
        assert search(browser, "xylophone", f"{said}.includes('No matching')") == []
