"""The trials of a study, one a row."""

from __future__ import annotations

import streamlit as st

from components import html, tune_words
from components.format import UNKNOWN, millis, number, plain, seconds, short
from engine.metrics import METRIC_HELP, Distribution
from engine.tuning.study import Trial, TuneSnapshot

HEAD = ("Configuration", "", "tok/s", "TTFT p95", "TPOT p50", "E2E p95", "Goodput", "Tokens of KV cache", "Restart")
HELPS = {
    "tok/s": METRIC_HELP["throughput"],
    "TTFT p95": METRIC_HELP["TTFT"],
    "TPOT p50": METRIC_HELP["TPOT"],
    "E2E p95": METRIC_HELP["E2E"],
    "Goodput": METRIC_HELP["goodput"],
    "Tokens of KV cache": "As the server says. Where the prediction was another number, that stands in brackets.",
    "Restart": "From the order to restart until the server answers; — where it ran so already.",
}
CHOSEN, ON_FRONT = "★", "◆"
SHOWN_WHOLE = 12
HEIGHT_PX = 430


def table(now: TuneSnapshot) -> None:
    """A row a trial; with many it scrolls by itself."""
    with st.container(height=HEIGHT_PX if len(now.trials) > SHOWN_WHOLE else "content", border=False, key="tune_table"):
        html.table(HEAD, [row(trial, now) for trial in now.trials], HELPS)
    marks = [f"{CHOSEN} recommended"] if now.recommendation else []
    marks += (
        [f"{ON_FRONT} on the Pareto front: no other has both more throughput and a lower TTFT p95"]
        if now.pareto
        else []
    )
    why = [f"{plain(trial.name)}: {plain(trial.error)} {plain(trial.remedy)}" for trial in now.trials if trial.error]
    if marks or why:
        st.caption("  \n".join([" · ".join(marks), *why] if marks else why))


def row(trial: Trial, now: TuneSnapshot) -> tuple[str, ...]:
    level = trial.level
    goodput = UNKNOWN if level is None or level.goodput_pct is None else f"{level.goodput_pct:.0f}%"
    return (
        f"{trial.name}{marks(trial, now)}",
        tune_words.state(trial) if level is None or not trial.done else "",
        short(level.throughput_tok_s if level else None),
        _millis(level.ttft_ms if level else None, "p95"),
        _millis(level.tpot_ms if level else None, "p50"),
        _millis(level.e2e_ms if level else None, "p95"),
        goodput,
        _tokens(trial),
        seconds(trial.restart_s),
    )


def marks(trial: Trial, now: TuneSnapshot) -> str:
    chosen = now.recommendation is not None and now.recommendation.trial == trial.number
    return (f" {CHOSEN}" if chosen else "") + (f" {ON_FRONT}" if trial.number in now.pareto else "")


def _millis(values: Distribution | None, part: str) -> str:
    return millis(getattr(values, part) if values else None)


def _tokens(trial: Trial) -> str:
    predicted = trial.prediction.tokens if trial.prediction else None
    actual = trial.actual.tokens if trial.actual else None
    if predicted is None or predicted == actual:
        return number(actual)
    return f"{number(actual)} ({number(predicted)})"
