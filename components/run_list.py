"""The list of saved runs: one click opens one, chosen rows are compared, exported or deleted."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from components import errors, run_files
from components.format import plain
from components.run_names import in_a_list, kind_words, row
from engine.report.comparing import FEWEST, MOST
from engine.services import LabServices
from engine.store import Run, RunSummary, runs_to_csv

RESULT_WIDTH_PX, MACHINE_WIDTH_PX = 210, 200
ALL, OPEN, OPEN_LABEL = "All", "open", ":material/open_in_new: Open"
CHOSEN = "runs_chosen"


def overview(services: LabServices) -> None:
    """All runs, newest first."""
    runs = services.store.summaries()
    if not runs:
        _nothing_yet(services)
        return
    shown = _of_chosen_kind(runs)
    chosen = [run for run in shown if run.id in st.session_state.get(CHOSEN, ())]
    bar = st.container(horizontal=True, vertical_alignment="center", key="runs_bar")
    _table(shown)
    with bar:
        if chosen:
            _for_chosen(services, chosen)
        else:
            _for_all(services, shown)


def _nothing_yet(services: LabServices) -> None:
    st.markdown(
        "Nothing was measured yet. Every comparison, load test, trial and chat is saved here by itself, "
        "with hardware and software."
    )
    with st.container(horizontal=True):
        st.page_link("pages/compare.py", label="Measure HF against vLLM", icon=":material/play_arrow:")
        st.page_link("pages/chat.py", label="Chat", icon=":material/forum:")
        run_files.import_button(services)


def _of_chosen_kind(runs: Sequence[RunSummary]) -> Sequence[RunSummary]:
    words = list(dict.fromkeys(kind_words(run.kind) for run in runs))
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
    return [run for run in runs if chosen not in words or kind_words(run.kind) == chosen]


def _table(runs: Sequence[RunSummary]) -> None:
    rows = [row(run) for run in runs]
    # A click tells the row as it was drawn; by then a run may have come or gone.
    st.session_state["runs_drawn"] = [run.id for run in runs]
    st.dataframe(
        {OPEN: [OPEN_LABEL] * len(rows)} | {name: [each[name] for each in rows] for name in rows[0]},
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
        on_select=_choose,
        selection_mode="multi-row",
        alt=f"{len(runs)} saved runs, newest first",
    )


def _for_all(services: LabServices, shown: Sequence[RunSummary]) -> None:
    _find(shown)
    st.space("stretch")
    run_files.import_button(services)
    st.download_button(
        "All as CSV",
        lambda: runs_to_csv(services.store.list(limit=None)).encode(),
        "vllm-lab-runs.csv",
        "text/csv",
        icon=":material/download:",
        key="runs_csv",
        on_click="ignore",
    )
    if len(shown) >= FEWEST and st.button(
        "Compare",
        icon=":material/compare_arrows:",
        key="runs_compare_newest",
        help="The two newest of this list; others can be chosen there. Or mark rows of the table first.",
    ):
        _compare([run.id for run in shown[:FEWEST]])


def _for_chosen(services: LabServices, chosen: Sequence[RunSummary]) -> None:
    count, ids = len(chosen), [run.id for run in chosen]
    if st.button(
        f"Compare {count}",
        icon=":material/compare_arrows:",
        type="primary",
        key="runs_compare",
        disabled=not FEWEST <= count <= MOST,
        help=f"{FEWEST} to {MOST} runs; the others are held against the oldest.",
    ):
        _compare(ids[::-1])
    run_files.download_buttons(lambda: read(services, ids), count, "runs_chosen_file")
    if st.button(f"Delete {count}", icon=":material/delete:", key="runs_delete_chosen"):
        confirm_delete(services, chosen)


def read(services: LabServices, ids: Sequence[str]) -> list[Run]:
    """Those that still exist."""
    found = (services.store.get(run_id) for run_id in ids)
    return [run for run in found if run is not None]


def _compare(ids: Sequence[str]) -> None:
    st.query_params["compare"] = ",".join(ids)
    st.rerun()


def _find(runs: Sequence[RunSummary]) -> None:
    """The way in without a mouse: buttons inside a table can't be pressed with the keyboard."""
    names = {run.id: in_a_list(run) for run in runs}
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


def _choose() -> None:
    """By id: rows move when a run comes or goes."""
    drawn = st.session_state.get("runs_drawn", [])
    rows = st.session_state["runs_table"].selection.rows
    st.session_state[CHOSEN] = tuple(drawn[row] for row in rows if row < len(drawn))


def _open_clicked() -> None:
    st.query_params["run"] = st.session_state["runs_drawn"][st.session_state["runs_open"].row]


def _open_found() -> None:
    if found := st.session_state["runs_find"]:
        st.query_params["run"] = found


@st.dialog("Delete?", icon=":material/delete:")
def confirm_delete(services: LabServices, runs: Sequence[Run | RunSummary]) -> None:
    for run in runs[:MOST]:
        st.markdown(f"**{plain(run.title)}**, {plain(in_a_list(run).rpartition(' · ')[2])}")
    if len(runs) > MOST:
        st.markdown(f"and {len(runs) - MOST} more")
    st.markdown("This can't be undone.")
    with st.container(horizontal=True, horizontal_alignment="right"):
        if st.button("Keep it" if len(runs) == 1 else "Keep them", key="runs_keep"):
            st.rerun()
        if st.button("Delete it" if len(runs) == 1 else "Delete them", type="primary", key="runs_delete_yes"):
            with errors.shown():
                for run in runs:
                    services.store.delete(run.id)
                st.session_state.pop(CHOSEN, None)
                st.query_params.clear()
                st.rerun()
