"""Runs to take along and to bring: a report, a table, the data; and files from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st

from components import errors
from components.format import plain
from engine.imports import MAX_BYTES, read_runs
from engine.report import export
from engine.report.comparing import MOST
from engine.services import LabServices
from engine.store import Run

LABELS = {"html": "Report", "csv": "CSV", "json": "JSON"}
MIMES = {"html": "text/html", "csv": "text/csv", "json": "application/json"}
REPORT_HELP = (
    "One HTML file with charts, numbers, configuration and machine. It needs no network; print it to get a PDF."
)


def download_buttons(read: Callable[[], Sequence[Run]], count: int, key: str, price: float | None = None) -> None:
    """``read`` gets the runs when a button is pressed, not before."""
    for kind, label in LABELS.items():
        st.download_button(
            label,
            partial(_content, read, kind, price),
            f"{'run' if count == 1 else f'{count}-runs'}.{kind}",
            MIMES[kind],
            icon=":material/description:" if kind == "html" else ":material/download:",
            key=f"{key}_{kind}",
            on_click="ignore",
            disabled=count > MOST and kind != "csv",
            help=REPORT_HELP if kind == "html" else None,
        )


def _content(read: Callable[[], Sequence[Run]], kind: str, price: float | None) -> bytes:
    return export(read(), kind, price).encode()


def import_button(services: LabServices) -> None:
    with st.popover("Import", icon=":material/upload:", key="runs_import"):
        st.markdown(
            "A run that a lab has exported as JSON, or a result file of `vllm bench serve --save-result` or of "
            "guidellm. It is marked as imported: it was not measured here."
        )
        # A new key empties the uploader: else its file would be imported again by every run of the page.
        place = st.session_state.setdefault("runs_uploads", 0)
        given = st.file_uploader(
            "Result file", key=f"runs_upload_{place}", max_upload_size=MAX_BYTES >> 20, label_visibility="collapsed"
        )
        if given is not None:
            with errors.shown():
                _import(services, given.getvalue(), given.name)


def _import(services: LabServices, content: bytes, name: str) -> None:
    runs = read_runs(content, name)
    for run in runs:
        services.store.add(run)
    st.session_state["runs_uploads"] += 1
    st.toast(f"Imported: {plain(', '.join(run.title for run in runs))}", icon=":material/upload:")
    if len(runs) == 1:
        st.query_params["run"] = runs[0].id
    st.rerun()
