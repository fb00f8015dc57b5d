"""Opens a page of the real app on scripted services."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from streamlit.runtime.pages_manager import PagesManager
from streamlit.testing.v1 import AppTest, app_test

from components import services
from tests.ui.fakes import FakeLab
from tests.ui.page import ROOT, TIMEOUT_S

OpenPage = Callable[..., AppTest]


@pytest.fixture(autouse=True)
def own_services() -> Iterator[None]:
    """Whatever a test opens is forgotten after it."""
    yield
    services.set_factory(services._open)


class RouterPages(PagesManager):
    """What the launcher arranges: pages/ belongs to the router. AppTest forgets that before every run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        PagesManager.uses_pages_directory = False


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> OpenPage:
    """``open_page(lab, "chat", chat="id")``: a page through the router, with a query string."""
    monkeypatch.setattr(app_test, "PagesManager", RouterPages)
    monkeypatch.setattr(PagesManager, "uses_pages_directory", False)

    def opened(lab: FakeLab, page: str = "home", **query: str) -> AppTest:
        services.set_factory(lambda: lab)
        monkeypatch.setattr("engine.environment.detect_hardware", lambda _: lab.machine or lab.environment.hardware)
        at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=TIMEOUT_S)
        if page != "home":
            at.run().switch_page(f"pages/{page}.py")
        at.query_params.update(query)
        return at.run()

    return opened


@pytest.fixture
def run_page() -> OpenPage:
    """``run_page(lab, "server")``: a page's script by itself, without the router and the frame."""

    def run(lab: FakeLab, page: str, **query: str) -> AppTest:
        services.set_factory(lambda: lab)
        at = AppTest.from_file(str(ROOT / "pages" / f"{page}.py"), default_timeout=TIMEOUT_S)
        at.query_params.update(query)
        return at.run()

    return run
