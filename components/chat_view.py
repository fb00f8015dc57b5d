"""Turns and live numbers of a chat. Text from the model is shown as text, never as markup."""

from __future__ import annotations

from html import escape
from typing import Any

import streamlit as st

from components import html
from components.format import UNKNOWN, millis, number, percent, plain, short
from engine.chat import ChatOptions, ChatSnapshot, Turn, TurnStatus
from engine.config import Endpoint
from engine.errors import LabError
from engine.metrics import METRIC_HELP
from engine.telemetry.prometheus import ServerMetrics, scrape

SCRAPE_TIMEOUT_S = 0.5
STATUS_WORDS = {
    TurnStatus.STOPPED: "Stopped by you. What had arrived is kept.",
    TurnStatus.INTERRUPTED: "Interrupted: the answer did not arrive whole. What had arrived is kept.",
    TurnStatus.FAILED: "No answer.",
}
AVATARS = {"user": ":material/person:", "assistant": ":material/bolt:"}


def turns(snapshot: ChatSnapshot) -> None:
    for turn in snapshot.turns:
        message(turn)


def message(turn: Turn) -> None:
    """What one side said, live or saved."""
    with st.chat_message(turn.role, avatar=AVATARS.get(turn.role)):
        _turn(turn)


def _turn(turn: Turn) -> None:
    if turn.reasoning:
        with st.expander("Reasoning", type="compact"):
            st.text(turn.reasoning)
    if turn.text:
        st.text(turn.text)
    elif turn.status == TurnStatus.STREAMING:
        st.caption("Waiting for the first token")
    if words := STATUS_WORDS.get(TurnStatus(str(turn.status))):
        st.warning(f"{words} {plain(turn.error or '')}", icon=":material/warning:")


def options() -> ChatOptions:
    """Sampling settings and system prompt; raises ConfigError for what can't work."""
    with st.popover("Settings", icon=":material/tune:", key="chat_settings"):
        system = st.text_area("System prompt", "", key="chat_system", persist_state="session", height=90)
        temperature = st.slider(
            "Temperature",
            0.0,
            2.0,
            0.7,
            0.05,
            key="chat_temperature",
            persist_state="session",
            help="0 always takes the likeliest token; higher is more varied.",
        )
        top_p = st.slider(
            "Top p",
            0.05,
            1.0,
            1.0,
            0.05,
            key="chat_top_p",
            persist_state="session",
            help="Only the likeliest tokens that together reach this share are drawn from.",
        )
        max_tokens = st.number_input(
            "Longest answer (max_tokens)", 1, 1_000_000, 256, 32, key="chat_max_tokens", persist_state="session"
        )
    return ChatOptions(system=system, temperature=temperature, top_p=top_p, max_tokens=int(max_tokens))


def last_answer(snapshot: ChatSnapshot) -> Turn | None:
    return next((turn for turn in reversed(snapshot.turns) if turn.role == "assistant"), None)


def server_metrics(endpoint: Endpoint | None) -> ServerMetrics:
    """Gauges of now; all unknown when the server doesn't tell."""
    if endpoint is None:
        return ServerMetrics()
    try:
        return scrape(endpoint, timeout_s=SCRAPE_TIMEOUT_S)
    except LabError:
        return ServerMetrics()  # the badge says that the server is gone; here it reads “—”


def live_numbers(turn: Turn | None) -> dict[str, float | None]:
    """TTFT and TPOT (ms) and tokens/s of an answer, so far or in the end."""
    if turn is None:
        return {"ttft_ms": None, "tpot_ms": None, "speed": None}
    if turn.trace is not None:
        return {
            "ttft_ms": turn.trace.ttft_ms,
            "tpot_ms": turn.trace.tpot_ms,
            "speed": turn.trace.decode_speed_tok_s,
        }
    spent_ms, tokens = sum(turn.gaps_ms), turn.tokens_so_far
    known = tokens is not None and tokens > 1 and spent_ms > 0
    tpot_ms = spent_ms / (tokens - 1) if known and tokens else None
    return {"ttft_ms": turn.ttft_ms, "tpot_ms": tpot_ms, "speed": 1000 / tpot_ms if tpot_ms else None}


