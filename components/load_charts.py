"""The charts of a load test, one at a time, and the switch of the convention that they follow."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from components import load_tables
from components.format import plain
from components.load_shown import Shown
from components.load_values import CONVENTIONS, LAB, load_of, load_title

CONVENTION_HELP = (
    "The same requests by the definitions of other tools, so that their numbers can be put beside these. "
    "Goodput and the server's numbers don't change."
)
VIEW_LOAD, VIEW_TRADEOFF, VIEW_GOODPUT = "Load curve", "Trade-off", "Goodput"
VIEW_REQUESTS, VIEW_ALL = "Requests", "All numbers"


def _views(shown: Shown, requests: Callable[[], None] | None) -> list[str]:
    several = sum(load_of(level) is not None for level in shown.measured) > 1
    views = [VIEW_LOAD] if several else []
    views += ["TTFT", "TPOT"]
    views += [VIEW_TRADEOFF] if several else []
    views += [VIEW_GOODPUT] if shown.results.slo else []
    views += [VIEW_REQUESTS] if requests else []
    return [*views, VIEW_ALL]


def explore(shown: Shown, convention: str, requests: Callable[[], None] | None) -> None:
    views = _views(shown, requests)
    with st.container(horizontal=True, vertical_alignment="center", key=f"{shown.key}_views"):
        view = st.segmented_control(
            "View", views, default=views[0], required=True, key=f"{shown.key}_view", label_visibility="collapsed"
        )
        st.space("stretch")
        st.selectbox(
            "Convention",
            list(CONVENTIONS),
            format_func=lambda name: f"Definitions: {CONVENTIONS[name]}",
            key=f"{shown.key}_convention",
            help=CONVENTION_HELP,
            width=230,
            label_visibility="collapsed",
            disabled=not any(level.conventions for level in shown.levels),
        )
    if view == VIEW_REQUESTS and requests:
        requests()
    elif view == VIEW_ALL:
        load_tables.all_numbers(shown, convention)
    else:
        _chart(shown, view or views[0], convention)


def _chart(shown: Shown, view: str, convention: str) -> None:
    from components import load_figures  # Plotly takes a while to import: only where a chart is drawn

    levels, knee, x_title = shown.measured, shown.knee, load_title(shown.config, shown.levels)
    caption = ""
    if view == VIEW_LOAD:
        figure = load_figures.load_figure(levels, knee, x_title, convention=convention)
        alt = load_figures.load_alt(levels, knee, convention=convention)
        caption = "Knee: where throughput divided by E2E is highest; beyond it, latency grows faster than throughput."
        caption = caption if knee is not None else ""
    elif view == VIEW_TRADEOFF:
        figure = load_figures.tradeoff_figure(levels, knee, convention=convention)
        alt = load_figures.tradeoff_alt(levels, convention=convention)
        caption = "Further right is more work done, further up is a longer wait."
    elif view == VIEW_GOODPUT:
        figure, alt = load_figures.goodput_figure(levels, x_title), load_figures.goodput_alt(levels)
        caption = f"A request counts where it met {load_figures.slo_words(shown.results.slo)}."
    else:
        measure = view.lower()
        limit_ms = getattr(shown.results.slo, f"{measure}_ms")
        figure = load_figures.distribution_figure(levels, measure, limit_ms)
        alt = load_figures.distribution_alt(levels, measure)
        caption = "Where a line crosses 95% is the p95." + (
            " Single requests are in this lab's convention." if convention != LAB else ""
        )
    st.plotly_chart(figure, key=f"{shown.key}_chart", config={"displayModeBar": False}, alt=alt)
    if caption:
        st.caption(plain(caption))
