"""One saved run in full."""

from __future__ import annotations

import json

import streamlit as st

from components import chat_run, html, load_run, results, run_cost, run_files, run_list, tune_run
from components.format import moment, plain, seconds
from components.run_names import status_words
from engine.imports import origin_of
from engine.imports.mark import LAB, Origin, as_measured
from engine.report import figures, points_of
from engine.report.measures import MEASURES, text_of
from engine.services import LabServices
from engine.store import Run


def detail(services: LabServices, run: Run) -> None:
    if st.button("All runs", icon=":material/arrow_back:", type="tertiary", key="runs_back"):
        del st.query_params["run"]
        st.rerun()
    st.title(plain(run.title), anchor=False)
    status = status_words(run.status)
    st.caption(
        plain(f"{moment(run.created_at)} · {status} · took {seconds(run.duration_s)} · {results.summary_of(run)}")
    )
    origin = origin_of(run)
    if origin is not None:
        _imported(origin)
    if error := results.as_dict(run.results).get("error"):
        st.error(plain(error), icon=":material/error:")
    if origin is None or origin.format == LAB:
        _measured(as_measured(run))
    else:
        _foreign(run)
    price = run_cost.show(run)
    _actions(services, run, price)
    with st.expander("Configuration, environment and model", icon=":material/data_object:"):
        context = {"configuration": run.config, "environment": run.environment, "model": run.model}
        st.code(json.dumps(context, indent=2, ensure_ascii=False, default=str), language="json", wrap_lines=True)
    if run.command:
        with st.expander("Show the command", icon=":material/terminal:"):
            st.code(run.command, language="bash", wrap_lines=True)


def _imported(origin: Origin) -> None:
    st.badge(
        plain(f"Imported from {origin.file or 'a file'}: measured by {origin.name}, not here"),
        icon=":material/upload:",
        color="orange",
    )


def _measured(run: Run) -> None:
    saved, turns = results.saved_results(run), chat_run.turns_of(run)
    if saved is not None and not saved.empty:
        repeats = results.as_dict(run.config).get("repeats", "—")
        with st.container(border=True, key="runs_result"):
            results.headline(saved, f"Median of {repeats} repeats, warm-up discarded")
        results.details(saved, key="runs_levels")
    if turns:
        chat_run.show(run, turns)
    load_run.show(tune_run.as_load(run))
    tune_run.show(run)


def _foreign(run: Run) -> None:
    """Another tool's numbers by its own definitions: ours aren't known of them."""
    points = points_of(run)
    for place, chart in enumerate(figures.of_points(points)):
        st.plotly_chart(chart.figure, key=f"runs_foreign_{place}", config={"displayModeBar": False}, alt=chart.words)
    shown = [name for name in MEASURES if any(point.values.get(name) is not None for point in points)]
    html.table(
        ("", *(point.name for point in points)),
        [(MEASURES[name].label, *(text_of(name, point.values.get(name)) for point in points)) for name in shown],
    )
    for note in results.as_dict(run.results).get("notes") or ():
        st.caption(plain(note))


def _actions(services: LabServices, run: Run, price: float | None) -> None:
    with st.container(horizontal=True):
        run_files.download_buttons(lambda: [run], 1, "runs_one", price)
        load_run.bench_button(tune_run.as_load(as_measured(run)))
        if st.button("Compare", icon=":material/compare_arrows:", key="runs_compare_one"):
            st.query_params.clear()
            st.query_params["compare"] = run.id
            st.rerun()
        if st.button("Delete", icon=":material/delete:", key="runs_delete"):
            run_list.confirm_delete(services, [run])
