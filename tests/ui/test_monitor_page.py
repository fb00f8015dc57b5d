"""The dashboard in each of its states."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from streamlit.testing.v1 import AppTest

from engine.store import Run
from engine.telemetry.alerts import Limits
from engine.telemetry.marks import Mark, MarkKind
from engine.telemetry.panels import PANELS, Source
from engine.telemetry.sampler import TelemetrySnapshot
from engine.telemetry.window import look
from tests.ui.conftest import OpenPage
from tests.ui.fakes import READY, STARTING
from tests.ui.monitored import T0, Maker, busy, idle, monitored, quiet, with_gpu
from tests.ui.page import HOSTILE, assert_no_live_markup, errors, keys, links, metrics, said, table


def figures(at: AppTest) -> dict[str, dict[str, Any]]:
    """By panel."""
    return {
        node.key.removeprefix("monitor_chart_"): json.loads(node.proto.spec)
        for node in at.get("plotly_chart")
        if node.key and node.key.startswith("monitor_chart_")
    }


def test_without_a_server_the_machine_is_shown_and_what_to_do(open_page: OpenPage) -> None:
    at = open_page(monitored(idle), "monitor")
    assert not at.exception and not metrics(at)
    assert set(figures(at)) == {"cpu", "memory"}
    assert "No server is running" in said(at)
    assert {"Start or attach one", "Run a load test", "Measure HF against vLLM", "Try other settings"} <= links(at)


def test_while_the_server_starts_it_says_so(open_page: OpenPage) -> None:
    at = open_page(monitored(idle, STARTING), "monitor")
    assert "The server is starting" in said(at) and not at.exception


def test_a_server_that_nobody_asks_has_no_latencies(open_page: OpenPage) -> None:
    at = open_page(monitored(quiet), "monitor")
    shown = metrics(at)
    assert shown["TTFT p95, 5 min"] == "—" and shown["E2E p95, 5 min"] == "—"
    assert shown["Running · waiting"] == "0 · 0"
    assert "No request in this window" in said(at)
    assert not at.warning


def test_a_busy_server_in_numbers_lines_and_events(open_page: OpenPage) -> None:
    at = open_page(monitored(busy), "monitor")
    shown = metrics(at)
    assert shown["Generated"] == "300 tok/s"
    assert shown["Running · waiting"] == "8 · 11"
    assert shown["TTFT p95, 5 min"] == "390 ms"  # all in the bucket from 0.2 to 0.4 s
    server = {panel.key for panel in PANELS if panel.source == Source.SERVER}
    assert set(figures(at)) == server | {"cpu", "memory"}
    for figure in figures(at).values():
        texts = [one["text"] for one in figure["layout"]["annotations"]]
        assert texts == ["Server ready", "4 users", "16 users"]
    assert "4 users" in said(at) and "Collecting takes 0.4% of one core" in said(at)


def test_all_charts_have_one_time_axis_and_units(open_page: OpenPage) -> None:
    shown = figures(open_page(monitored(busy), "monitor"))
    assert len({json.dumps(figure["layout"]["xaxis"]["range"]) for figure in shown.values()}) == 1
    assert all(figure["layout"]["yaxis"]["title"]["text"] for figure in shown.values())


def test_alerts_that_hold_now_come_with_advice_and_a_shade(open_page: OpenPage) -> None:
    at = open_page(monitored(busy), "monitor", monitor_ttft="200")
    words = " ".join(warning.value for warning in at.warning)
    assert "Queue is growing" in words and "KV cache nearly full" in words and "TTFT above the limit" in words
    shown = figures(at)
    for panel, shaded in (("requests", True), ("kv", True), ("ttft", True), ("tokens", False)):
        rectangles = [one for one in shown[panel]["layout"]["shapes"] if one["type"] == "rect"]
        assert bool(rectangles) == shaded, panel


def test_window_and_limit_come_from_the_address(open_page: OpenPage) -> None:
    lab = monitored(busy)
    at = open_page(lab, "monitor", monitor_window="1 min", monitor_ttft="250")
    assert lab.telemetry.asked[-1] == (60, Limits(250.0))
    assert "TTFT p95, 1 min" in metrics(at)


def test_a_gpu_is_shown_where_there_is_one_and_what_it_refuses_is_not(open_page: OpenPage) -> None:
    shown = set(figures(open_page(monitored(with_gpu), "monitor")))
    assert {"gpu", "gpu_memory", "gpu_temperature"} <= shown and "gpu_power" not in shown


def test_a_silent_server_is_said(open_page: OpenPage) -> None:
    at = open_page(monitored(lambda *asked: replace(busy(*asked), silent=True)), "monitor")
    assert any("does not answer at /metrics" in warning.value for warning in at.warning)


def test_the_first_second_is_no_fault(open_page: OpenPage) -> None:
    nothing: Maker = lambda window_s, _: replace(busy(60, Limits()), window=look([], window_s, T0), marks=(), spans=())  # noqa: E731
    at = open_page(monitored(nothing), "monitor")
    assert not at.exception and metrics(at)["Generated"] == "—"


def test_text_from_outside_is_text(open_page: OpenPage) -> None:
    def hostile(window_s: int, limits: Limits) -> TelemetrySnapshot:
        return replace(busy(window_s, limits), notice=HOSTILE)

    run = Run("1", "load", HOSTILE, "done", "2026-12-02T05:00:00+00:00", environment={"summary": HOSTILE})
    at = open_page(monitored(hostile, READY, [run]), "monitor")
    assert not at.exception
    assert_no_live_markup(at)


def test_an_events_words_are_text_in_charts_and_table(open_page: OpenPage) -> None:
    def hostile(window_s: int, limits: Limits) -> TelemetrySnapshot:
        return replace(busy(window_s, limits), marks=(Mark(T0 + 50, MarkKind.SERVER, HOSTILE),))

    at = open_page(monitored(hostile), "monitor")
    assert "<script" not in json.dumps(figures(at))
    assert HOSTILE in table(at)
    assert not any("<script" in node.proto.body for node in at.get("html"))


def test_damaged_runs_do_not_break_it(open_page: OpenPage) -> None:
    runs = [
        Run(str(number), kind, "t", "done", "2026-12-02T05:00:00+00:00", results={"levels": 3, "trial": 7, "ratio": 1})
        for number, kind in enumerate(("load", "tune", "compare"))
    ]
    at = open_page(monitored(quiet, READY, runs), "monitor")
    assert not at.exception and not errors(at)


def test_it_is_reached_from_the_menu(open_page: OpenPage) -> None:
    at = open_page(monitored(idle), "monitor")
    assert not at.exception
    assert "monitor_window" in keys(at)
