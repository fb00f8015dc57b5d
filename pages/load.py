"""Load test: how many users, how fast for each of them, and where it stops paying."""

from __future__ import annotations

import streamlit as st

from components import load_command, load_downloads, load_form, load_live, load_results
from components.format import plain
from components.load_shown import Shown
from components.services import lab
from components.swim_lanes import swim_lanes
from engine.load.results import LoadSnapshot, LoadState

POLL_S = 1.0  # screen and measurement share the cores; between two looks the browser draws by its own clock
services = lab()
snapshot = services.load.snapshot()
server = services.supervisor.snapshot()


def live() -> None:
    """Progress, Cancel, lanes and the table that fills up; polled while the test runs."""
    now = services.load.snapshot()
    if not now.running:
        st.rerun()
    load_live.show(services, now)


def outcome(now: LoadSnapshot) -> None:
    """How it ended, when it did not simply end well: an error of a finished one is that it wasn't saved."""
    if now.state == LoadState.FAILED or now.error:
        st.error(f"**{plain(now.error or 'The load test failed.')}**\n\n{plain(now.remedy)}", icon=":material/error:")
    if now.state in (LoadState.CANCELLED, LoadState.FAILED):
        how = "Cancelled." if now.state == LoadState.CANCELLED else "It ended early."
        saved = " and was saved" if now.run_id else ""
        words = f"What was measured before is below{saved}." if measured(now) else "No request was finished."
        st.info(f"{how} {words}", icon=":material/info:")


def measured(now: LoadSnapshot) -> bool:
    return any(level.requests for level in now.levels)


def requests() -> None:
    st.caption("The requests of the last level, as they came and went.")
    swim_lanes(snapshot, key="load_lanes_over")


chosen = snapshot.config
st.title("Load test", anchor=False)
if snapshot.running:
    st.fragment(live, run_every=POLL_S)()
else:
    outcome(snapshot)
    if measured(snapshot):
        shown = Shown(snapshot.results, snapshot.config, "load")
        load_results.show(shown, requests if snapshot.lanes else None)
        load_downloads.for_page(services, shown, snapshot.run_id, server.endpoint.model if server.endpoint else "")
        st.subheader("Test again", anchor=False)
    else:
        st.markdown("How many users does this server carry, and how fast is it for each of them?")
    chosen = load_form.form(services) or chosen

load_command.show_commands(chosen or load_form.DEFAULTS, server)
