"""The real app in a fresh process, and a first visitor who comes by a deep link."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import FLAGS
from tests.ui.page import ROOT

READY_TIMEOUT_S = 90
SHOWN_TIMEOUT_MS = 20_000


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/_stcore/health", timeout=5):
            return True
    except OSError:
        return False


@pytest.fixture
def app(data_dir: Path, tmp_path: Path) -> Iterator[str]:
    """Address of the launcher's app: services without a server, no browser opened by itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "app.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "components.launch"],
            cwd=ROOT,
            env=os.environ | {"LAB_PORT": str(port), "STREAMLIT_SERVER_HEADLESS": "true"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    give_up_s = time.monotonic() + READY_TIMEOUT_S
    try:
        while not answers(address):
            assert process.poll() is None and time.monotonic() < give_up_s, log.read_text()
            time.sleep(0.2)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_first_visitor_of_a_deep_link_gets_the_whole_app(app: str, browser_path: Path) -> None:
    """Streamlit would run pages/chat.py alone until somebody has opened the first page."""
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=list(FLAGS))
        try:
            page = browser.new_page()
            page.goto(f"{app}/chat?chat=shared")
            expect(page.get_by_role("heading", name="Chat")).to_be_visible(timeout=SHOWN_TIMEOUT_MS)
            expect(page.get_by_text("Server stopped")).to_be_visible(timeout=SHOWN_TIMEOUT_MS)
            expect(page.get_by_role("link", name="HF vs vLLM")).to_be_visible(timeout=SHOWN_TIMEOUT_MS)
            expect(page).to_have_title("vLLM Lab", timeout=SHOWN_TIMEOUT_MS)
            assert "chat=shared" in page.url
        finally:
            browser.close()
