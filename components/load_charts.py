"""The charts of a load test, one at a time, and the switch of the convention that they follow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import streamlit as st

from components import load_tables
from components.format import plain
from components.load_shown import Shown
from components.load_values import CONVENTIONS, LAB, load_of, load_title

CONVENTION_HELP = (
    "The same requests by the definitions of other tools, so that their numbers can be put beside these. "
    "Goodput and the server's numbers don't change."
)
KNEE_CAPTION = "Knee: where throughput / mean E2E is highest; beyond it, latency grows faster than throughput."
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
    figure, alt, caption = BUILDERS[view](shown, convention)
    st.plotly_chart(figure, key=f"{shown.key}_chart", config={"displayModeBar": False}, alt=alt)
    if caption:
        st.caption(plain(caption))


Chart = tuple[Any, str, str]  # figure, the same in words, and how to read it


def _load_curve(shown: Shown, convention: str) -> Chart:
    figures, levels = _figures(), shown.measured
    title = load_title(shown.config, shown.levels)
    return (
        figures.load_figure(levels, shown.knee, title, convention=convention),
        figures.load_alt(levels, shown.knee, convention=convention),
        "" if shown.knee is None else KNEE_CAPTION,
    )


def _distribution(measure: str, shown: Shown, convention: str) -> Chart:
    figures, levels = _figures(), shown.measured
    limit_ms = getattr(shown.results.slo, f"{measure}_ms")
    ours = "" if convention == LAB else " Single requests are by the definitions of this lab."
    return (
        figures.distribution_figure(levels, measure, limit_ms),
        figures.distribution_alt(levels, measure),
        "Where a line crosses 95% is the p95." + ours,
    )


def _tradeoff(shown: Shown, convention: str) -> Chart:
    figures, levels = _figures(), shown.measured
    return (
        figures.tradeoff_figure(levels, shown.knee, convention=convention),
        figures.tradeoff_alt(levels, convention=convention),
        "Further right is more work done, further up is a longer wait.",
    )


def _goodput(shown: Shown, _: str) -> Chart:
    figures, levels = _figures(), shown.measured
    return (
        figures.goodput_figure(levels, load_title(shown.config, shown.levels)),
        figures.goodput_alt(levels),
        f"A request counts where it met {figures.slo_words(shown.results.slo)}.",
    )


def _figures() -> ModuleType:
    """Plotly takes a while to import: only where a chart is drawn."""
    from components import load_figures

    return load_figures


BUILDERS: dict[str, Callable[[Shown, str], Chart]] = {
    VIEW_LOAD: _load_curve,
    "TTFT": partial(_distribution, "ttft"),
    "TPOT": partial(_distribution, "tpot"),
    VIEW_TRADEOFF: _tradeoff,
    VIEW_GOODPUT: _goodput,
}
