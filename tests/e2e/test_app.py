"""A person opens the app for the first time: real vLLM on this machine, a real browser. In this order."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from engine.server.processes import group_members
from tests import browser
from tests.e2e.lab import App, cli, data_folder, gone, wait_for

PAGE_MS = 30_000
READY_MS = 300_000
MEASURE_MS = 300_000
NUMBER = re.compile(r"\d")
expect.set_options(timeout=PAGE_MS)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    running = App(data_folder(tmp_path_factory.mktemp("lab") / "data"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def chromium(browser_path: Path) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser_path, args=list(browser.FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def context(chromium: Browser) -> Iterator[BrowserContext]:
    with chromium.new_context(viewport={"width": 1280, "height": 720}) as opened:
        opened.set_default_timeout(PAGE_MS)
        yield opened


@pytest.fixture(scope="module")
def page(context: BrowserContext) -> Page:
    return context.new_page()


def badge(page: Page) -> Locator:
    """The state of the server in the sidebar."""
    return page.locator(".lab-server-state")


def metric(page: Page, label: str) -> str:
    """What a metric shows, without its label."""
    found = page.get_by_test_id("stMetric").filter(has=page.get_by_text(label, exact=True))
    return found.get_by_test_id("stMetricValue").inner_text()


def ask(page: Page, message: str) -> None:
    """Send a chat message and wait until the answer is complete."""
    answers = page.get_by_test_id("stChatMessage").count()
    box = page.get_by_test_id("stChatInputTextArea")
    box.fill(message)
    box.press("Enter")
    expect(page.get_by_test_id("stChatMessage")).to_have_count(answers + 2)
    expect(box).to_be_enabled(timeout=MEASURE_MS)


def no_traceback(page: Page) -> None:
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_the_first_page_of_a_new_process_may_be_any(app: App, page: Page) -> None:
    wait_for("the app", lambda: _answers(page, f"{app.url}/server"), 60)
    expect(page.get_by_role("heading", name="Server", exact=True)).to_be_visible()
    for title in ("Home", "HF vs vLLM", "Chat", "Server", "Runs"):
        expect(page.get_by_test_id("stSidebarNav").get_by_text(title, exact=True)).to_be_visible()
    expect(badge(page)).to_have_text("Server starting")
    no_traceback(page)


def test_the_server_becomes_ready_by_itself(app: App, page: Page) -> None:
    expect(badge(page)).to_have_text("Server ready", timeout=READY_MS)
    expect(page.locator(".lab-facts")).to_contain_text(re.compile(r"KV cache\s*[\d,]+\s*tokens"))
    assert app.server().api_key not in page.content()
    no_traceback(page)


def test_a_chat_turn_shows_text_and_numbers(app: App, page: Page) -> None:
    page.goto(f"{app.url}/chat")
    ask(page, "Why is the sky blue? Answer in a few long sentences, please.")
    answer = page.get_by_test_id("stChatMessage").last.inner_text()
    assert len(answer.strip()) > 20
    for label in ("TTFT", "TPOT", "Tokens per second", "Tokens"):
        assert NUMBER.search(metric(page, label)), label
    no_traceback(page)


def test_the_second_turn_finds_its_beginning_in_the_cache(page: Page) -> None:
    ask(page, "Say that again in one sentence.")
    cached = page.get_by_text(re.compile(r"^\d+ of \d+ tokens$")).last.inner_text()
    found, asked = (int(word) for word in re.findall(r"\d+", cached))
    assert 0 < found < asked


def test_the_conversation_is_saved_with_its_numbers(app: App, page: Page) -> None:
    answer, code = cli(app.data_dir, "runs")
    (run,) = answer["runs"]
    first, second = run["results"]["turns"]
    assert code == 0 and run["kind"] == "chat" and run["command"] and run["model"]["origin"]
    assert all(
        turn["status"] == "done" and turn["ttft_ms"] > 0 and turn["server_ttft_ms"] > 0 for turn in (first, second)
    )
    assert 0 < second["cached_tokens"] < second["prompt_tokens"]
    expect(page.get_by_role("link", name="Saved")).to_be_visible()


def test_a_refresh_and_a_second_tab_show_the_same_and_start_nothing(
    app: App, context: BrowserContext, page: Page
) -> None:
    before = app.server()
    page.reload()
    expect(page.get_by_test_id("stChatMessage")).to_have_count(4)
    second = context.new_page()
    second.goto(page.url)
    expect(second.get_by_test_id("stChatMessage")).to_have_count(4)
    second.close()
    assert app.server() == before


def test_markup_in_a_message_stays_text(page: Page) -> None:
    ask(page, "Repeat: <img src=x onerror=\"document.title='taken'\"> **bold** $x$ :red[y]")
    assert page.get_by_test_id("stChatMessage").locator("img, strong, .katex").count() == 0
    assert page.title() != "taken"
    expect(page.get_by_text("**bold** $x$ :red[y]").first).to_be_visible()


def test_a_comparison_ends_with_a_ratio_above_one(app: App, page: Page) -> None:
    page.goto(f"{app.url}/compare?compare_tokens=24&compare_repeats=1")
    page.get_by_role("button", name="Start the race").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    expect(page.get_by_text("Open the saved run")).to_be_visible(timeout=MEASURE_MS)
    shown = page.locator(".lab-hero .lab-number").inner_text()
    assert float(shown.removesuffix("×")) > 1
    no_traceback(page)
    page.get_by_text("Open the saved run").click()
    expect(page.get_by_role("heading", name=re.compile("HF vs vLLM"))).to_be_visible()
    no_traceback(page)


def test_the_comparison_was_saved_with_what_it_takes_to_repeat_it(app: App) -> None:
    answer, code = cli(app.data_dir, "runs")
    assert code == 0
    run = answer["runs"][0]
    assert run["results"]["ratio"] > 1
    assert run["config"]["max_tokens"] == 24
    assert all(run["results"]["engines"][name]["output_tokens"] == 24 for name in ("hf", "vllm"))
    assert run["environment"]["packages"]["torch"] and run["command"] and run["model"]["origin"]


def test_another_lab_on_the_same_folder_is_refused_with_the_reason(app: App) -> None:
    other = App(app.data_dir)
    try:
        wait_for("a refusal", lambda: "Another vLLM Lab" in other.output.read_text(), 60)
        assert str(app.process.pid) in other.output.read_text()
    finally:
        other.close()


def test_a_killed_engine_is_noticed_and_explained(app: App, page: Page) -> None:
    page.goto(f"{app.url}/server")
    server = app.server()
    engine = max(group_members(server.pid), key=lambda pid: psutil.Process(pid).memory_info().rss)
    os.kill(engine, signal.SIGKILL)
    expect(badge(page)).to_have_text("Server failed")
    expect(page.get_by_text(re.compile("engine process")).first).to_be_visible()
    wait_for("the end of all its processes", lambda: gone(server))
    no_traceback(page)


def test_stop_leaves_no_process(app: App, page: Page) -> None:
    page.get_by_role("button", name=re.compile("^Start")).last.click()
    expect(badge(page)).to_have_text("Server ready", timeout=READY_MS)
    server = app.server()
    page.get_by_role("button", name="Stop the server").click()
    expect(badge(page)).to_have_text("Server stopped")
    assert gone(server) and app.record() is None


def test_ctrl_c_ends_the_app_and_frees_its_data_folder(app: App) -> None:
    app.process.send_signal(signal.SIGINT)
    app.process.wait(30)
    assert cli(app.data_dir, "stop") == ({"found": False, "ended_processes": [], "owner": None}, 0)


def _answers(page: Page, url: str) -> bool:
    try:
        page.goto(url)
    except Exception:
        return False
    return True
