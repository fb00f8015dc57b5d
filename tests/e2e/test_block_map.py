"""The block map in a real browser: by itself with a recording made by hand, and in the app with the simulator's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from engine.kv.presets import ANIMATIONS
from engine.kv.recording import record
from tests import browser
from tests.block_map_page import page as alone
from tests.block_map_payload import KINDS, payload
from tests.e2e.lab import App, data_folder, wait_for

WAIT_MS = 20_000
SIZE = {"width": 1280, "height": 720}
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
EVERY_STEP = """(map) => {
  const range = map.querySelector('input'), found = [];
  for (let step = 0; step <= Number(range.max); step += 1) {
    range.value = String(step); range.dispatchEvent(new Event('input'));
    found.push([map.dataset.map0, map.dataset.map1]);
  }
  return found;
}"""
INKED = """(canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data
  .reduce((sum, value, at) => sum + (at % 4 === 3 && value > 0 ? 1 : 0), 0)"""


@pytest.fixture(scope="module")
def chromium(browser_path: Path) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser_path, args=list(browser.FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    running = App(data_folder(tmp_path_factory.mktemp("lab") / "data"), LAB_AUTOSTART="0")
    yield running
    running.close()


@pytest.fixture
def still(chromium: Browser) -> Iterator[Page]:
    """A window of somebody who asked for less motion: nothing plays by itself."""
    with chromium.new_context(viewport=SIZE, reduced_motion="reduce") as context:
        context.set_default_timeout(WAIT_MS)
        yield context.new_page()


def opened(page: Page, recording: dict[str, Any], theme: str = "light") -> Locator:
    page.set_content(alone(recording, theme))
    found = page.locator(".block-map")
    expect(found).to_have_attribute("data-frame", re.compile(r"\d+"))
    return found


def scrub(found: Locator, step: int) -> None:
    found.locator("input").evaluate("(e, to) => { e.value = String(to); e.dispatchEvent(new Event('input')); }", step)
    expect(found).to_have_attribute("data-frame", str(step))


def shown(side: Locator) -> dict[str, str]:
    """The numbers under one memory, by their labels."""
    numbers = side.locator(".number")
    return {
        numbers.nth(i).locator(".label").inner_text(): numbers.nth(i).locator(".value").inner_text()
        for i in range(numbers.count())
    }


def percent(share: float) -> str:
    return f"{share * 100:.1f}%" if 0 < share < 0.00995 else f"{int(share * 100 + 0.5)}%"


def expected(recording: dict[str, Any], side: int, step: int) -> dict[str, str]:
    memory = recording["sides"][side]
    series = {name: values[step] for name, values in memory["series"].items()}
    held = memory["blocks"] * memory["unit"] - series["free"]
    numbers = {
        "utilisation": percent(series["tokens"] / held) if held else "—",
        "requests in memory": str(series["running"]),
        "waiting": str(series["waiting"]),
        "finished": str(series["finished"]),
    }
    return numbers | ({"preempted": str(series["preempted"])} if side else {})


def fullest(recording: dict[str, Any]) -> int:
    """The first step in which the paged memory has the most requests."""
    running = recording["sides"][1]["series"]["running"]
    return running.index(max(running))


def test_it_plays_by_itself_and_space_and_arrows_drive_it(chromium: Browser) -> None:
    with chromium.new_context(viewport=SIZE) as context:
        page = context.new_page()
        found = opened(page, payload(steps=1200))
        expect(found).to_have_attribute("data-playing", "true")
        expect(found).not_to_have_attribute("data-frame", "0")
        page.keyboard.press(" ")
        expect(found).to_have_attribute("data-playing", "false")
        scrub(found, 40)
        page.keyboard.press("ArrowRight")
        expect(found).to_have_attribute("data-frame", "41")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        expect(found).to_have_attribute("data-frame", "39")
        page.keyboard.press("End")
        expect(found).to_have_attribute("data-frame", "1199")
        page.keyboard.press("Home")
        expect(found).to_have_attribute("data-frame", "0")


def test_with_less_motion_it_stands_still_at_a_telling_step(still: Page) -> None:
    recording = payload(steps=300)
    found = opened(still, recording)
    expect(found).to_have_attribute("data-playing", "false")
    expect(found).to_have_attribute("data-frame", str(fullest(recording)))
    found.get_by_role("button", name="Play").click()
    expect(found).to_have_attribute("data-playing", "true")


@pytest.mark.parametrize("unit", [1, 16, 24])
def test_the_map_agrees_with_the_recording_at_every_step(still: Page, unit: int) -> None:
    recording = payload(slots=1000, unit=unit, longest=240)
    counts = opened(still, recording).evaluate(EVERY_STEP)
    assert len(counts) == recording["steps"]
    for side, memory in enumerate(recording["sides"]):
        wanted = [
            " ".join(map(str, column)) for column in zip(*(memory["series"][kind] for kind in KINDS), strict=True)
        ]
        assert [count[side] for count in counts] == wanted


@pytest.mark.parametrize("name", ANIMATIONS)
def test_the_map_agrees_with_the_simulator_at_every_step(still: Page, name: str) -> None:
    recording = record(ANIMATIONS[name].config)
    counts = opened(still, recording).evaluate(EVERY_STEP)
    for side, memory in enumerate(recording["sides"]):
        wanted = [
            " ".join(map(str, column)) for column in zip(*(memory["series"][kind] for kind in KINDS), strict=True)
        ]
        assert [count[side] for count in counts] == wanted


def test_hovering_names_the_request_and_both_blocks(still: Page) -> None:
    recording = payload()
    found = opened(still, recording)
    scrub(found, 60)
    overlay = found.locator(".paged .overlay")
    box = overlay.bounding_box()
    assert box
    said = ""
    for share in range(2, 98, 3):
        still.mouse.move(box["x"] + box["width"] * share / 100, box["y"] + box["height"] * 0.3)
        said = found.locator(".tip").inner_text()
        if "logical block" in said:
            break
    match = re.match(r"Request (\d+): logical block (\d+)\nPhysical block (\d+), slot \d+ of 16\n(\d+) of 16", said)
    assert match, said
    request, logical, physical, tokens = map(int, match.groups())
    holds, stays = recording["sides"][1]["holds"], recording["sides"][1]["stays"]
    held = zip(holds["stay"], holds["frame"], holds["logical"], holds["physical"], strict=True)
    (stay,) = {
        stay for stay, frame, to, at in held if (to, at) == (logical, physical) and frame <= 60 < stays["to"][stay]
    }
    assert stays["request"][stay] == request
    context = recording["requests"]["prompt"][request] + 60 - stays["from"][stay]
    assert tokens == min(16, context - logical * 16)
    overlay.click(position={"x": box["width"] * share / 100, "y": box["height"] * 0.3})
    expect(found).to_have_attribute("data-selected", str(request))


def test_a_selected_request_has_its_block_table_drawn(still: Page) -> None:
    found = opened(still, payload())
    scrub(found, 60)
    overlay = found.locator(".paged .overlay")
    assert overlay.evaluate(INKED) == 0
    chip = found.locator(".paged .chip").first
    request = chip.get_attribute("data-request")
    chip.click()
    expect(found).to_have_attribute("data-selected", str(request))
    expect(found.locator(".paged .about")).to_have_text(re.compile(rf"Request {request}: \d+ tokens in \d+ blocks?"))
    assert overlay.evaluate(INKED) > 500
    still.keyboard.press("Escape")
    expect(found).to_have_attribute("data-selected", "")
    assert overlay.evaluate(INKED) == 0


def test_samples_share_blocks_and_are_counted_once(still: Page) -> None:
    recording = record(ANIMATIONS["parallel"].config)
    found = opened(still, recording)
    memory = recording["sides"][1]
    step = memory["stays"]["from"][0] + 10
    scrub(found, step)
    request = memory["stays"]["request"][0]
    found.locator(f".paged .chip[data-request='{request}']").click()
    tables: dict[int, dict[int, int]] = {}
    for stay, frame, logical, physical, count in zip(*memory["holds"].values(), strict=True):
        if memory["stays"]["request"][stay] == request and frame <= step:
            tables.setdefault(stay, {}).update({logical + i: physical + i for i in range(count)})
    blocks = {physical for table in tables.values() for physical in table.values()}
    assert len(blocks) < sum(map(len, tables.values()))
    expect(found.locator(".paged .about")).to_have_text(f"Request {request}: 4 samples in {len(blocks)} blocks")
    expect(found.locator(".contiguous .about")).to_have_text(f"Request {request}: 4 samples in 4 chunks of 256")


def test_events_and_names_stay_text(still: Page) -> None:
    recording = payload()
    recording["requests"]["name"] = [HOSTILE] * len(recording["requests"]["name"])
    for side in recording["sides"]:
        side["title"] = HOSTILE
        side["events"]["text"] = [HOSTILE] * len(side["events"]["text"])
    found = opened(still, recording)
    scrub(found, 60)
    expect(found.locator(".paged .event")).to_have_text(HOSTILE)
    found.locator(".paged .chip").first.click()
    assert found.locator("img").count() == 0
    assert still.title() != "taken"


def test_a_screen_reader_hears_the_step_when_it_stands_still(still: Page) -> None:
    recording = payload()
    found = opened(still, recording)
    scrub(found, 60)
    running = recording["sides"][1]["series"]["running"][60]
    expect(found.locator("[aria-live]")).to_have_text(
        re.compile(rf"step 61 of 300.*Paged: .*{running} requests in memory")
    )
    expect(found.locator(".paged canvas[role=img]")).to_have_attribute("aria-label", re.compile("Reserved"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_in_the_app_everything_fits_above_the_fold_and_shows_the_simulation(
    app: App, chromium: Browser, theme: str
) -> None:
    recording = record(ANIMATIONS["tight"].config)
    with chromium.new_context(viewport=SIZE, reduced_motion="reduce", color_scheme=theme) as context:  # type: ignore[arg-type]
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        wait_for("the app", lambda: _answers(page, f"{app.url}/paged?paged_preset=Tight+memory"), 60)
        found = page.locator(".block-map")
        expect(found).to_have_attribute("data-frame", str(fullest(recording)), timeout=WAIT_MS)
        for step in (0, 100, 321, recording["steps"] - 1):
            scrub(found, step)
            for side in (0, 1):
                assert shown(found.locator(".side").nth(side)) == expected(recording, side, step)
        controls = found.locator(".controls").bounding_box()
        assert controls and controls["y"] + controls["height"] <= SIZE["height"]
        expect(page.get_by_test_id("stException")).to_have_count(0)


def test_another_setting_keeps_the_step(app: App, still: Page) -> None:
    still.goto(f"{app.url}/paged")
    found = still.locator(".block-map")
    expect(found).to_have_attribute("data-playing", "false", timeout=WAIT_MS)
    scrub(found, 100)
    before = found.get_attribute("data-map1")
    still.get_by_role("button", name="Settings").click()
    still.get_by_role("slider", name="Page size (tokens)").press("ArrowRight")
    expect(found).not_to_have_attribute("data-map1", before or "")
    expect(found).to_have_attribute("data-frame", "100")
    expect(still).to_have_url(re.compile("lab_page=32"))


def _answers(page: Page, url: str) -> bool:
    try:
        page.goto(url)
    except Exception:  # not listening yet
        return False
    return True
