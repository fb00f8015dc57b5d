"""Each alert at its threshold, when it held, and that the table of panels and alerts holds together."""

from __future__ import annotations

import pytest

from engine.telemetry.alerts import ALERTS, Limits, spans
from engine.telemetry.panels import PANELS, Source
from engine.telemetry.points import Point


def held(key: str, *values: tuple[float, dict[str, float | None]], limits: Limits | None = None):
    points = [Point(at_s, found) for at_s, found in values]
    return [(span.from_s, span.to_s) for span in spans(points, limits) if span.alert.key == key]


@pytest.mark.parametrize(
    ("alert", "key", "below", "above"),
    [
        ("kv_nearly_full", "kv_usage_percent", 90.0, 90.1),
        ("preemptions", "preemptions_per_s", 0.0, 0.2),
        ("ttft_above_slo", "ttft_p95_ms", 1000.0, 1001.0),
        ("gpu_memory_nearly_full", "gpu_memory_percent:x", 98.0, 98.5),
        ("client_bound", "client_busy_cores", 0.9, 0.95),
    ],
)
def test_it_holds_above_its_limit_only(alert: str, key: str, below: float, above: float) -> None:
    times = [(float(s), {key: value}) for s, value in enumerate([below, above, above, below, None, above])]
    assert held(alert, *times) == [(1.0, 2.0), (5.0, 5.0)]


def test_the_limit_of_ttft_is_chosen() -> None:
    point = (0.0, {"ttft_p95_ms": 300.0})
    assert held("ttft_above_slo", point, limits=Limits(slo_ttft_ms=200)) == [(0.0, 0.0)]
    assert held("ttft_above_slo", point) == []


def test_a_queue_grows_when_more_wait_than_half_a_minute_ago() -> None:
    growing = [(float(s), {"waiting": float(s)}) for s in range(0, 61, 10)]
    assert held("queue_growing", *growing) == [(30.0, 60.0)]
    steady = [(float(s), {"waiting": 5.0}) for s in range(0, 61, 10)]
    assert held("queue_growing", *steady) == []


def test_nothing_known_is_no_alert() -> None:
    assert spans([Point(float(s)) for s in range(100)]) == ()
    assert spans([]) == ()


def test_every_alert_is_marked_on_a_panel_that_there_is() -> None:
    assert {alert.panel for alert in ALERTS} <= {panel.key for panel in PANELS}


def test_what_is_of_the_server_has_a_query() -> None:
    for panel in PANELS:
        assert panel.unit and panel.title
        for line in panel.lines:
            query = line.query("1m")
            assert "$" not in query and (query or panel.source != Source.SERVER)
    keys = [line.key for panel in PANELS for line in panel.lines]
    assert len(keys) == len(set(keys))
