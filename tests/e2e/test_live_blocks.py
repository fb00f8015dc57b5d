"""The real server's own blocks on the page: a chat turn stores some, a second request finds them. In this order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from tests import browser
from tests.e2e.lab import App, data_folder, wait_for

PAGE_MS = 30_000
READY_MS = 300_000
ANSWER_MS = 120_000
QUESTION = "Why is the sky blue, and why is it red in the evening? Answer in a few long sentences, with one example."


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    running = App(data_folder(tmp_path_factory.mktemp("lab") / "data"))
    running.server()
    yield running
    running.close()


@pytest.fixture(scope="module")
def page(app: App, browser_path: Path) -> Iterator[Page]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser_path, args=list(browser.FLAGS))
        opened = chromium.new_page(viewport={"width": 1280, "height": 720})
        opened.set_default_timeout(PAGE_MS)
        wait_for("the app", lambda: _answers(opened, app.url), 60)
        yield opened
        chromium.close()


def cells(page: Page) -> Locator:
    return page.locator(".block-tree .cell:not(.hidden)")


def with_marks(page: Page, *labels: str) -> Locator:
    """Blocks with exactly these marks."""
    found = cells(page).filter(has=page.locator(f".mark:nth-child({len(labels)})"))
    for label in labels:
        found = found.filter(has=page.locator(".mark").get_by_text(label, exact=True))
    return found.filter(has_not=page.locator(f".mark:nth-child({len(labels) + 1})"))


def ask(page: Page, app: App, question: str) -> None:
    """One message in a conversation of its own."""
    page.goto(f"{app.url}/chat?chat={abs(hash(question))}")
    box = page.get_by_test_id("stChatInputTextArea")
    box.fill(question)
    box.press("Enter")
    expect(page.get_by_test_id("stChatMessage")).to_have_count(2, timeout=PAGE_MS)
    expect(box).to_be_enabled(timeout=ANSWER_MS)


def test_a_chat_turn_stores_blocks_with_its_words(app: App, page: Page) -> None:
    ask(page, app, QUESTION)
    page.goto(f"{app.url}/blocks")
    expect(with_marks(page, "1").first).to_be_visible(timeout=PAGE_MS)
    expect(cells(page).filter(has_text="sky blue").first).to_be_visible(timeout=PAGE_MS)
    expect(page.locator(".lab-events")).to_contain_text(re.compile(r"1\s*stored \d+ blocks?"))


def test_a_second_request_with_the_same_beginning_shares_them(app: App, page: Page) -> None:
    ask(page, app, f"{QUESTION} And what colour is the sky on Mars?")
    page.goto(f"{app.url}/blocks")
    expect(with_marks(page, "1", "2").first).to_be_visible(timeout=PAGE_MS)
    expect(page.locator(".lab-events")).to_contain_text(re.compile(r"2\s*found \d+ blocks?"))


def found(page: Page, requests: int) -> None:
    """So many of the four found something in the cache."""
    expect(page.get_by_text(re.compile(r"^[1-9]\d* of \d+ tokens$"))).to_have_count(requests, timeout=ANSWER_MS)


def test_four_requests_share_their_system_prompt(page: Page) -> None:
    page.get_by_role("button", name="Send four requests").click()
    shared = with_marks(page, "A", "B", "C", "D")
    expect(shared.first).to_be_visible(timeout=ANSWER_MS)
    for label in "ABCD":
        expect(with_marks(page, label).first).to_be_visible(timeout=ANSWER_MS)
    high, low = shared.first.bounding_box(), with_marks(page, "A").first.bounding_box()
    assert high and low and high["height"] > 3 * low["height"]
    found(page, 3)  # the first one computed what the others found
    page.get_by_role("button", name="Send four requests").click()
    found(page, 4)


def test_the_numbers_are_there_and_nothing_was_lost(page: Page) -> None:
    facts = page.locator(".st-key-blocks_numbers")
    expect(facts).to_contain_text(re.compile(r"In use now\s*[\d,]+ of [\d,]+"), timeout=PAGE_MS)
    expect(facts).to_contain_text(re.compile(r"Prefix-hit rate\s*[\d.]+%"))
    expect(page.get_by_text(re.compile("lost"))).to_have_count(0)
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_a_second_tab_shows_the_same_tree(page: Page) -> None:
    assert page.context.browser
    with page.context.browser.new_context(viewport=page.viewport_size) as context:
        other = context.new_page()
        other.goto(page.url)
        expect(with_marks(other, "A", "B", "C", "D").first).to_be_visible(timeout=PAGE_MS)
        expect(cells(other)).to_have_count(cells(page).count())


def test_a_restart_empties_the_tree(app: App, page: Page) -> None:
    before = app.server()
    page.goto(f"{app.url}/server")
    page.get_by_role("button", name="Restart with these settings").click()
    wait_for("another server", lambda: (now := app.record()) is not None and now.ready and now.pid != before.pid, 300)
    page.goto(f"{app.url}/blocks")
    expect(page.locator(".block-tree .empty")).to_be_visible(timeout=PAGE_MS)
    expect(cells(page)).to_have_count(0)


def _answers(page: Page, url: str) -> bool:
    try:
        page.goto(url)
    except Exception:
        return False
    return True
