"""The load test's page in a real browser, against a server with known timings. In this order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from components import swim_lanes
from components.swim_lanes import HERE, HTML, swim_data
from tests import browser
from tests.block_map_page import THEMES, VARIABLES
from tests.e2e.lab import App, data_folder
from tests.fake_openai import FakeOpenAI, Script
from tests.ui import load_snapshots as shots

WAIT_MS = 30_000
TEST_MS = 120_000
SIZE = {"width": 1280, "height": 720}
INKED = """(canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data
  .reduce((sum, value, at) => sum + (at % 4 === 3 && value > 0 ? 1 : 0), 0)"""
GAUGES = "".join(
    f'# TYPE vllm:num_requests_{name} gauge\nvllm:num_requests_{name}{{engine="0"}} {value}\n'
    for name, value in (("running", 2), ("waiting", 1))
)
# Counts pictures by what every picture begins with.
ALONE = """<!doctype html><meta charset="utf-8"><div id="host" style="width:900px;{variables}"></div>
<script type="module">
{script}
window.pictures = 0;
const clear = CanvasRenderingContext2D.prototype.clearRect;
CanvasRenderingContext2D.prototype.clearRect = function (...box) {{ window.pictures += 1; return clear.apply(this, box); }};
const shadow = document.getElementById("host").attachShadow({{ mode: "open" }});
shadow.innerHTML = {shadow};
window.mounted = (data) => mount({{ parentElement: shadow, data }});
</script>"""


@pytest.fixture(scope="module")
def chromium(browser_path: Path) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser_path, args=list(browser.FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        fake.metrics_text = GAUGES
        fake.script_for = lambda body: Script(tokens=body.get("max_tokens", 10), ttft_s=0.05, gap_s=0.02)
        yield fake


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    running = App(data_folder(tmp_path_factory.mktemp("lab") / "data"), LAB_AUTOSTART="0")
    yield running
    running.close()


@pytest.fixture(scope="module")
def page(app: App, chromium: Browser, server: FakeOpenAI) -> Iterator[Page]:
    """A window on the app, to which the fake server is attached."""
    with chromium.new_context(viewport=SIZE) as context:
        context.set_default_timeout(WAIT_MS)
        opened = context.new_page()
        _goto(opened, f"{app.url}/server")
        opened.get_by_role("tab", name="Attach to a running server").click()
        opened.get_by_role("textbox", name="Base URL").fill(server.base_url)
        opened.get_by_role("textbox", name="Base URL").press("Enter")
        expect(opened.get_by_test_id("stSidebar").get_by_text("Attached", exact=True)).to_be_visible(timeout=WAIT_MS)
        yield opened


def _goto(page: Page, url: str) -> None:
    """The app may still be starting."""
    for _ in range(60):
        try:
            page.goto(url)
            return
        except Exception:
            page.wait_for_timeout(1000)
    page.goto(url)


def start(page: Page, users: str, tokens: int) -> None:
    box = page.get_by_role("textbox", name="Users at the same time")
    box.fill(users)
    box.press("Enter")
    length = page.get_by_role("spinbutton", name="Output tokens")
    length.fill(str(tokens))
    length.press("Enter")
    page.get_by_role("button", name="Start the load test").click()


def lanes(page: Page) -> Any:
    return page.locator(".swim-lanes canvas")


def test_a_profile_is_chosen_with_the_keyboard(page: Page, app: App) -> None:
    page.goto(f"{app.url}/load")
    expect(page.get_by_role("radio", name="Users")).to_be_checked(timeout=WAIT_MS)
    page.get_by_role("radio", name="Users").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("spinbutton", name="To users")).to_be_visible(timeout=WAIT_MS)
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("textbox", name="Users at the same time")).to_be_visible(timeout=WAIT_MS)


def test_the_lanes_live_while_it_runs(page: Page) -> None:
    start(page, "2, 3", 40)
    expect(lanes(page)).to_have_attribute(
        "aria-label", re.compile(r"Requests of 2 lanes.*[1-9]\d* answered"), timeout=WAIT_MS
    )
    assert lanes(page).evaluate(INKED) > 1000
    expect(page.get_by_text(re.compile(r"Level 1 of 2 · 2 users: measuring"))).to_be_visible()


def test_a_second_tab_watches_it(page: Page, app: App) -> None:
    other = page.context.new_page()
    other.goto(f"{app.url}/load")
    expect(other.get_by_role("button", name="Cancel")).to_be_visible(timeout=WAIT_MS)
    expect(lanes(other)).to_be_visible(timeout=WAIT_MS)
    other.close()


def test_it_survives_a_change_of_page_and_ends_with_numbers(page: Page, app: App) -> None:
    page.get_by_test_id("stSidebar").get_by_role("link", name="Runs").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible(timeout=WAIT_MS)
    page.get_by_test_id("stSidebar").get_by_role("link", name="Load test").click()
    headline = page.locator(".st-key-load_result")
    expect(headline).to_contain_text(re.compile(r"[1-9]\d*\s*tok/s with 3 users"), timeout=TEST_MS)
    expect(headline).to_contain_text(re.compile(r"Answered\s*21"))
    expect(page.locator(".st-key-load_chart .js-plotly-plot")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_single_requests_stay_to_be_looked_at(page: Page) -> None:
    page.get_by_role("radio", name="Requests").or_(
        page.get_by_role("button", name="Requests", exact=True)
    ).first.click()
    expect(lanes(page)).to_have_attribute("aria-label", re.compile(r"Requests of 3 lanes"), timeout=WAIT_MS)
    box = lanes(page).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 15)
    expect(page.locator(".swim-lanes .tip")).to_contain_text(
        re.compile(r"Request \d+: done.*First text after \d+ ms", re.S)
    )


def test_files_can_be_taken_along(page: Page) -> None:
    for name, look in (("CSV", "ttft_p95_ms"), ("vLLM bench JSON", '"max_concurrency": 3'), ("JSON", '"kind": "load"')):
        with page.expect_download() as found:
            page.get_by_role("button", name=name, exact=True).click()
        assert look in Path(found.value.path()).read_text(encoding="utf-8"), name


def test_cancel_keeps_what_was_measured(page: Page) -> None:
    start(page, "1, 2", 60)
    expect(lanes(page)).to_have_attribute("aria-label", re.compile(r"of 1 lane .*[1-9]\d* answered"), timeout=WAIT_MS)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled. What was measured before is below and was saved.")).to_be_visible(
        timeout=WAIT_MS
    )
    expect(page.locator(".st-key-load_result")).to_contain_text("Not whole")


# -- the lanes by themselves


def alone(page: Page, data: dict[str, Any], theme: str) -> None:
    colours = zip(VARIABLES, THEMES[theme], strict=True)
    shadow = f"<style>{(HERE / 'swim_lanes.css').read_text('utf-8')}</style>{HTML}"
    script = (HERE / "swim_lanes.js").read_text("utf-8").replace("export default function", "const mount = function")
    page.set_content(
        ALONE.format(
            variables="".join(f"--st-{name}:{colour};" for name, colour in colours),
            script=script,
            shadow=json.dumps(shadow).replace("</", "<\\/"),
        )
    )
    page.evaluate("(data) => window.mounted(data)", data)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_running_level_is_drawn_five_times_a_second_at_most(chromium: Browser, theme: str) -> None:
    with chromium.new_context(viewport=SIZE) as context:
        page = context.new_page()
        page.clock.install()
        alone(page, swim_data(shots.RUNNING), theme)
        page.evaluate("window.pictures = 0")
        page.clock.run_for(2000)
        assert page.evaluate("window.pictures") == 8
        assert page.locator("canvas").evaluate(INKED) > 1000


def test_a_level_that_is_over_is_drawn_no_more(chromium: Browser) -> None:
    with chromium.new_context(viewport=SIZE) as context:
        page = context.new_page()
        page.clock.install()
        alone(page, swim_data(shots.DONE), "light")
        page.evaluate("window.pictures = 0")
        page.clock.run_for(5000)
        assert page.evaluate("window.pictures") == 0


def test_two_hundred_lanes_fit_on_the_screen(chromium: Browser) -> None:
    many = tuple(
        shots.Lane(user, (shots.LaneRequest(user, shots.RequestState.DONE, 0.1, 0.2, 0.4, 1.9),)) for user in range(200)
    )
    with chromium.new_context(viewport=SIZE) as context:
        page = context.new_page()
        alone(page, swim_lanes.swim_data(shots.replace(shots.RUNNING, lanes=many)), "light")
        box = page.locator("canvas").bounding_box()
        assert box is not None and 300 < box["height"] < 460
