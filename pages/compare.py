"""HF vs vLLM: the race, then the numbers."""

from __future__ import annotations

import streamlit as st

from components import compare_form, errors, results
from components.format import plain, seconds
from components.race import race
from components.services import lab
from engine.compare_results import CompareSnapshot, CompareState

POLL_S = 0.5
services = lab()
snapshot = services.compare.snapshot()
server = services.supervisor.snapshot()


def live(drawn: tuple[bool, bool]) -> None:
    """Progress, Cancel and the lanes; polled while the comparison runs."""
    now = services.compare.snapshot()
    if outline(now) != drawn:
        st.rerun()
    if now.running:
        progress(now)
    race(now, key="compare_race")


def outline(now: CompareSnapshot) -> tuple[bool, bool]:
    """What decides which parts the page has: whether it runs, and whether there is a ratio to show already."""
    return now.running, now.results is not None and now.results.ratio is not None


def progress(now: CompareSnapshot) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        elapsed = f" · {seconds(now.elapsed_s)}" if now.elapsed_s is not None else ""
        words = plain(now.message) + elapsed + compare_form.time_left(now.left_s)
        st.progress(min(1.0, max(0.0, now.progress)), text=words)
        if st.button("Cancel", icon=":material/stop_circle:", key="compare_cancel"):
            with errors.shown():
                services.compare.cancel()


def outcome(now: CompareSnapshot) -> None:
    """How it ended, when it did not simply end well: an error of a finished one is that it wasn't saved."""
    if now.state == CompareState.FAILED or now.error:
        st.error(f"**{plain(now.error or 'The comparison failed.')}**\n\n{plain(now.remedy)}", icon=":material/error:")
    elif now.state == CompareState.CANCELLED:
        saved = "What was measured before is below and was saved." if now.run_id else "No measurement was finished."
        st.info(f"Cancelled. {saved}", icon=":material/info:")


st.title("Hugging Face vs vLLM", anchor=False)
if not snapshot.running:
    outcome(snapshot)
finished = snapshot.results is not None and not snapshot.results.empty

if finished and snapshot.results is not None and (not snapshot.running or snapshot.results.ratio is not None):
    note = f"Median of {snapshot.config.repeats} repeats, warm-up discarded" if snapshot.config else ""
    with st.container(border=True, key="compare_result"):
        results.headline(snapshot.results, note)

if snapshot.running or snapshot.lanes:
    st.fragment(live, run_every=POLL_S if snapshot.running else None)(outline(snapshot))
else:
    compare_form.introduction(server)

if finished and not snapshot.running and snapshot.results is not None:
    results.details(snapshot.results, key="compare_levels")
    if snapshot.run_id:
        st.page_link(
            "pages/runs.py",
            label="Open the saved run",
            icon=":material/history:",
            query_params={"run": snapshot.run_id},
        )

if not snapshot.running:
    if finished or snapshot.lanes:
        st.subheader("Race again", anchor=False)
    compare_form.form(services)

compare_form.show_commands(snapshot.config or compare_form.DEFAULTS, server)
