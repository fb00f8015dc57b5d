"""How heavy the app is: its memory after every page was seen, how long Home's script takes, what it has loaded,
and what it takes of the cores while a page follows the start of a real server.

    python -m benchmarks.app_size

Starts the app, opens every page in a real browser (twice, so that all is warm) and stays on the Server page, which
is redrawn every second; then times reruns of Home under Streamlit's own test runner. One JSON document on stdout.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil
from playwright.sync_api import sync_playwright

from engine.config import Settings
from engine.server.life import free_port
from tests import browser

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("", "compare", "chat", "server", "runs")
TARGET_BYTES = 350 * 1024**2
TARGET_HOME_MS = 300.0
RUNS = 9
WATCHED_S = 10.0
HEAVY = re.compile(r"/(torch|vllm|transformers)/")
TIMER = """
import json, sys, time
from streamlit.testing.v1 import AppTest
app = AppTest.from_file({path!r}, default_timeout=60)
app.run()
times = []
for _ in range({runs}):
    began = time.perf_counter()
    app.run()
    times.append((time.perf_counter() - began) * 1000)
assert not app.exception, app.exception
heavy = sorted({{name.split(".")[0] for name in sys.modules}} & {{"torch", "vllm", "transformers"}})
print(json.dumps({{"times_ms": times, "heavy_modules": heavy}}))
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").symlink_to(Settings.from_env().models_dir)
        port = free_port()
        environment = os.environ | {
            "LAB_DATA_DIR": folder,
            "LAB_AUTOSTART": "1",
            "LAB_PORT": str(port),
            "STREAMLIT_SERVER_HEADLESS": "1",
        }
        began = time.perf_counter()
        app = subprocess.Popen(
            [sys.executable, "-m", "components.launch"], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
        )
        try:
            process = psutil.Process(app.pid)
            start_s, share = visit(f"http://127.0.0.1:{port}", began, process)
            memory = process.memory_info().rss
            heavy_files = sorted({found[1] for m in process.memory_maps() if (found := HEAVY.search(m.path))})
        finally:
            app.terminate()
            app.wait()
        environment |= {"LAB_AUTOSTART": "0"}
        code = TIMER.format(path=str(ROOT / "app.py"), runs=RUNS)
        timed = json.loads(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True))
    home_ms = median(timed["times_ms"])
    answer = {
        "app_memory_bytes": memory,
        "target_bytes": TARGET_BYTES,
        "home_script_ms": home_ms,
        "target_home_ms": TARGET_HOME_MS,
        "first_page_s": start_s,
        "cores_while_watching": share,
        "heavy_libraries": heavy_files,
        "heavy_modules": timed["heavy_modules"],
    }
    answer["ok"] = (
        memory < TARGET_BYTES and home_ms < TARGET_HOME_MS and not heavy_files and not answer["heavy_modules"]
    )
    print(json.dumps(answer, indent=2))
    return 0 if answer["ok"] else 1


def visit(url: str, began: float, app: psutil.Process) -> tuple[float, float]:
    """Open every page twice, then watch the server start.

    Returns seconds from process start to Home's first full picture, and the cores that the app took while watched.
    """
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser.find().path, args=list(browser.FLAGS))
        page = chromium.new_page()
        while True:
            try:
                page.goto(url)
                break
            except Exception:
                time.sleep(0.05)
        page.locator("h1").first.wait_for()
        first_s = time.perf_counter() - began
        for path in PAGES * 2:
            page.goto(f"{url}/{path}")
            page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
        page.goto(f"{url}/server")
        before, since = app.cpu_times(), time.perf_counter()
        time.sleep(WATCHED_S)
        after, watched_s = app.cpu_times(), time.perf_counter() - since
        chromium.close()
    return first_s, (after.user + after.system - before.user - before.system) / watched_s


if __name__ == "__main__":
    sys.exit(main())
