"""The report in a real Chromium: no errors, no requests, the numbers of the results, with keys alone too."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from temper.report.inputs import Report
from temper.report.words import slug
from temper.report.write import MOST_IN_ONE_FILE, write
from tests.unit.pages import made_up
from tests.unit.pages.browser import PATIENCE_S
from validation.model.contract import dumps
from validation.model.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.pages.browser import Browser

pytestmark = pytest.mark.component

#: The least contrast of text that WCAG 2.2 asks for (1.4.3, level AA).
CONTRAST = 4.5
SHOWN_ROWS = (
    "[...document.querySelectorAll('#all-nodes tbody tr')].filter(row => !row.hidden)"
    ".map(row => row.cells[0].innerText)"
)
#: Of each element with words of its own: colour, and the first background above it that is not clear.
COLOURS = """[...document.querySelectorAll('main *')].filter(one => one.checkVisibility()
  && !one.closest('svg, .hide')
  && [...one.childNodes].some(child => child.nodeType === 3 && child.textContent.trim())).map(one => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const layers = [];
    for (let up = one; up; up = up.parentElement) layers.unshift(getComputedStyle(up).backgroundColor);
    const read = colours => {
      for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
      return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3); };
    const under = read(layers);
    return [one.className || one.tagName, read([getComputedStyle(one).color]), under];
  })"""


#: Of each line of text and each chart that can be seen: its top, its bottom, and words.
SEEN = """(() => {
  const found = [], walk = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  const add = (rect, owner, words) => {
    for (let up = owner; up; up = up.parentElement)
      if (getComputedStyle(up).overflowX !== 'visible' && rect.left >= up.getBoundingClientRect().right)
        return;
    if (rect.width && rect.height && rect.left < innerWidth)
      found.push([rect.top + scrollY, rect.bottom + scrollY, words]);
  };
  while (walk.nextNode()) {
    const text = walk.currentNode, range = document.createRange(), owner = text.parentElement;
    if (!text.data.trim() || !owner.checkVisibility() || owner.closest('.hide, svg')) continue;
    range.selectNodeContents(text);
    for (const rect of range.getClientRects()) add(rect, owner, text.data.trim().slice(0, 60));
  }
  for (const one of document.querySelectorAll('svg, input, select'))
    if (one.checkVisibility()) add(one.getBoundingClientRect(), one.parentElement, one.tagName);
  return found;
})()"""
#: Between lines of different cards. A gap was as high as the words of a hidden column: hundreds.
WIDEST_GAP = 90
#: A4 without the margins that the style sheet has, in the pixels of CSS.
PAPER_WIDTH, PAPER_HEIGHT = 703, 1032


def luminance(colour: list[int]) -> float:
    """Relative luminance, as WCAG defines it."""
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: list[int], other: list[int]) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("part", ["both", "validation", "compliance", "nothing"])
def test_a_page_shows_without_an_error_and_asks_for_nothing(
    browser: Browser, tmp_path: Path, part: str
) -> None:
    whole = made_up.report(3, "quick")
    parts = {
        "both": whole,
        "validation": Report(validation=whole.validation),
        "compliance": Report(compliance=whole.compliance),
        "nothing": Report(),
    }
    (page,) = write(tmp_path, parts[part])
    browser.requests()
    browser.open(page)
    assert browser.ask("document.querySelector('h1').checkVisibility()")
    assert browser.errors() == []
    assert browser.requests() == [page.as_uri()]


def test_hostile_words_are_words(browser: Browser, tmp_path: Path) -> None:
    (page,) = write(tmp_path, made_up.hostile())
    browser.open(page)
    assert browser.ask("document.querySelectorAll('#all-nodes script, img, main script').length") == 0
    assert browser.ask("window.harmed") is None
    assert any(made_up.HARM in row for row in browser.ask(SHOWN_ROWS))
    assert browser.errors() == []
    for name in made_up.HOSTILE:
        browser.open(page, f"#node-{slug(name)}")
        assert browser.ask("document.querySelector('article:target h2').textContent") == printable(name)


def test_the_policy_lets_nothing_else_run_and_nothing_be_fetched(browser: Browser, one_file: Path) -> None:
    browser.open(one_file)
    browser.errors()
    browser.requests()
    browser.ask(
        "(() => { const own = document.createElement('script'); own.textContent = 'window.harmed = 1';"
        "document.body.append(own); const image = document.createElement('img');"
        "image.src = 'http://127.0.0.1:9/x.png'; document.body.append(image); })()"
    )
    assert browser.ask("window.harmed") is None
    assert len(browser.errors()) >= 2
    assert browser.requests() == []


def test_the_numbers_are_those_of_the_result(browser: Browser, one_file: Path) -> None:
    name = made_up.names(3)[-1]
    result: dict[str, Any] = json.loads(dumps(made_up.result(name)))
    browser.open(one_file, f"#node-{slug(name)}")
    for test in result["tests"]:
        found = browser.ask(
            "[...document.querySelectorAll(`section[aria-labelledby='${arguments[0]}'] data`)]"
            ".map(one => [Number(one.value), one.textContent])",
            f"{slug(name)}-{test['id']}",
        )
        assert Counter(value for value, _ in found) == Counter(one["value"] for one in test["measurements"])
        for value, shown in found:
            number, _, unit = shown.partition(" ")
            assert float(number) == pytest.approx(100 * value if unit == "%" else value, rel=0.006, abs=0.006)


def test_links_lead_to_one_node_at_a_time(browser: Browser, one_file: Path) -> None:
    browser.open(one_file)
    names = browser.ask(SHOWN_ROWS)
    assert names == made_up.names(8)
    shown = (
        "[...document.querySelectorAll('article')].filter(one => one.checkVisibility()).map(one => one.id)"
    )
    assert browser.ask(shown) == []
    browser.ask("document.querySelector('#all-nodes tbody tr:nth-child(2) a').click()")
    assert browser.ask(shown) == ["node-gpu-002"]
    assert not browser.ask("document.querySelector('.fleet').checkVisibility()")
    browser.ask("document.querySelector('#node-gpu-002 .back a').click()")
    assert browser.ask(shown) == []
    assert browser.ask("document.querySelector('.fleet').checkVisibility()")


def test_every_link_has_its_target(browser: Browser, one_file: Path) -> None:
    browser.open(one_file)
    lost = (
        "[...document.querySelectorAll('a[href^=\"#\"]')].map(one => one.hash.slice(1))"
        ".filter(id => !document.getElementById(id))"
    )
    assert browser.ask(lost) == []
    ids = browser.ask("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert [name for name, count in Counter(ids).items() if count > 1] == []


def test_nodes_are_filtered_by_name_and_state(browser: Browser, one_file: Path) -> None:
    browser.open(one_file)
    search = browser.driver.find_element("css selector", ".filter input[type=search]")
    search.send_keys("GPU-00")
    assert len(browser.ask(SHOWN_ROWS)) == 8
    search.send_keys("3")
    assert browser.ask(SHOWN_ROWS) == [made_up.SLOW]
    assert browser.ask("document.querySelector('.filter output').value") == "1 of 8 shown"
    search.clear()
    search.send_keys(" ")
    browser.driver.find_element("css selector", ".filter input[value=good]").click()
    assert browser.ask(SHOWN_ROWS) == ["gpu-002", made_up.SLOW, made_up.THROTTLING]


def test_nodes_are_filtered_by_what_the_inventory_says_of_them(browser: Browser, two_dozen: Path) -> None:
    from selenium.webdriver.support.ui import Select

    browser.open(two_dozen)
    labels = browser.driver.find_elements("css selector", ".filter label:has(select)")
    choices = {one.text.split()[0]: Select(one.find_element("tag name", "select")) for one in labels}
    assert [*choices] == ["Rack", "Group"], "all have the same GPUs"
    choices["Rack"].select_by_visible_text("rack2")
    assert browser.ask(SHOWN_ROWS) == made_up.names(16)[8:]
    choices["Group"].select_by_visible_text("debug")
    assert browser.ask(SHOWN_ROWS) == ["gpu-016"]


def test_columns_are_sorted_by_their_numbers(browser: Browser, one_file: Path) -> None:
    browser.open(one_file)
    head = browser.driver.find_element("css selector", "#all-nodes th button")
    head.click()
    head.click()
    assert browser.ask(SHOWN_ROWS) == made_up.names(8)[::-1]
    assert browser.ask("document.querySelector('#all-nodes th').ariaSort") == "descending"


def test_without_a_script_all_is_there_but_filters(browser: Browser, one_file: Path) -> None:
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(one_file)
        assert "fail" in browser.driver.find_element("css selector", "h1").text
        assert len(browser.driver.find_elements("css selector", "#all-nodes tbody tr")) == 8
        assert not browser.driver.find_element("css selector", ".filter").is_displayed()
        browser.open(one_file, "#node-gpu-001")
        assert browser.driver.find_element("css selector", "#node-gpu-001 h2").is_displayed()
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("fragment", ["", f"#node-{made_up.SLOW}"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_background(
    browser: Browser, one_file: Path, scheme: str, fragment: str
) -> None:
    browser.prefer(scheme)
    browser.open(one_file, fragment)
    body = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (luminance([int(part) for part in body[4:-1].split(",")]) < 0.1) == (scheme == "dark")
    found = browser.ask(COLOURS)
    assert len(found) > 50
    faint = {(what, *map(tuple, pair)) for what, *pair in found if contrast(*pair) < CONTRAST}
    assert faint == set()


def pages_of(browser: Browser) -> int:
    """How many sheets of A4 the page takes, with the margins that it asks for."""
    paper = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True}
    # Tags for screen readers cost ten times what the sheets do.
    made = browser.command("Page.printToPDF", generateTaggedPDF=False, **paper)
    return len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(made["data"])))


@pytest.fixture(scope="module")
def two_dozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (page,) = write(tmp_path_factory.mktemp("24 nodes"), made_up.report(24))
    return page


@pytest.fixture
def resized(browser: Browser) -> Iterator[Browser]:
    """The browser, which is as wide as before after the test."""
    yield browser
    browser.command("Emulation.clearDeviceMetricsOverride")
    browser.prefer("light")


def test_paper_begins_with_a_summary_and_two_dozen_nodes_take_few_sheets(
    resized: Browser, two_dozen: Path
) -> None:
    browser = resized
    for fragment, most in (("", 12), (f"#node-{made_up.SLOW}", 12)):
        browser.open(two_dozen, fragment)
        assert 1 < pages_of(browser) <= most
    browser.open(two_dozen)
    browser.width(PAPER_WIDTH)
    browser.prefer("dark", "print")
    assert browser.ask("document.documentElement.scrollWidth") <= PAPER_WIDTH, "else it is printed smaller"
    assert browser.ask("document.querySelector('.hero').getBoundingClientRect().bottom") < PAPER_HEIGHT
    assert (
        browser.ask("getComputedStyle(document.querySelector('#attention').parentNode).breakBefore") == "page"
    )
    assert not browser.ask("document.querySelector('.filter').checkVisibility()")
    ink = browser.ask("getComputedStyle(document.querySelector('h1')).color")
    assert luminance([int(part) for part in ink[4:-1].split(",")]) < 0.1, "dark words on white paper"


@pytest.mark.parametrize("fragment", ["", f"#node-{made_up.SLOW}", "#node-gpu-002"])
def test_a_narrow_screen_has_no_gaps_and_nothing_beside_it(
    resized: Browser, two_dozen: Path, fragment: str
) -> None:
    browser = resized
    browser.width(400)
    browser.open(two_dozen, fragment)
    assert browser.ask("document.documentElement.scrollWidth") <= 400
    seen = sorted(browser.ask(SEEN))
    assert len(seen) > 50
    at, gaps = seen[0][1], []
    for top, bottom, words in seen:
        if top - at > WIDEST_GAP:
            gaps.append((top - at, words))
        at = max(at, bottom)
    assert gaps == []


def test_a_command_is_copied_with_and_without_a_clipboard(browser: Browser, one_file: Path) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.expected_conditions import text_to_be_present_in_element
    from selenium.webdriver.support.ui import WebDriverWait

    for clipboard in (True, False):
        browser.open(one_file)
        if not clipboard:
            browser.ask("void Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        button = browser.driver.find_element("css selector", ".todo .cmd button")
        command = browser.ask("arguments[0].parentNode.querySelector('code').textContent", button)
        browser.ask("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        copied = text_to_be_present_in_element(("css selector", ".todo .cmd button"), "Copied")
        WebDriverWait(browser.driver, PATIENCE_S).until(copied)
        search = browser.driver.find_element("css selector", ".filter input[type=search]")
        search.send_keys(Keys.CONTROL, "v")
        assert search.get_attribute("value") == command
        assert browser.errors() == []


def test_the_page_is_used_by_keys_alone(browser: Browser, one_file: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.open(one_file)

    def press(key: str) -> dict[str, Any]:
        ActionChains(browser.driver).send_keys(key).perform()
        found: dict[str, Any] = browser.ask(
            "(() => { const one = document.activeElement;"
            "return {tag: one.tagName, text: one.innerText, id: one.id, href: one.getAttribute('href'),"
            "outline: getComputedStyle(one).outlineStyle}; })()"
        )
        return found

    assert press(Keys.TAB)["href"] == "#main"
    assert press(Keys.ENTER)["id"] == "main"
    walked = []
    for _ in range(60):
        at = press(Keys.TAB)
        walked.append(at)
        if at["text"] == made_up.SLOW and at["tag"] == "A":
            break
    assert [at for at in walked if at["outline"] == "none"] == [], "where the focus is must be seen"
    press(Keys.ENTER)
    assert browser.ask("document.querySelector('article:target').id") == f"node-{made_up.SLOW}"


def test_a_screen_reader_finds_landmarks_and_names(browser: Browser, one_file: Path) -> None:
    for fragment in ("", f"#node-{made_up.SLOW}"):
        browser.open(one_file, fragment)
        browser.command("Accessibility.enable")
        nodes = browser.command("Accessibility.getFullAXTree")["nodes"]
        browser.command("Accessibility.disable")
        seen = [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]
        roles = {role for role, _ in seen}
        assert {"main", "banner", "navigation", "heading", "table", "columnheader", "rowheader"} <= roles
        named = {"link", "button", "searchbox", "checkbox", "image", "region", "article", "navigation"}
        assert [one for one in seen if one[0] in named and not one[1].strip()] == []
        assert browser.ask("document.documentElement.lang") == "en"
        assert browser.ask("document.querySelectorAll('th:not([scope])').length") == 0


def test_many_nodes_have_pages_of_their_own(browser: Browser, tmp_path: Path) -> None:
    files = write(tmp_path, made_up.report(MOST_IN_ONE_FILE + 1, "quick"))
    assert len(files) == MOST_IN_ONE_FILE + 2
    browser.open(tmp_path / "report.html")
    browser.ask("document.querySelector('#all-nodes tbody a').click()")
    assert browser.driver.current_url == (tmp_path / "nodes/gpu-001.html").as_uri()
    assert browser.ask("document.querySelector('h1').textContent") == "gpu-001"
    browser.ask("document.querySelector('.top a').click()")
    assert browser.driver.current_url == (tmp_path / "report.html").as_uri()
    assert browser.errors() == []
