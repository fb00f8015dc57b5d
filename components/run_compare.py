"""Two to six runs against each other: what differs in how they came about, then the numbers."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from components import errors, html, run_files
from components.format import UNKNOWN, moment, plain
from components.run_names import in_a_list
from engine.errors import LabError
from engine.report import Comparison, compare, figures
from engine.report.comparing import FEWEST, MOST
from engine.report.finding import find
from engine.report.html import SPREAD_RULE
from engine.report.measures import MEASURES, text_of
from engine.report.words import change_words, name_of
from engine.services import LabServices
from engine.store import Run

# What a room wants to know first; every other number is one click away.
FIRST = ("throughput_tok_s", "ttft_p95_ms", "ttft_ms", "ttft_median_ms", "tpot_p95_ms", "tpot_ms", "e2e_p95_ms")


def show(services: LabServices, words: str) -> None:
    """``words`` are ids, or the beginnings of ids, with commas between them."""
    if st.button("All runs", icon=":material/arrow_back:", type="tertiary", key="runs_back"):
        st.query_params.clear()
        st.rerun()
    st.title("Compare runs", anchor=False)
    runs = _found(services, words)
    _choose(services, runs)
    if len(runs) < FEWEST:
        st.info(f"Choose {FEWEST} to {MOST} runs.", icon=":material/compare_arrows:")
        return
    with errors.shown():
        _comparison(compare(runs))


def _found(services: LabServices, words: str) -> list[Run]:
    runs: list[Run] = []
    for word in [word.strip() for word in words.split(",") if word.strip()][:MOST]:
        try:
            run = find(services.store, word)
        except LabError as error:
            errors.show(error)
            continue
        if run.id not in {other.id for other in runs}:
            runs.append(run)
    return runs


def _choose(services: LabServices, runs: Sequence[Run]) -> None:
    """The address holds the choice, so that it can be sent to somebody."""
    names = {run.id: in_a_list(run) for run in services.store.summaries()}
    chosen = st.multiselect(
        "Runs",
        list(names),
        default=[run.id for run in runs if run.id in names],
        format_func=lambda run_id: names.get(run_id, run_id),
        max_selections=MOST,
        key=f"runs_compared_{'_'.join(run.id for run in runs)}",
        label_visibility="collapsed",
        placeholder="Choose runs; the first is what the others are held against",
    )
    if chosen != [run.id for run in runs]:
        st.query_params["compare"] = ",".join(chosen)
        st.rerun()


def _comparison(comparison: Comparison) -> None:
    names = [name_of(run, number) for number, run in enumerate(comparison.runs, 1)]
    if comparison.warnings:
        st.warning("  \n".join(plain(words) for words in comparison.warnings), icon=":material/rule:")
    for words in comparison.notes:
        st.caption(plain(words))
    _differences(comparison, names)
    _charts(comparison, names)
    _numbers(comparison, names)
    with st.container(horizontal=True):
        run_files.download_buttons(lambda: comparison.runs, len(names), "runs_compared_file")
    with st.expander("Show the command", icon=":material/terminal:"):
        ids = " ".join(run.id for run in comparison.runs)
        st.code(f"python -m engine runs compare {ids}\npython -m engine runs export {ids} --out report.html", "bash")


def _differences(comparison: Comparison, names: Sequence[str]) -> None:
    st.subheader("What differs", anchor=False)
    rows = [("When", *(moment(run.created_at) for run in comparison.runs))]
    rows += [
        (one.name, *(value if value is not None else UNKNOWN for value in one.values)) for one in comparison.differences
    ]
    with st.container(key="runs_differences"):
        html.table(("", *names), rows)
    if not comparison.differences:
        st.caption("Configuration, model and environment are the same.")


def _charts(comparison: Comparison, names: Sequence[str]) -> None:
    charts = figures.of_runs(names, comparison.points)
    if not charts:
        return
    for place, (column, chart) in enumerate(zip(st.columns(len(charts)), charts, strict=True)):
        with column:
            st.plotly_chart(
                chart.figure, key=f"runs_compared_chart_{place}", config={"displayModeBar": False}, alt=chart.words
            )


def _numbers(comparison: Comparison, names: Sequence[str]) -> None:
    st.subheader("Numbers", anchor=False)
    if not comparison.rows:
        st.caption("No number is known of two of these runs at the same load.")
        return
    everything = st.toggle("All numbers", key="runs_compared_all")
    rows = []
    for row in comparison.rows:
        if everything or row.metric in FIRST:
            others = [
                f"{text_of(row.metric, value)} {change_words(row.metric, change)}".strip()
                for value, change in zip(row.values[1:], row.changes, strict=True)
            ]
            label = f"{row.point}: {MEASURES[row.metric].label}"
            rows.append((label, text_of(row.metric, row.values[0]), *others))
    with st.container(key="runs_compared_numbers"):
        html.table(("", *names), rows)
    st.caption(f"Changes are against run 1. {SPREAD_RULE}")
