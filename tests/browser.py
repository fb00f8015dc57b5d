"""A browser for the tests: an installed Chromium or Chrome, else Playwright's own, else Debian's package.

``python -m tests.browser`` finds or installs one and prints its path. Exit code 1 only under ``CI=true``
without a browser; elsewhere the browser tests are skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
INSTALL_TIMEOUT_S = 300


@dataclass(frozen=True)
class Browser:
    """``path`` of an executable, or None and the ``reason`` why there is none."""

    path: Path | None
    reason: str = ""


def find() -> Browser:
    """What is installed already; downloads nothing."""
    for name in NAMES:
        if found := shutil.which(name):
            return Browser(Path(found))
    if own := _playwrights_own():
        return Browser(own)
    return Browser(None, "No Chromium or Chrome here; `python -m tests.browser` installs one.")


def find_or_install() -> Browser:
    """An installed browser, else a newly installed one, else why each way failed."""
    browser = find()
    if browser.path:
        return browser
    reasons = []
    for name, install in _ways().items():
        print(f"      no browser yet, trying {name}", flush=True)
        failure = install()
        browser = find()
        if browser.path:
            return browser
        reasons.append(f"{name}: {failure or 'installed, but no browser was found after it'}")
    return Browser(None, "No Chromium or Chrome here. " + "; ".join(reasons))


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true")


def _ways() -> dict[str, Callable[[], str]]:
    ways: dict[str, Callable[[], str]] = {"Playwright's own": _install_playwrights}
    if os.geteuid() == 0 and shutil.which("apt-get"):
        ways["Debian's package"] = _install_debians
    return ways


def _install_playwrights() -> str:
    return _failure([sys.executable, "-m", "playwright", "install", "chromium"])


def _install_debians() -> str:
    return _failure(["apt-get", "update", "-q"]) or _failure(
        ["apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
    )


def _playwrights_own() -> Path | None:
    """The browser Playwright downloaded, wherever its settings say; None if it has none (or there is no Playwright)."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return path if path.is_file() else None


def _failure(command: list[str]) -> str:
    """Run it; empty when it worked, else the last line it said."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if not done.returncode:
        return ""
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"


def main() -> int:
    browser = find_or_install()
    if browser.path:
        print(f"      {browser.path}")
        return 0
    print(f"      {browser.reason} The browser tests {'fail' if in_ci() else 'are skipped'}.")
    return 1 if in_ci() else 0


if __name__ == "__main__":
    sys.exit(main())
