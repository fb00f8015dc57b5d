"""The dashboard's parts: the few big numbers, what deserves a look, the charts, and the list of what happened."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from types import ModuleType
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from components import html
from components.format import UNKNOWN, millis, number, percent, plain, with_unit
from engine.telemetry.panels import MEASURED_SO, PANELS, Panel, Source
from engine.telemetry.sampler import SILENT, TelemetrySnapshot
from engine.telemetry.window import Window

WINDOWS = {"1 min": 60, "5 min": 300, "15 min": 900, "1 h": 3600, "6 h": 21600}
DEFAULT_WINDOW = "5 min"
MOST_EVENTS = 12
MOST_SPARKS = 60


def zone_of_viewer() -> tzinfo:
    """The browser's time zone; UTC where it isn't known."""
    try:
        return ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")


def numbers(now: TelemetrySnapshot) -> None:
    """What a room looks at: speed, load and memory now, latencies of the window."""
    window, newest = now.window, now.window.now
    words = window_words(window)

    def value(key: str) -> float | None:
        return newest.get(key) if newest else None

    running, waiting = value("running"), value("waiting")
    kv = value("kv_usage_percent")
    cells = (
        ("Generated", with_unit(value("generation_tok_s"), "tok/s"), "generation_tok_s", "The last five seconds."),
        (
            "Running · waiting",
            f"{number(running)} · {number(waiting)}" if running is not None else UNKNOWN,
            "running",
            "Requests now.",
        ),
        ("KV cache in use", percent(None if kv is None else kv / 100), "kv_usage_percent", "Blocks of requests now."),
        (
            f"TTFT p95, {words}",
            millis(window.latencies_ms.get("ttft_p95_ms")),
            "ttft_p95_ms",
            f"Of all requests of the last {words}. {MEASURED_SO}",
        ),
        (
            f"E2E p95, {words}",
            millis(window.latencies_ms.get("e2e_p95_ms")),
            "e2e_p95_ms",
            f"Of all requests of the last {words}. {MEASURED_SO}",
        ),
    )
    for column, (label, text, key, meaning) in zip(st.columns(len(cells)), cells, strict=True):
        column.metric(label, text, chart_data=sparks(window, key), chart_type="area", border=True, help=meaning)


def sparks(window: Window, key: str) -> list[float] | None:
    """The newest values, up to the first gap: a line would be drawn across it."""
    found: list[float] = []
    for point in reversed(window.points[-MOST_SPARKS:]):
        value = point.get(key)
        if value is None:
            break
        found.append(value)
    return found[::-1] if len(found) > 1 else None


def window_words(window: Window) -> str:
    return next((words for words, seconds in WINDOWS.items() if seconds == window.seconds), f"{window.seconds} s")


def alerts(now: TelemetrySnapshot) -> None:
    """Those that hold now, each with what to do, in one block: the charts stay about where they are."""
    if now.silent:
        st.warning(SILENT, icon=":material/sync_problem:")
    newest = now.window.now
    held = [span.alert for span in now.spans if newest is not None and span.to_s >= newest.at_s]
    if held:
        words = "\n\n".join(f"**{alert.title}.** {plain(alert.advice)}" for alert in held)
        st.warning(words, icon=":material/warning:")


def charts(now: TelemetrySnapshot, sources: Sequence[Source]) -> None:
    """Two columns on one time axis, events and alerts in each."""
    figures = _figures()
    zone = zone_of_viewer()
    shown = [panel for panel in PANELS if panel.source in sources and _is_shown(panel, now, figures)]
    for left in range(0, len(shown), 2):
        for column, panel in zip(st.columns(2, gap="medium"), shown[left : left + 2], strict=False):
            with column:
                _chart(panel, now, figures, zone)


def _is_shown(panel: Panel, now: TelemetrySnapshot, figures: ModuleType) -> bool:
    """The server's panels keep their place; those of the machine only where it tells."""
    return panel.source == Source.SERVER or bool(figures.has_values(panel, now.window))


def _chart(panel: Panel, now: TelemetrySnapshot, figures: ModuleType, zone: tzinfo) -> None:
    empty = not figures.has_values(panel, now.window)
    note = " :gray-badge[No request in this window]" if empty and panel.reason else ""
    st.markdown(f"**{panel.title}**{note}", help=panel.help or None)
    st.plotly_chart(
        figures.panel_figure(panel, now.window, now.marks, now.spans, zone, now.gpu_names),
        key=f"monitor_chart_{panel.key}",
        config={"displayModeBar": False},
        alt=figures.panel_alt(panel, now.window, now.gpu_names),
    )


def how_it_is_made(now: TelemetrySnapshot) -> None:
    if now.notice:
        st.caption(plain(now.notice))
    if not now.ready:
        st.caption("Without a server the machine is looked at every five seconds.")
        return
    window = now.window
    cost = "" if now.cost_cores is None else f" Collecting takes {percent(now.cost_cores)} of one core."
    peaks = f" A point is the highest value of its {window.step_s} s." if window.step_s > 1 else ""
    st.caption(
        plain(
            f"One reading a second (every two while something is measured), shared by all viewers.{cost}{peaks} "
            f"Latency lines: the {window.latency_lookback_s} s before each point. Red: an alert held. "
            "A gap: the server said nothing."
        )
    )


def events(now: TelemetrySnapshot) -> None:
    """What happened in the window, newest first."""
    zone = zone_of_viewer()
    rows = [(mark.at_s, mark.text, "") for mark in now.marks]
    rows += [(span.from_s, span.alert.title, span.alert.advice) for span in now.spans]
    newest = sorted(rows, reverse=True)[:MOST_EVENTS]
    if not newest:
        return
    with st.expander(f"What happened ({len(rows)})", icon=":material/event_note:", key="monitor_events"):
        html.table(
            ("When", "What", "What to do"),
            [
                (f"{datetime.fromtimestamp(at_s, zone):%H:%M:%S}", what, advice or UNKNOWN)
                for at_s, what, advice in newest
            ],
        )


def _figures() -> ModuleType:
    """Plotly takes a while to import: only where a chart is drawn."""
    from components import monitor_figures

    return monitor_figures
