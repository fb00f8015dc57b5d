"""Dashboard: the server, the GPU and the machine over the last minutes, and what was measured so far."""

from __future__ import annotations

import streamlit as st

from components import errors, monitor_runs, monitor_view
from components.services import lab
from engine.server.state import ServerState
from engine.telemetry.alerts import DEFAULT_SLO_TTFT_MS, Limits
from engine.telemetry.panels import Source
from engine.telemetry.window import step_of

FASTEST_POLL_S, IDLE_POLL_S = 2, 10
MACHINE = (Source.GPU, Source.HOST)
services = lab()
server = services.supervisor.snapshot()

with st.container(horizontal=True, vertical_alignment="center"):
    st.title("Dashboard", anchor=False, width="content")
    st.badge("Measured: this server, now", color="green")
    st.space("stretch")
    slo_ms = st.number_input(
        "TTFT limit (ms)",
        1.0,
        3_600_000.0,
        DEFAULT_SLO_TTFT_MS,
        100.0,
        format="%.0f",
        key="monitor_ttft",
        bind="query-params",
        help="An alert holds while the p95 is above it.",
        width=150,
    )
    chosen = st.segmented_control(
        "Window",
        list(monitor_view.WINDOWS),
        default=monitor_view.DEFAULT_WINDOW,
        required=True,
        key="monitor_window",
        bind="query-params",
    )
window_s = monitor_view.WINDOWS[chosen or monitor_view.DEFAULT_WINDOW]


def live() -> None:
    now = services.telemetry.snapshot(window_s, Limits(slo_ms))
    spoke = any(point.get("running") is not None for point in now.window.points)
    if now.ready or spoke:
        monitor_view.numbers(now)
        monitor_view.alerts(now)
        monitor_view.charts(now, (Source.SERVER, *MACHINE))
    else:
        monitor_view.charts(now, MACHINE)
    monitor_view.how_it_is_made(now)
    monitor_view.events(now)


if server.state == ServerState.STARTING:
    st.info("The server is starting. Its lines begin when it is ready.", icon=":material/hourglass_top:")
    st.page_link("pages/server.py", label="See how far it is", icon=":material/dns:")
elif not server.ready:
    st.info(
        "No server is running: only the machine is shown. Start one, then run a load test to see it work.",
        icon=":material/info:",
    )
    st.page_link("pages/server.py", label="Start or attach one", icon=":material/dns:")
st.fragment(live, run_every=max(FASTEST_POLL_S, step_of(window_s)) if server.ready else IDLE_POLL_S)()
with errors.shown():
    monitor_runs.summary(services.store)
