"""Pictures of every page, in both themes, of a lab that is running: ``python scripts/screenshots.py OUT [URL]``.

Sends two chat turns first, so that the pictures show real numbers. A comparison has to have run before.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests import browser

SIZE = {"width": 1280, "height": 720}
PAGES = {
    "home": "",
    "compare": "compare",
    "chat": "chat",
    "load": "load",
    "tune": "tune",
    "monitor": "monitor",
    "paged": "paged",
    "capacity": "capacity",
    "paper": "paper",
    "blocks": "blocks",
    "server": "server",
    "runs": "runs",
}
TURNS = ("Why is the sky blue?", "Say that again in one sentence.")
# What is drawn last on a page, where there is such a thing.
DRAWN_LAST = {
    "compare": (".race .lane", ".js-plotly-plot"),
    "chat": (".js-plotly-plot",),
    "paged": (".block-map[data-frame]",),
    "paper": (".js-plotly-plot",),
}
READY_MS = 30_000
ANSWER_MS = 60_000
SETTLE_MS = 1500


def main(out: Path, url: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser.find().path, args=list(browser.FLAGS))
        conversation = converse(chromium, url)
        for theme in ("light", "dark"):
            page = chromium.new_context(viewport=SIZE, color_scheme=theme).new_page()
            for name, path in PAGES.items():
                open_page(page, conversation if name == "chat" else f"{url}/{path}")
                for selector in DRAWN_LAST.get(name, ()):
                    page.locator(selector).first.wait_for(timeout=READY_MS)
                page.wait_for_timeout(SETTLE_MS)
                page.screenshot(path=out / f"{name}-{theme}.png")


def converse(chromium: Browser, url: str) -> str:
    """Two turns of chat; returns the address of the conversation."""
    page = chromium.new_context(viewport=SIZE).new_page()
    open_page(page, f"{url}/chat")
    for turn in TURNS:
        box = page.get_by_test_id("stChatInputTextArea")
        box.fill(turn)
        box.press("Enter")
        page.get_by_role("button", name="Stop").and_(page.locator(":enabled")).wait_for(timeout=READY_MS)
        page.locator("[data-testid=stChatInputTextArea]:enabled").wait_for(timeout=ANSWER_MS)
    return page.url


def open_page(page: Page, url: str) -> None:
    page.goto(url)
    page.get_by_test_id("stAppViewContainer").wait_for(timeout=READY_MS)
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for(timeout=READY_MS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8501")
