"""The environment check: every line ok, or what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from html import escape

import streamlit as st

from components import errors
from components.format import millis, number, plain, seconds, speed
from engine.client import CompletionRequest, run_concurrently
from engine.config import Endpoint
from engine.environment import Check
from engine.metrics import RequestTrace
from engine.server.state import ServerSnapshot, ServerState

MEMORY = "Memory free"
QUICK_PROMPT = "The capital of France is"
QUICK_TOKENS = 16
QUICK_TIMEOUT_S = 60.0


def show(checks: Iterable[Check]) -> None:
    """What needs attention comes first."""
    lines = sorted(checks, key=lambda check: check.ok)
    st.html(f'<div class="lab-checks">{"".join(_line(check) for check in lines)}</div>')


def _line(check: Check) -> str:
    kind, mark, word = ("ok", "✓", "ok") if check.ok else ("bad", "!", "needs attention")
    remedy = "" if check.ok or not check.remedy else f'<div class="lab-check-remedy">{escape(check.remedy)}</div>'
    return (
        f'<div class="lab-check"><span class="lab-check-mark {kind}" role="img" aria-label="{word}">{mark}</span>'
        f'<div><div class="lab-check-name">{escape(check.name)}</div>'
        f'<div class="lab-check-value">{escape(check.value)}</div>{remedy}</div></div>'
    )


def with_server(checks: Iterable[Check], running: bool) -> list[Check]:
    """The same lines; what a running server has taken already isn't missing any more."""
    return [
        replace(check, ok=True, value=f"{check.value}, with the server running", remedy="")
        if running and check.name == MEMORY
        else check
        for check in checks
    ]


def server_check(snapshot: ServerSnapshot) -> Check:
    """The server as one more line: ready means that it answered a first token."""
    if snapshot.attached and snapshot.ready and snapshot.endpoint:
        return Check("vLLM server", True, f"attached to {snapshot.endpoint.base_url}", "")
    if snapshot.ready:
        after = f" after {seconds(snapshot.ready_after_s)}" if snapshot.ready_after_s is not None else ""
        return Check("vLLM server", True, f"answered a first token{after}", "")
    if snapshot.state == ServerState.FAILED:
        cause = snapshot.diagnosis.cause if snapshot.diagnosis else snapshot.message
        return Check("vLLM server", False, cause, "The Server page shows the lines that prove it and a fix.")
    words = str(snapshot.state)
    return Check("vLLM server", False, words, "Start it." if words == "stopped" else "Wait until it is ready.")


def quick_generation(endpoint: Endpoint | None, busy: str) -> None:
    """A button that asks the server for a few tokens, and what came of it; ``busy`` says why it waits."""
    clicked = st.button(
        "Generate 16 tokens now",
        key="home_quick",
        icon=":material/bolt:",
        disabled=endpoint is None or bool(busy),
        help=plain(busy) if busy else "A real request to the running server.",
    )
    if not clicked or endpoint is None:
        return
    with errors.shown():
        trace = generate(endpoint)
        st.success(
            f"{number(trace.output_tokens)} tokens in {millis(trace.e2e_ms)} "
            f"(first after {millis(trace.ttft_ms)}, {speed(trace.decode_speed_tok_s)}): "
            f"“{plain(QUICK_PROMPT)}{plain(trace.text)}”",
            icon=":material/check_circle:",
        )


def generate(endpoint: Endpoint) -> RequestTrace:
    """One short request; raises LabError when it failed."""
    request = CompletionRequest(prompt=QUICK_PROMPT, max_tokens=QUICK_TOKENS)
    trace = run_concurrently(endpoint, [request], timeout_s=QUICK_TIMEOUT_S)[0]
    failure = trace.failure()
    if failure is not None:
        raise failure
    return trace
