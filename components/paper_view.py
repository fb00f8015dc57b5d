"""The published numbers beside the simulated ones."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from components import html
from components.format import UNKNOWN, number
from engine.kv.figure_data import Bar
from engine.kv.presets import SHARES

SHARE_HEADS = ("Token states", "Reserved", "Internal", "External, others")
CITATION = (
    "Woosuk Kwon, Zhuohan Li, Siyuan Zhuang, Ying Sheng, Lianmin Zheng, Cody Hao Yu, Joseph E. Gonzalez, Hao Zhang and "
    "Ion Stoica. *Efficient Memory Management for Large Language Model Serving with PagedAttention.* SOSP 2023. "
    "[arXiv 2309.06180](https://arxiv.org/abs/2309.06180), CC BY 4.0. Published values: figure 2 (shares of memory) "
    "and figure 13 (mean number of batched requests). The baselines are the authors' own versions of Orca."
)


def claim(published_shares: bool) -> None:
    text = (
        "Before PagedAttention, servers kept one contiguous piece of memory for each request. The paper measured how "
        "much of it held tokens. Yellow marks are its published values; the bars are simulated here, with nothing "
        "fitted to them."
        if published_shares
        else "Short instructions with short answers. The paper prints only how many requests ran at once, and the "
        "lengths here are a fit: those rows are no test of the simulation."
    )
    st.markdown(text)


def differences(bars: Sequence[Bar]) -> None:
    """Every share and the mean number of requests, and by how much they differ from the published ones."""
    st.markdown("**Simulated here, and in brackets the difference to the paper** (shares: in points of the memory)")
    rows = ((bar.title, *(_share(bar, share) for share in SHARES), _running(bar)) for bar in bars)
    html.table(("Allocator", *SHARE_HEADS, "Requests in memory"), rows)


def _running(bar: Bar) -> str:
    return _beside(number(bar.result.mean_running, 1), bar.result.difference_mean_running)


def _share(bar: Bar, share: str) -> str:
    value = getattr(bar.result, share)
    return _beside(UNKNOWN if value is None else f"{value:.1f}%", bar.result.difference_points.get(share))


def _beside(value: str, difference: float | None) -> str:
    return value if difference is None else f"{value} ({signed(difference)})"


def signed(value: float | None) -> str:
    """“+0.4”, “−1.1”; “—” when unknown."""
    if value is None:
        return UNKNOWN
    rounded = round(value, 1)
    return f"{'−' if rounded < 0 else '+'}{abs(rounded):.1f}" if rounded else "0.0"


def citation() -> None:
    st.caption(CITATION)
