"""A report in a real browser, offline: charts drawn, no request, and nothing of others runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.report import export
from tests import browser
from tests.reports import compare_run, hostile, load_run

pytestmark = pytest.mark.e2e
REPORTS = {
    "hostile load": [hostile("load")],
    "hostile compare": [hostile("compare")],
    "hostile chat": [hostile("chat")],
    "hostile pair": [hostile("load"), load_run()],
    "pair": [compare_run("a", (30.0, 31.0, 32.0)), compare_run("b", (40.0, 41.0, 42.0))],
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_opens_offline(name: str, tmp_path: Path) -> None:
    found = browser.find()
    if found.path is None:
        pytest.skip(found.reason)
    from playwright.sync_api import sync_playwright

    path = tmp_path / "report.html"
    path.write_text(export(REPORTS[name], "html", 1.5), encoding="utf-8")
    requests: list[str] = []
    problems: list[str] = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(found.path), args=list(browser.FLAGS))
        try:
            page = chromium.new_context(offline=True).new_page()
            page.on("request", lambda request: requests.append(request.url))
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("console", lambda message: problems.append(message.text))
            page.on("dialog", lambda dialog: problems.append(dialog.message))
            page.goto(path.as_uri())
            expected = page.locator("[data-figure]").count()
            page.wait_for_function(
                "n => document.querySelectorAll('[data-figure] .main-svg').length >= n", arg=expected
            )
            drawn = page.locator("[data-figure] :is(.scatterlayer, .barlayer) path").count()
            hacked = page.evaluate("'hacked' in window")
            pdf = page.pdf()
        finally:
            chromium.close()
    assert requests == [path.as_uri()]
    assert problems == []
    assert not hacked
    assert expected > 0 and drawn > 0
    assert pdf.startswith(b"%PDF")