def numbers(snapshot: ChatSnapshot, endpoint: Endpoint | None) -> None:
    """The panel beside the chat: big numbers first, then memory, then every gap."""
    turn = last_answer(snapshot)
    now = live_numbers(turn)
    first, second = st.columns(2)
    first.metric("TTFT", millis(now["ttft_ms"]), help=_help("TTFT"))
    second.metric("Tokens per second", short(now["speed"]), help=_help("decode speed"))
    first.metric("TPOT", millis(now["tpot_ms"]), help=_help("TPOT"))
    second.metric("Tokens", number(turn.tokens_so_far if turn else None), help=_help("output tokens"))
    if turn and turn.others and turn.others.disturbs:
        st.caption(f":material/speed: Meanwhile {plain(turn.others)}.")
    metrics = server_metrics(endpoint)
    st.html(_memory_html(turn, endpoint, metrics))
    gaps = turn.gaps_ms if turn else ()
    if gaps:
        from components import figures  # Plotly takes a while to import: only where a chart is drawn

        st.plotly_chart(
            figures.gaps_figure(gaps), key="chat_gaps", config={"displayModeBar": False}, alt=figures.gaps_alt(gaps)
        )
    if turn and turn.trace:
        server_side(turn.trace)


def not_saved(error: LabError) -> None:
    """The store failed: what is on screen isn't in a run yet."""
    remedy = f" {plain(error.remedy)}" if error.remedy else ""
    st.warning(
        f"The newest turns aren't saved. {plain(error.cause)}{remedy} The next turn saves them too.",
        icon=":material/save:",
    )


def saved_link(run_id: str) -> None:
    st.page_link(
        "pages/runs.py",
        label="Saved",
        icon=":material/history:",
        query_params={"run": run_id},
        help="Open this conversation as a run, with the numbers of every turn.",
    )


def _help(name: str) -> str:
    return METRIC_HELP[name]


def _memory_html(turn: Turn | None, endpoint: Endpoint | None, metrics: ServerMetrics) -> str:
    used = turn.context_used if turn else None
    limit = endpoint.max_model_len if endpoint else None
    share = used / limit if used is not None and limit else None
    trace = turn.trace if turn else None
    cached, asked = (trace.cached_tokens, trace.prompt_tokens) if trace else (None, None)
    hit = cached / asked if cached is not None and asked else None
    rows = (
        ("Context used", f"{number(used)} of {number(limit)} tokens", share),
        ("KV cache in use", percent(metrics.kv_cache_usage), metrics.kv_cache_usage),
        ("Prefix-cache hit", f"{number(cached)} of {number(asked)} tokens", hit),
    )
    return (
        '<div style="display:grid;gap:0.8rem">'
        + "".join(
            f'<div><div style="display:flex;justify-content:space-between;gap:1rem"><span class="lab-fact-label">'
            f'{escape(label)}</span><span class="lab-number" style="font-weight:620">{escape(value)}</span></div>'
            f"{html.meter(share)}</div>"
            for label, value, share in rows
        )
        + "</div>"
    )


def server_side(trace: Any) -> None:
    """What was timed here beside what the server says about the same request."""
    server = trace.server
    html.table(
        ("The same answer", "TTFT", "TPOT", "Queue"),
        [
            ("Timed here", millis(trace.ttft_ms), millis(trace.tpot_ms), UNKNOWN),
            (
                "Server's own",
                millis(server.ttft_ms if server else None),
                millis(server.mean_itl_ms if server else None),
                millis(server.queue_ms if server else None),
            ),
        ],
    )
    st.caption("Here the clock starts when the request is sent; the server counts from scheduling it.")
