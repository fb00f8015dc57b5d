"""Numbers of a load test as tables: the workshop's, with footnotes, and every statistic there is."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from components import html
from components.format import UNKNOWN, millis, number, plain, short
from components.load_shown import Shown
from components.load_values import LAB, MEASURES, WHOLE_LEVEL, doubts, formula, percentile_formula, value_of
from engine.load.results import PARTS, LevelResult

SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
TABLE_HEAD = ("Requests", "tok/s", "req/s", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95", "E2E p95", "Good req/s")
TABLE_NAMES = (
    "throughput_tok_s",
    "throughput_req_s",
    "ttft_p50_ms",
    "ttft_p95_ms",
    "tpot_p50_ms",
    "tpot_p95_ms",
    "e2e_p95_ms",
)


def table(shown: Shown, convention: str = LAB, labels: Sequence[str] = ()) -> None:
    """A row a level with footnotes for what speaks against a number; ``labels`` are all levels, known to come too."""
    footnotes: dict[str, int] = {}
    rows = [_row(level, convention, footnotes) for level in shown.levels]
    coming = [(label, *[UNKNOWN] * len(TABLE_HEAD)) for label in labels[len(rows) :]]
    helps = {name: _column_help(name, convention) for name in TABLE_HEAD}
    html.table(("Load", *TABLE_HEAD), [*rows, *coming], helps)
    if footnotes:
        st.caption("  \n".join(f"{_superscript(place)} {plain(why)}" for why, place in footnotes.items()))


def _row(level: LevelResult, convention: str, footnotes: dict[str, int]) -> tuple[str, ...]:
    values = [value_of(level, name, convention) for name in TABLE_NAMES]
    shown = [short(values[0]), short(values[1]), *map(millis, values[2:])]
    requests = number(level.requests_ok) + (
        f", {number(level.requests_failed)} failed" if level.requests_failed else ""
    )
    goodput = UNKNOWN if level.goodput_pct is None else f"{_good(level.goodput_req_s)} ({level.goodput_pct:.0f}%)"
    return (
        level.label + _marks(level, WHOLE_LEVEL, footnotes),
        requests + _marks(level, "requests", footnotes),
        *(text + _marks(level, name, footnotes) for name, text in zip(TABLE_NAMES, shown, strict=True)),
        goodput,
    )


def _good(req_s: float | None) -> str:
    return "0" if req_s == 0 else short(req_s)


def _marks(level: LevelResult, name: str, footnotes: dict[str, int]) -> str:
    """Superscripts of the footnotes; equal reasons share one."""
    places = []
    for badge in doubts(level, name):
        why = f"{badge.label}, {level.label}: {badge.why}"
        places.append(_superscript(footnotes.setdefault(why, len(footnotes) + 1)))
    return f" {'˒'.join(places)}" if places else ""


def _superscript(place: int) -> str:
    return str(place).translate(SUPERSCRIPTS)


def _column_help(column: str, convention: str) -> str:
    if column == "Requests":
        return "Answered whole; failed ones are in no other number."
    measure = {"tok/s": "throughput", "Good req/s": "goodput"}.get(column, column.split()[0])
    if column == "req/s":
        return "Finished requests / the same wall time as the throughput"
    words = formula(measure, convention)
    words = words.replace("*", "").replace("`", "")  # a hover text is plain
    return f"{words}. {column.split()[-1]}: {percentile_formula(convention)}" if " p" in column else words


def all_numbers(shown: Shown, convention: str = LAB) -> None:
    """Every statistic of every measure, and what server and client say of themselves."""
    rows = [
        {"Load": level.label, "Measure": title}
        | {part: _rounded(value_of(level, f"{measure}_{part}_ms", convention)) for part in PARTS}
        for level in shown.levels
        for measure, title in MEASURES.items()
    ]
    helps = {part: percentile_formula(convention) for part in PARTS if part != "mean"}
    st.dataframe(
        rows,
        hide_index=True,
        key=f"{shown.key}_all",
        column_config={
            part: st.column_config.NumberColumn(f"{part} (ms)", format="localized", help=helps.get(part))
            for part in PARTS
        },
        alt="Mean and percentiles of TTFT, TPOT, ITL and E2E of every level, in ms",
    )
    html.table(("Load", *SIDES), [_sides(level) for level in shown.levels], SIDES)


SIDES = {
    "Total tok/s": "Prompt and output tokens of finished requests / wall time",
    "Server queue p95": "How long requests waited in the server, by its own word",
    "KV cache peak": "Highest of the server's readings once a second",
    "Prefix hits": "Prompt tokens found in the prefix cache / all of them, by the server's counters",
    "Preempted": "Requests put back because the KV cache was full, by the server's counter",
    "Sent late p95": "Request sent − its intended start, where a schedule gives one",
    "Client CPU": "CPU time of the sending process per output token",
    "Client lag p99": "How late the sending process came to what was due",
}


def _sides(level: LevelResult) -> tuple[str, ...]:
    queue, late = level.server_queue_ms, level.client_queue_ms
    cpu_ms = level.client_cpu_ms_per_token
    return (
        level.label,
        short(level.total_tok_s),
        millis(queue.p95 if queue else None),
        _percent(level.kv_cache_peak_pct),
        _percent(level.prefix_hit_pct),
        number(level.preemptions),
        millis(late.p95 if late else None),
        UNKNOWN if cpu_ms is None else f"{cpu_ms:.3f} ms",
        millis(level.loop_lag_p99_ms),
    )


def _rounded(value_ms: float | None) -> float | None:
    return None if value_ms is None else round(value_ms, 2)


def _percent(pct: float | None) -> str:
    return UNKNOWN if pct is None else f"{pct:.1f}%"
