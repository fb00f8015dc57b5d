"""What every test gets: a data folder of its own, and a browser where one is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import browser
from tests import prometheus_tools as prometheus

LAB_VARIABLES = ("LAB_DEVICE", "LAB_PORT", "HF_TOKEN")


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder; no test touches the user's own, starts a server by itself or sees a token."""
    folder = tmp_path / "data"
    monkeypatch.setenv("LAB_DATA_DIR", str(folder))
    monkeypatch.setenv("LAB_AUTOSTART", "0")
    for name in LAB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture(scope="session")
def browser_path() -> Path:
    """A real Chromium; without one the test is skipped, or fails under CI=true."""
    found = browser.find()
    if found.path is None:
        if browser.in_ci():
            pytest.fail(found.reason)
        pytest.skip(found.reason)
    return found.path


@pytest.fixture(scope="session")
def prometheus_tools() -> prometheus.Tools:
    """A real Prometheus; without one the test is skipped, or fails under CI=true."""
    found = prometheus.find()
    if found.prometheus is None:
        if browser.in_ci():
            pytest.fail(found.reason)
        pytest.skip(found.reason)
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by folder, and run the quick ones first."""
    for item in items:
        for folder in ("ui", "e2e"):
            if folder in item.path.parent.parts:
                item.add_marker(folder)
    items.sort(key=lambda item: item.get_closest_marker("e2e") is not None)
