"""The list of saved runs, and one run in full."""

from __future__ import annotations

import json
from collections.abc import Sequence

import streamlit as st

from components import chat_run, errors, load_run, results, tune_run
from components.format import UNKNOWN, moment, plain, ratio, seconds
from engine.chat import turns_to_csv
from engine.services import LabServices
from engine.store import Run, RunSummary, run_to_json, runs_to_csv

STATUS_WORDS = chat_run.STATUS_WORDS | {"cancelled": "Cancelled"}
KIND_WORDS = {"compare": "Comparisons", "chat": "Chats", "load": "Load tests", "tune": "Tuning"}
RESULT_WIDTH_PX, MACHINE_WIDTH_PX = 210, 200
ALL, OPEN, OPEN_LABEL = "All", "open", ":material/open_in_new: Open"


def overview(services: LabServices) -> None:
    """All runs, newest first; one click opens one."""
    runs = services.store.summaries()
    if not runs:
        st.markdown(
            "Nothing was measured yet. Every comparison and every chat is saved here by itself, "
            "with hardware and software."
        )
        with st.container(horizontal=True):
            st.page_link("pages/compare.py", label="Measure HF against vLLM", icon=":material/play_arrow:")
            st.page_link("pages/chat.py", label="Chat", icon=":material/forum:")
        return
    shown = _of_chosen_kind(runs)
    _table(shown)
    with st.container(horizontal=True):
        _find(shown)
        st.download_button(
            "Download all as CSV",
            lambda: runs_to_csv(services.store.list(limit=None)).encode(),
            "vllm-lab-runs.csv",
            "text/csv",
            icon=":material/download:",
            key="runs_csv",
            on_click="ignore",
        )


def _of_chosen_kind(runs: Sequence[RunSummary]) -> Sequence[RunSummary]:
    words = {KIND_WORDS.get(run.kind, run.kind): run.kind for run in runs}
    if len(words) < 2:
        return runs
    chosen = st.segmented_control(
        "Kind",
        [ALL, *words],
        default=ALL,
        required=True,
        format_func=plain,
        key="runs_kind",
        persist_state="session",
        label_visibility="collapsed",
    )
    return [run for run in runs if chosen not in words or run.kind == words[chosen]]


def _table(runs: Sequence[RunSummary]) -> None:
    rows = [overview_row(run) for run in runs]
    # A click tells the row as it was drawn; by then a run may have come or gone.
    st.session_state["runs_drawn"] = [run.id for run in runs]
    st.dataframe(
        {OPEN: [OPEN_LABEL] * len(rows)} | {name: [row[name] for row in rows] for name in rows[0]},
        hide_index=True,
        column_config={
            "Result": st.column_config.Column(width=RESULT_WIDTH_PX),
            "Machine": st.column_config.Column(width=MACHINE_WIDTH_PX),
            OPEN: st.column_config.ButtonColumn(
                "", width="small", type="tertiary", on_click=_open_clicked, key="runs_open"
            ),
        },
        row_height=42,
        key="runs_table",
        alt=f"{len(runs)} saved runs, newest first",
    )


def _find(runs: Sequence[RunSummary]) -> None:
    """The way in without a mouse: buttons inside a table can't be pressed with the keyboard."""
    names = {run.id: f"{run.title} · {moment(run.created_at)}" for run in runs}
    st.selectbox(
        "Find a run",
        list(names),
        index=None,
        format_func=lambda run_id: names.get(run_id, run_id),
        placeholder="Find a run by name or date",
        on_change=_open_found,
        key="runs_find",
        label_visibility="collapsed",
        width=420,
    )


def _open_clicked() -> None:
    st.query_params["run"] = st.session_state["runs_drawn"][st.session_state["runs_open"].row]


def _open_found() -> None:
    if found := st.session_state["runs_find"]:
        st.query_params["run"] = found


def overview_row(run: RunSummary) -> dict[str, str]:
    """Titles are “what: result”."""
    what, _, result = run.title.partition(": ")
    return {
        "When": moment(run.created_at),
        "What": what,
        "Result": ratio(run.ratio) if run.ratio is not None else result or UNKNOWN,
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
    saved, turns = results.saved_results(run), chat_run.turns_of(run)
    if error := results.as_dict(run.results).get("error"):
        st.error(plain(error), icon=":material/error:")
    if saved is not None and not saved.empty:
        repeats = results.as_dict(run.config).get("repeats", "—")
        with st.container(border=True, key="runs_result"):
            results.headline(saved, f"Median of {repeats} repeats, warm-up discarded")
        results.details(saved, key="runs_levels")
    if turns:
        chat_run.show(run, turns)
    load_run.show(tune_run.as_load(run))
    tune_run.show(run)
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
            turns_to_csv(run) if run.kind == "chat" else load_run.csv_of(tune_run.as_load(run)) or runs_to_csv([run]),
            f"run-{run.id}.csv",
            "text/csv",
            icon=":material/download:",
            key="runs_one_csv",
            on_click="ignore",
        )
        load_run.bench_button(tune_run.as_load(run))
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
