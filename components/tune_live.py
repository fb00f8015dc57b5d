"""Tuning while it works: where it is, what the server does, and how to pause or end it."""

from __future__ import annotations

import streamlit as st

from components import errors, html, server_view, tune_markup, tune_table
from components.format import plain, roughly, seconds
from components.swim_lanes import swim_lanes
from engine.load.results import LoadSnapshot
from engine.server.state import ServerSnapshot, ServerState
from engine.services import LabServices
from engine.tuning.study import Study, StudyKind, TrialState, TuneSnapshot


def show(services: LabServices, now: TuneSnapshot) -> None:
    study = now.study
    if study is None:
        return
    progress(services, now, study)
    if study.config.kind == StudyKind.APPLY:
        _steps(now, study)
    _work(services.supervisor.snapshot(), now.load)
    if study.config.kind != StudyKind.APPLY and now.trials:
        if now.recommendation is not None:
            st.markdown(f"So far: {plain(now.recommendation.words)}")
        tune_table.table(now)


def progress(services: LabServices, now: TuneSnapshot, study: Study) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(min(1.0, max(0.0, now.progress)), text=words(now))
        pausable = study.config.kind != StudyKind.APPLY
        if pausable and st.button(
            "Pause",
            icon=":material/pause_circle:",
            key="tune_pause",
            disabled=now.pausing,
            help="After the configuration that is tried now. It can be resumed later, also after a restart of the app.",
        ):
            with errors.shown():
                services.tuning.pause()
        if st.button("Cancel", icon=":material/stop_circle:", key="tune_cancel", help=_cancel_help(study)):
            with errors.shown():
                services.tuning.cancel()


def _cancel_help(study: Study) -> str:
    if study.config.kind == StudyKind.APPLY:
        return "The last good configuration runs again then."
    return "What was measured is kept."


def words(now: TuneSnapshot) -> str:
    parts = [plain(now.message) if now.message else "Beginning"]
    if now.pausing:
        parts.append("pauses after this one")
    if now.elapsed_s is not None:
        parts.append(seconds(now.elapsed_s))
    if now.left_s:
        parts.append(f"{roughly(now.left_s, now.left_s)} left")
    return " · ".join(parts)


def _steps(now: TuneSnapshot, study: Study) -> None:
    """What runs is measured, then the server restarts, then the same load again."""
    names, at = [], 0
    for trial in study.trials:
        if trial.number or len(study.trials) == 1:
            names.append("Restart")
            at += trial.state in (TrialState.MEASURING, TrialState.DONE)
        if study.config.measure:
            names.append(
                "Measure" if len(study.trials) == 1 else "Measure again" if trial.number else "Measure as it was"
            )
            at += trial.state == TrialState.DONE
    tune_markup.steps(names, at)


def _work(server: ServerSnapshot, load: LoadSnapshot | None) -> None:
    """The phases of a start, or the requests of the load."""
    if server.state == ServerState.STARTING:
        with st.container(border=True, key="tune_phases"):
            expected = f" of about {seconds(server.expected_s)}" if server.expected_s is not None else ""
            html.eyebrow(f"Starting: {seconds(server.elapsed_s)}{expected}")
            st.html(server_view.phases_html(server.phases))
    elif load is not None and load.level is not None:
        swim_lanes(load, key="tune_lanes")
