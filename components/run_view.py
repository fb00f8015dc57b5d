"""The list of saved runs, and one run in full."""

from __future__ import annotations

import json

import streamlit as st

from components import errors, results
from components.format import moment, plain, ratio, seconds
from engine.services import LabServices
from engine.store import Run, RunSummary, run_to_json, runs_to_csv

STATUS_WORDS = {"done": "Done", "cancelled": "Cancelled", "failed": "Failed"}


def overview(services: LabServices) -> None:
    """All runs, newest first; a click on a row opens it."""
    runs = services.store.summaries()
    if not runs:
        st.markdown("Nothing was measured yet. Every comparison is saved here by itself, with hardware and software.")
        st.page_link("pages/compare.py", label="Measure HF against vLLM", icon=":material/play_arrow:")
        return
    rows = [overview_row(run) for run in runs]
    picked = st.dataframe(
        {name: [row[name] for row in rows] for name in rows[0]},
        hide_index=True,
        key="runs_table",
        on_select="rerun",
        selection_mode="single-row",
        row_height=42,
        alt=f"{len(runs)} saved runs, newest first",
    )
    chosen = picked["selection"]["rows"]
    with st.container(horizontal=True, vertical_alignment="center"):
        if chosen and st.button("Open the run", icon=":material/open_in_new:", type="primary", key="runs_open"):
            st.query_params["run"] = runs[chosen[0]].id
            st.rerun()
        st.download_button(
            "Download all as CSV",
            lambda: runs_to_csv(services.store.list(limit=None)).encode(),
            "vllm-lab-runs.csv",
            "text/csv",
            icon=":material/download:",
            key="runs_csv",
            on_click="ignore",
        )
        if not chosen:
            st.caption("Choose a row to open it.")


def overview_row(run: RunSummary) -> dict[str, str]:
    return {
        "When": moment(run.created_at),
        "What": run.title,
        "Result": ratio(run.ratio),
        "Status": STATUS_WORDS.get(str(run.status), str(run.status)),
        "Took": seconds(run.duration_s),
        "Machine": run.machine,
    }


def detail(services: LabServices, run: Run) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("All runs", icon=":material/arrow_back:", type="tertiary", key="runs_back"):
            del st.query_params["run"]
            st.rerun()
    st.title(plain(run.title), anchor=False)
    status = STATUS_WORDS.get(str(run.status), str(run.status))
    st.caption(
        plain(f"{moment(run.created_at)} · {status} · took {seconds(run.duration_s)} · {results.summary_of(run)}")
    )
    saved = results.saved_results(run)
    if error := results.as_dict(run.results).get("error"):
        st.error(plain(error), icon=":material/error:")
    if saved is not None and not saved.empty:
        repeats = results.as_dict(run.config).get("repeats", "—")
        with st.container(border=True, key="runs_result"):
            results.headline(saved, f"Median of {repeats} repeats, warm-up discarded")
        results.details(saved, key="runs_levels")
    _actions(services, run)
    with st.expander("Configuration, environment and model", icon=":material/data_object:"):
        context = {"configuration": run.config, "environment": run.environment, "model": run.model}
        st.code(json.dumps(context, indent=2, ensure_ascii=False, default=str), language="json", wrap_lines=True)
    if run.command:
        with st.expander("Show the command", icon=":material/terminal:"):
            st.code(run.command, language="bash", wrap_lines=True)


def _actions(services: LabServices, run: Run) -> None:
    with st.container(horizontal=True):
        st.download_button(
            "JSON",
            run_to_json(run),
            f"run-{run.id}.json",
            "application/json",
            icon=":material/download:",
            key="runs_json",
            on_click="ignore",
        )
        st.download_button(
            "CSV",
            runs_to_csv([run]),
            f"run-{run.id}.csv",
            "text/csv",
            icon=":material/download:",
            key="runs_one_csv",
            on_click="ignore",
        )
        if st.button("Delete", icon=":material/delete:", key="runs_delete"):
            confirm_delete(services, run)


@st.dialog("Delete this run?", icon=":material/delete:")
def confirm_delete(services: LabServices, run: Run) -> None:
    st.markdown(f"**{plain(run.title)}**, {plain(moment(run.created_at))}. This can't be undone.")
    with st.container(horizontal=True, horizontal_alignment="right"):
        if st.button("Keep it", key="runs_keep"):
            st.rerun()
        if st.button("Delete it", type="primary", key="runs_delete_yes"):
            with errors.shown():
                services.store.delete(run.id)
                st.query_params.clear()
                st.rerun()
