"""A saved conversation: its medians, every turn's numbers, and what was said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from components import chat_view, html
from components.format import millis, number, plain
from components.results import as_dict
from engine.chat import Turn, TurnStatus
from engine.metrics import METRIC_HELP
from engine.store import Run
from engine.telemetry.host import OtherWork

Saved = dict[str, Any]
STATUS_WORDS = {"done": "Done", "stopped": "Stopped", "interrupted": "Interrupted", "failed": "Failed"}
HEAD = ("Turn", "TTFT", "TPOT", "E2E", "ITL p95", "Longest gap", "Prompt", "Cached", "Output", "Server TTFT", "Queue")
OPTION_WORDS = {"temperature": "temperature", "top_p": "top p", "max_tokens": "max_tokens"}


def turns_of(run: Run) -> list[Saved]:
    """The turns of a saved conversation; empty for another kind of run, or a damaged one."""
    turns = as_dict(run.results).get("turns") if run.kind == "chat" else None
    return [turn for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []


def show(run: Run, turns: Sequence[Saved]) -> None:
    saved = as_dict(run.results)
    with st.container(border=True, key="runs_result"):
        _medians(saved)
    html.table(HEAD, [_row(turn) for turn in turns])
    st.caption("Tokens are the server's own count. Medians are over finished answers; the others are only counted.")
    if disturbed := [number(_number(turn, "number")) for turn in turns if _disturbed(turn)]:
        st.caption(
            f":material/speed: Other programs kept more than a fifth of the cores busy in turn {', '.join(disturbed)}: "
            "the numbers there could be better."
        )
    st.subheader("Conversation", anchor=False)
    with st.container(key="runs_conversation"):
        _conversation(turns)


def _medians(saved: Saved) -> None:
    first, second, third = st.columns(3)
    first.metric("TTFT, median", millis(_number(saved, "ttft_median_ms")), help=METRIC_HELP["TTFT"])
    second.metric("TPOT, median", millis(_number(saved, "tpot_median_ms")), help=METRIC_HELP["TPOT"])
    count, done = _number(saved, "answers"), _number(saved, "answers_finished")
    words = number(count) if count == done else f"{number(done)} of {number(count)}"
    third.metric("Finished answers", words, help="Stopped, interrupted and failed answers are in no median.")


def _row(turn: Saved) -> tuple[str, ...]:
    status = _text(turn, "status")
    name = number(_number(turn, "number"))
    if status != "done":
        name += f" · {STATUS_WORDS.get(status, status)}"
    times = ("ttft_ms", "tpot_ms", "e2e_ms", "itl_p95_ms", "itl_max_ms")
    tokens = ("prompt_tokens", "cached_tokens", "output_tokens")
    return (
        name,
        *(millis(_number(turn, key)) for key in times),
        *(number(_number(turn, key)) for key in tokens),
        *(millis(_number(turn, key)) for key in ("server_ttft_ms", "server_queue_ms")),
    )


def _disturbed(turn: Saved) -> bool:
    busy_cores, cores = _number(turn, "other_busy_cores"), _number(turn, "cores")
    return busy_cores is not None and cores is not None and OtherWork(busy_cores, int(cores)).disturbs


def _conversation(turns: Sequence[Saved]) -> None:
    """The words as they were; settings where they begin to hold."""
    before: Saved = {}
    for turn in turns:
        options = as_dict(turn.get("options"))
        if options != before:
            st.caption(plain(_settings(options)))
            before = options
        chat_view.message(Turn("user", _text(turn, "user")))
        chat_view.message(_answer(turn))


def _answer(turn: Saved) -> Turn:
    status = _text(turn, "status")
    known = TurnStatus(status) if status in set(TurnStatus) else TurnStatus.DONE
    error = _text(turn, "error") or None
    return Turn("assistant", _text(turn, "assistant"), status=known, error=error, reasoning=_text(turn, "reasoning"))


def _settings(options: Saved) -> str:
    known = [f"{words} {options[name]}" for name, words in OPTION_WORDS.items() if options.get(name) is not None]
    if system := _text(options, "system").strip():
        known.append(f"system prompt: {system}")
    return " · ".join(known)


def _number(saved: Saved, name: str) -> float | None:
    value = saved.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(saved: Saved, name: str) -> str:
    value = saved.get(name)
    return value if isinstance(value, str) else ""
