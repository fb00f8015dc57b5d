"""A knob on the page, turned on the real server: predicted before the restart, and against what the server then has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests import browser
from tests.e2e.lab import App, data_folder, wait_for

PAGE_MS = 30_000
APPLY_MS = 240_000


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


def _answers(page: Page, url: str) -> bool:
    try:
        page.goto(f"{url}/tune")
    except Exception:
        return False
    return True


def predicted_blocks(page: Page) -> str:
    """As the card beside the knobs says."""
    card = page.locator(".st-key-tune_card .lab-facts > div").filter(has_text="Blocks")
    return (card.locator(".lab-fact-value").text_content() or "").strip()


def test_a_turned_knob_is_predicted_applied_measured_and_held_against_the_server(app: App, page: Page) -> None:
    before = app.server()
    card, apply = page.locator(".st-key-tune_card"), page.get_by_role("button", name="Apply and measure")
    expect(card).to_contain_text("What runs now", timeout=PAGE_MS)
    expect(apply).to_be_disabled()
    slider = page.locator("[class*='st-key-tune_max_num_seqs']").get_by_role("slider")
    slider.focus()
    slider.press("ArrowLeft")
    slider.press("ArrowLeft")
    expect(card).to_contain_text("max_num_seqs 8", timeout=PAGE_MS)
    expected = predicted_blocks(page)
    assert re.fullmatch(r"[\d,]+", expected)
    assert app.server().pid == before.pid, "A slider alone must not restart the server."

    apply.click()
    expect(page.locator(".lab-steps li.now")).to_contain_text("Measure as it was", timeout=PAGE_MS)
    expect(page.locator(".lab-phases")).to_be_visible(timeout=APPLY_MS)
    outcome = page.locator(".st-key-tune_outcome")
    expect(outcome).to_contain_text("The server has exactly the KV cache that was predicted.", timeout=APPLY_MS)
    blocks = outcome.get_by_role("row").filter(has_text="Blocks").first
    expect(blocks).to_contain_text(f"{expected} blocks")
    expect(outcome.locator(".lab-changes")).to_contain_text(re.compile(r"Throughput\s*[\d.,]+\s*→\s*[\d.,]+ tok/s"))
    expect(page.get_by_test_id("stException")).to_have_count(0)
    assert app.server().pid != before.pid


def test_one_click_goes_back_to_the_last_configuration(app: App, page: Page) -> None:
    before = app.server()
    page.get_by_role("button", name="Back to the last configuration").click()
    wait_for("another server", lambda: (now := app.record()) is not None and now.ready and now.pid != before.pid, 200)
    slider = page.locator("[class*='st-key-tune_max_num_seqs']")
    expect(slider.first).to_contain_text("32 requests", timeout=PAGE_MS)


def test_the_trials_are_saved_runs(app: App, page: Page) -> None:
    page.goto(f"{app.url}/runs")
    page.get_by_role("combobox", name="Find a run").click()
    page.get_by_role("option").filter(has_text="max_num_seqs 8").first.click()
    expect(page.locator(".st-key-runs_tune")).to_contain_text("exactly the KV cache", timeout=PAGE_MS)
    expect(page.locator(".st-key-runs_load_result")).to_be_visible()
