"""What a load test found: the headline, what speaks against it, the table, the charts, and files to take along.

Used by the page while and after a test runs, and for a saved run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from components import html, load_tables, palette
from components.format import UNKNOWN, millis, number, plain, ratio, short
from components.load_charts import explore
from components.load_shown import Shown
from components.load_values import (
    CONVENTIONS,
    LAB,
    WHOLE_LEVEL,
    best,
    doubts,
    formula,
    percentile_formula,
    times_one_user,
    value_of,
)
from engine.load.results import Badge, LevelResult

MOST_BARS = 6
SHORT_LABELS = {"few_samples": "Few samples", "first_slow": "Slow first wave"}


def show(shown: Shown, requests: Callable[[], None] | None = None) -> None:
    """Everything; ``requests`` draws single requests where they are still known."""
    st.fragment(_show)(shown, requests)


def _show(shown: Shown, requests: Callable[[], None] | None) -> None:
    convention = _chosen_convention(shown)
    with st.container(border=True, key=f"{shown.key}_result"):
        headline(shown, convention)
    explore(shown, convention, requests)
    load_tables.table(shown, convention)
    _notes(shown)


def _chosen_convention(shown: Shown) -> str:
    """Read before the control is drawn, which stands below the headline."""
    chosen = st.session_state.get(f"{shown.key}_convention", LAB)
    return chosen if chosen in CONVENTIONS else LAB


# -- the headline


def headline(shown: Shown, convention: str = LAB) -> None:
    """The most tokens per second as big as a room needs it, and what the same level cost in time."""
    top = best(shown.measured, convention)
    if top is None:
        st.markdown("No request was answered.")
        return
    tok_s = value_of(top, "throughput_tok_s", convention)
    html.hero(short(tok_s), claim(top, shown, convention), _note(shown, top, convention), *_bars(shown, convention))
    _facts(shown, top, convention)


def claim(top: LevelResult, shown: Shown, convention: str = LAB) -> str:
    """What stands beside the number: “tok/s with 20 users: 5.9× one user”."""
    words = f"tok/s {_with(top)}"
    times = times_one_user(top, shown.levels, convention)
    if times is not None:
        words += f": {ratio(times)} one user"
    elif top.rate_req_s is not None:
        words += f": {short(value_of(top, 'throughput_req_s', convention))} of {top.rate_req_s:g} requests/s answered"
    return words


def _with(level: LevelResult) -> str:
    if level.rate_req_s is not None:
        return f"at {level.label}"
    return f"over the {level.label}" if level.users is None else f"with {level.label}"


def _note(shown: Shown, top: LevelResult, convention: str) -> str:
    parts = []
    if shown.results.saturated and shown.levels[-1] is not top:
        parts.append(f"{shown.levels[-1].label} gave no more: the server is full")
    elif shown.results.saturated:
        parts.append("More load gave hardly more tokens: the server is full")
    if convention != LAB:
        parts.append(f"By the definitions of {CONVENTIONS[convention]}")
    if len(shown.measured) > MOST_BARS:
        parts.append(f"{MOST_BARS} of {len(shown.measured)} levels shown here")
    return " · ".join(parts)


def _bars(shown: Shown, convention: str) -> tuple[str, list[tuple[str, float | None, str, str]]]:
    """Colour of the number, and a bar a level; of many, as evenly as can be."""
    levels = shown.measured
    if len(levels) > MOST_BARS:
        levels = tuple(levels[round(i * (len(levels) - 1) / (MOST_BARS - 1))] for i in range(MOST_BARS))
    colour = palette.MEASURES["throughput"]
    rows = []
    for level in levels:
        tok_s = value_of(level, "throughput_tok_s", convention)
        rows.append((level.label, tok_s, f"{short(tok_s)} tok/s", colour))
    return colour, rows


def _facts(shown: Shown, top: LevelResult, convention: str) -> None:
    """What one user of that level felt, each with its formula, and with its doubts under it."""
    facts = [
        ("TTFT p95", millis(value_of(top, "ttft_p95_ms", convention)), "TTFT", "ttft_p95_ms"),
        ("TPOT p95", millis(value_of(top, "tpot_p95_ms", convention)), "TPOT", "tpot_p95_ms"),
        ("E2E p95", millis(value_of(top, "e2e_p95_ms", convention)), "E2E", "e2e_p95_ms"),
        (*_goodput_fact(top), "goodput", "goodput_pct"),
        (*_requests_fact(top), "requests", "requests"),
    ]
    of_all, of_speed = doubts(top, WHOLE_LEVEL), doubts(top, "throughput_tok_s")
    if of_all or of_speed:
        with st.container(horizontal=True):
            _badges(of_all, "All numbers: ")
            _badges(of_speed, "Throughput: ")
    for column, (label, value, measure, name) in zip(st.columns(len(facts)), facts, strict=True):
        with column:
            st.metric(label, value, help=_help(measure, label, convention))
            _badges(doubts(top, name))


def _goodput_fact(level: LevelResult) -> tuple[str, str]:
    share = UNKNOWN if level.goodput_pct is None else f"{level.goodput_pct:.0f}%"
    return "Goodput", share


def _requests_fact(level: LevelResult) -> tuple[str, str]:
    of_all = "" if level.requests == level.requests_ok else f" of {number(level.requests)}"
    return "Answered", number(level.requests_ok) + of_all


def _help(measure: str, label: str, convention: str) -> str:
    if measure == "requests":
        return "Requests that were answered whole. Failed ones are counted, and are in no other number."
    words = formula(measure, convention)
    return f"{words}. {label.split()[-1]}: {percentile_formula(convention)}" if " p" in label else words


def _badges(badges: Sequence[Badge], before: str = "") -> None:
    for badge in badges:
        st.badge(
            plain(before + SHORT_LABELS.get(badge.code, badge.label)),
            icon=":material/warning:" if badge.severity == "warning" else ":material/info:",
            color="orange" if badge.severity == "warning" else "gray",
            help=plain(badge.why),
        )


def _notes(shown: Shown) -> None:
    """Why requests failed, and what a reader needs to judge the numbers."""
    if failures := _failures(shown.levels):
        st.warning("  \n".join(plain(line) for line in failures), icon=":material/error:")
    if shown.results.notes:
        st.caption("  \n".join(plain(note) for note in shown.results.notes))


def _failures(levels: Sequence[LevelResult]) -> list[str]:
    """“4 × timed out (10 users: 1, 20 users: 3)”."""
    by_reason: dict[str, list[tuple[str, int]]] = {}
    for level in levels:
        for reason, count in level.failures:
            by_reason.setdefault(reason, []).append((level.label, count))
    return [
        f"{number(sum(count for _, count in found))} × {reason} "
        f"({', '.join(f'{label}: {number(count)}' for label, count in found)})"
        for reason, found in by_reason.items()
    ]
