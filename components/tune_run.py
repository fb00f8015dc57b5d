"""A saved trial on the Runs page: what was predicted of it, and the load test that it was measured with."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from components import html, tune_prediction
from components.format import plain
from engine.store import Run
from engine.tuning.study import Trial


def as_load(run: Run) -> Run:
    """A trial as the load test that it was measured with; any other run as it is."""
    workload = run.config.get("workload") if run.kind == "tune" and isinstance(run.config, dict) else None
    return replace(run, kind="load", config=workload) if isinstance(workload, dict) else run


def show(run: Run) -> None:
    """Predicted against actual; nothing for another kind of run, or one that another version wrote."""
    if run.kind != "tune":
        return
    try:
        trial = Trial.from_dict(run.results["trial"])
        rows, words = tune_prediction.rows(trial), tune_prediction.verdict(trial)
    except (LookupError, TypeError, ValueError, AttributeError):
        return
    if rows:
        with st.container(border=True, key="runs_tune"):
            st.markdown(f"**{plain(words or 'Predicted and actual')}**")
            html.table(tune_prediction.HEAD, rows)
