"""Tuning: what a knob does before it is turned, what it did after, and which settings suit a load."""

from __future__ import annotations

import streamlit as st

from components import (
    errors,
    frame,
    server_view,
    tune_apply,
    tune_draft,
    tune_experiments,
    tune_live,
    tune_outcome,
    tune_profiles,
    tune_results,
    tune_words,
)
from components.format import plain
from components.services import lab
from components.tune_draft import EXPERIMENTS, KNOBS, PROFILES
from engine.tuning.study import StudyKind, StudyState, TuneSnapshot

POLL_S = 1.0  # screen and measurement share the cores
services = lab()
snapshot = services.tuning.snapshot()
server = services.supervisor.snapshot()


def live() -> None:
    """Progress, phases, lanes, and the table that fills up; polled while configurations are tried."""
    now = services.tuning.snapshot()
    if not now.running:
        st.rerun()
    tune_live.show(services, now)


def is_apply(now: TuneSnapshot) -> bool:
    return now.study is not None and now.study.config.kind == StudyKind.APPLY


def knobs() -> None:
    if server.busy:
        st.fragment(server_view.status, run_every=frame.poll_interval(server))(services.supervisor)
    if is_apply(snapshot):
        paused(snapshot)
        tune_outcome.show(services, snapshot)
    tune_apply.form(services)


def experiments() -> None:
    if snapshot.study is not None and not is_apply(snapshot):
        ended(snapshot)
        tune_results.show(snapshot, server)
        tune_results.show_command(snapshot.study.config)
        if snapshot.resumable:
            return
        st.subheader("Another experiment", anchor=False)
    tune_experiments.form(services)


def ended(now: TuneSnapshot) -> None:
    """How it ended, where it did not simply end well."""
    if now.error:
        st.error(f"**{plain(now.error)}**\n\n{plain(now.remedy)}", icon=":material/error:")
    if now.state == StudyState.CANCELLED:
        st.info(plain(tune_words.cancelled(now)), icon=":material/info:")
    paused(now)


def paused(now: TuneSnapshot) -> None:
    """It goes on with a click, also in a later life of the app."""
    if not now.resumable:
        return
    blocked = tune_draft.why_not(server)
    with st.container(horizontal=True, vertical_alignment="center", key="tune_paused"):
        st.markdown(f"**Paused.** {plain(now.message)}", width="content")
        if st.button(
            "Resume",
            icon=":material/play_arrow:",
            type="primary",
            key="tune_resume",
            disabled=bool(blocked),
            help=plain(blocked) or None,
        ):
            with errors.shown():
                services.tuning.resume()
                st.rerun()
        if st.button("End it here", icon=":material/stop_circle:", key="tune_end", help="What was measured is kept."):
            with errors.shown():
                services.tuning.cancel()
                st.rerun()


with st.container(horizontal=True, vertical_alignment="center", key="tune_head"):
    st.title("Tuning", anchor=False)
    section = st.segmented_control(
        "Section",
        [KNOBS, EXPERIMENTS, PROFILES],
        default=EXPERIMENTS if snapshot.study and not is_apply(snapshot) else KNOBS,
        required=True,
        key=tune_draft.SECTION,
        persist_state="session",
        label_visibility="collapsed",
    )
    st.space("stretch")
    if section == KNOBS:
        tune_outcome.back_button(services, snapshot, server)
if section == PROFILES:
    tune_profiles.show(services)
elif snapshot.running:
    st.fragment(live, run_every=POLL_S)()
elif section == EXPERIMENTS:
    experiments()
else:
    knobs()
