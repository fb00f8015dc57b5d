"""Fleet: nothing yet, two targets and their sum, one that doesn't answer, and text from outside."""

from __future__ import annotations

from typing import Any

import pytest

from engine.dialects import Detected, by_key
from engine.errors import ConfigError
from engine.fleet import FleetSnapshot, Moment, TargetView
from engine.server.state import ServerSnapshot
from engine.telemetry.prometheus import ServerMetrics
from tests.ui import fakes
from tests.ui.conftest import OpenPage
from tests.ui.page import HOSTILE, assert_no_live_markup, errors, labels, press, said

BUSY = Moment(
    1000.0, ServerMetrics(running=8, waiting=3, kv_cache_usage=0.92, preemptions=4, engine="vllm"), 120.0, 340.0
)
QUIET = Moment(1000.0, ServerMetrics(running=1, waiting=0, engine="llamacpp"), None, 60.0)
ONE = TargetView("gpu-1", "http://gpu-1:8000/v1", Detected(by_key("vllm"), "0.32.0"), "", (BUSY,))
TWO = TargetView("laptop", "http://laptop:8080/v1", Detected(by_key("llamacpp")), "", (QUIET,))
GONE = TargetView("gone", "http://gone/v1", None, "No server answers at gone.", (Moment(1000.0, None),))


class FakeFleet:
    """Shows what it is given, and notes what it was asked."""

    def __init__(self, *targets: TargetView) -> None:
        self.targets = targets
        self.added: list[tuple[str, str, str]] = []
        self.removed: list[str] = []
        self.refuses = ""

    def look(self) -> FleetSnapshot:
        return FleetSnapshot(self.targets)

    def add(self, base_url: str, name: str = "", api_key: str = "") -> str:
        if self.refuses:
            raise ConfigError(self.refuses, "Try another.")
        self.added.append((base_url, name, api_key))
        return name

    def remove(self, name: str) -> None:
        self.removed.append(name)


def lab_with(*targets: TargetView, server: ServerSnapshot = fakes.STOPPED) -> Any:
    lab: Any = fakes.make_lab(server)
    lab.fleet = FakeFleet(*targets)
    return lab


def test_nothing_yet(open_page: OpenPage) -> None:
    at = open_page(lab_with(), "fleet")
    assert "Add the address of a server" in said(at) and not at.exception
    assert "Remove" not in said(at) and not at.metric


def test_one_row_each_and_the_sum(open_page: OpenPage) -> None:
    at = open_page(lab_with(ONE, TWO), "fleet")
    shown = {metric.label: metric.value for metric in at.metric}
    assert shown == {
        "Targets answering": "2 of 2",
        "Generated tok/s, sum": "400",
        "Running, sum": "9",
        "Waiting, sum": "3",
        "Fullest KV cache": "92.0%",
    }
    text = said(at)
    assert "gpu-1" in text and "vLLM 0.32.0" in text and "laptop" in text and "llama.cpp" in text


def test_a_gap_is_no_zero(open_page: OpenPage) -> None:
    at = open_page(lab_with(GONE), "fleet")
    assert {metric.value for metric in at.metric} == {"0 of 1", "—"}
    assert "No server answers at gone." in said(at)


def test_adding_and_removing(open_page: OpenPage) -> None:
    lab = lab_with(ONE)
    at = open_page(lab, "fleet")
    at.text_input(key="fleet_url").input("10.0.0.5:8000")
    at.text_input(key="fleet_name").input("five")
    at.text_input(key="fleet_key").input("secret")
    at = press(at, "Add")
    assert lab.fleet.added == [("10.0.0.5:8000", "five", "secret")]
    assert "secret" not in said(at)
    press(at, "gpu-1")
    assert lab.fleet.removed == ["gpu-1"]


def test_what_is_refused_is_said(open_page: OpenPage) -> None:
    lab = lab_with()
    lab.fleet.refuses = f"{HOSTILE} is not a base URL."
    at = press(open_page(lab, "fleet"), "Add")
    assert any("is not a base URL" in error for error in errors(at))
    assert_no_live_markup(at)


@pytest.mark.parametrize("ready", [True, False])
def test_the_labs_own_server_is_offered_while_it_runs(open_page: OpenPage, ready: bool) -> None:
    lab = lab_with(server=fakes.READY if ready else fakes.STOPPED)
    assert ("Add the lab's server" in labels(open_page(lab, "fleet"))) == ready


def test_text_from_outside_stays_text(open_page: OpenPage) -> None:
    """In the chart only tags could be markup; the table and the notes see all of HOSTILE."""
    name = "<script>alert(1)</script>"
    hostile = TargetView(name, "http://x/v1", Detected(by_key("vllm"), HOSTILE), HOSTILE, (BUSY,))
    assert_no_live_markup(open_page(lab_with(hostile), "fleet"))
