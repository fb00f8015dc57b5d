"""The dashboard in a real browser while a real load test runs on a real vLLM. In this order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests import browser
from tests.e2e.lab import App, data_folder

WAIT_MS = 30_000
TEST_MS = 180_000
SIZE = {"width": 1280, "height": 720}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    running = App(data_folder(tmp_path_factory.mktemp("lab") / "data"))
    running.server()
    yield running
    running.close()


@pytest.fixture(scope="module")
def chromium(browser_path: Path) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser_path, args=list(browser.FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page(app: App, chromium: Browser) -> Iterator[Page]:
    with chromium.new_context(viewport=SIZE) as context:
        context.set_default_timeout(WAIT_MS)
        yield context.new_page()


def metric(page: Page, label: str):
    return page.get_by_test_id("stMetric").filter(has_text=label)


def test_a_server_at_rest_has_no_latencies(page: Page, app: App) -> None:
    page.goto(f"{app.url}/monitor?monitor_window=15+min")
    expect(metric(page, "Running")).to_contain_text("0 · 0", timeout=WAIT_MS)
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_tokens_flow_and_levels_are_marked_while_a_load_test_runs(page: Page, app: App) -> None:
    page.goto(f"{app.url}/load")
    users = page.get_by_role("textbox", name="Users at the same time")
    users.fill("2, 3")
    users.press("Enter")
    length = page.get_by_role("spinbutton", name="Output tokens")
    length.fill("24")
    length.press("Enter")
    page.get_by_role("button", name="Start the load test").click()
    expect(page.get_by_text(re.compile("Level 1 of 2"))).to_be_visible(timeout=TEST_MS)
    page.get_by_test_id("stSidebar").get_by_role("link", name="Dashboard").click()
    expect(metric(page, "Generated")).to_contain_text(re.compile(r"[1-9]\d* tok/s"), timeout=TEST_MS)
    expect(metric(page, "TTFT p95")).to_contain_text(re.compile(r"[1-9][\d.,]* m?s"), timeout=TEST_MS)
    tokens = page.locator(".st-key-monitor_chart_tokens")
    expect(tokens.locator(".annotation-text").filter(has_text="2 users").first).to_be_attached(timeout=TEST_MS)


def test_after_it_the_levels_and_the_run_stay(page: Page) -> None:
    events = page.locator(".st-key-monitor_events")
    events.get_by_text("What happened").click()
    expect(events).to_contain_text("Load test done", timeout=TEST_MS)
    expect(events).to_contain_text("3 users")
    page.reload()
    expect(page.locator(".st-key-monitor_load")).to_contain_text("3 users", timeout=WAIT_MS)
    expect(page.get_by_test_id("stException")).to_have_count(0)
