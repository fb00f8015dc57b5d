"""The state of the server on its own page: phases, facts, diagnosis, buttons, log."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

import streamlit as st

from components import errors, html
from components.format import number, plain, seconds
from components.frame import STATE_WORDS
from engine.config import ServerConfig
from engine.server.state import PhaseProgress, ServerSnapshot, ServerState
from engine.server.supervisor import Supervisor
from engine.services import LabServices

LOG_LINES = 400


def status(supervisor: Supervisor) -> None:
    """Phases while it starts, facts once it is ready."""
    snapshot = supervisor.snapshot()
    with st.container(border=True, key="server_status"):
        if snapshot.state == ServerState.STARTING:
            html.eyebrow(f"Starting: {seconds(snapshot.elapsed_s)}{_expected(snapshot.expected_s)}")
            st.html(phases_html(snapshot.phases))
        elif snapshot.ready:
            html.facts(ready_facts(snapshot), big=True)
        else:
            html.eyebrow(STATE_WORDS[ServerState(str(snapshot.state))])
            st.markdown(plain(snapshot.message) or _idle_words(snapshot))


def _idle_words(snapshot: ServerSnapshot) -> str:
    if snapshot.state == ServerState.FAILED:
        return "The last start or the running server failed. Nothing runs now."
    if snapshot.state == ServerState.STOPPING:
        return "Stopping, and making sure that no process stays behind."
    return "Nothing runs. Choose settings below and press Start."


def _expected(expected_s: float | None) -> str:
    return f" of about {seconds(expected_s)}" if expected_s is not None else ", first start on this machine"


def phases_html(phases: tuple[PhaseProgress, ...]) -> str:
    now = next((i for i, phase in enumerate(phases) if not phase.done), len(phases))
    return f'<div class="lab-phases">{"".join(_phase(p, i == now) for i, p in enumerate(phases))}</div>'


def _phase(phase: PhaseProgress, now: bool) -> str:
    kind = "done" if phase.done else "now" if now else "later"
    width = 100.0 if phase.done else 0.0
    if now and phase.expected_s and phase.elapsed_s is not None:
        width = min(97.0, 100 * phase.elapsed_s / phase.expected_s)
    spent = seconds(phase.elapsed_s) if phase.elapsed_s is not None else ""
    expected = f"about {seconds(phase.expected_s)}" if phase.expected_s is not None else ""
    time_text = spent if phase.done else " of ".join(filter(None, (spent, expected))) if now else expected
    return (
        f'<div class="lab-phase {kind}"><div class="lab-phase-icon">{"✓" if phase.done else ""}</div>'
        f'<div class="lab-phase-name">{escape(phase.label)}</div>'
        f'<div class="lab-phase-track"><div class="lab-phase-fill" style="width:{width:.1f}%"></div></div>'
        f'<div class="lab-phase-time">{escape(time_text)}</div></div>'
    )


def ready_facts(snapshot: ServerSnapshot) -> list[tuple[str, str, str]]:
    """(label, value, note) of a running server."""
    if snapshot.attached and not snapshot.adopted:
        place = snapshot.endpoint.base_url if snapshot.endpoint else ""
        length = snapshot.endpoint.max_model_len if snapshot.endpoint else None
        unknown = "not started by the lab: its weights, dtype and threads are not known"
        engine, proof = snapshot.engine_name, snapshot.detected.evidence if snapshot.detected else ""
        return [
            ("Attached to", place, unknown),
            ("Engine", engine, proof or "it says nothing that tells: only the client's figures are known"),
            ("Context", number(length), "tokens per request"),
        ]
    capacity, config = snapshot.capacity, snapshot.config
    length = (snapshot.endpoint.max_model_len if snapshot.endpoint else None) or (config and config.max_model_len)
    most = number(config.max_num_seqs if config else None)
    blocks = f"{number(capacity.num_blocks)} blocks of {number(capacity.block_size)} tokens"
    return [
        ("Ready after", seconds(snapshot.ready_after_s), "from Start to a first token"),
        ("Context", number(length), "tokens per request"),
        ("KV cache", number(capacity.tokens), f"tokens, {blocks}"),
        ("Full-length requests", number(capacity.max_concurrency, 1), f"fit at once; {most} may run"),
    ]


def diagnosis(supervisor: Supervisor, snapshot: ServerSnapshot) -> None:
    """Cause, remedy, proof, and a button where a setting fixes it."""
    found = snapshot.diagnosis
    if found is None:
        return
    with st.container(border=True, key="server_diagnosis"):
        st.error(f"**{plain(found.cause)}**\n\n{plain(found.remedy)}", icon=":material/error:")
        if found.evidence:
            st.caption("The lines that prove it")
            st.code("\n".join(found.evidence), language=None, wrap_lines=True)
        if (
            found.fix
            and snapshot.config
            and st.button(
                f"{plain(found.fix.label)} and start",
                type="primary",
                icon=":material/build:",
                key="server_fix",
                **_off_while(snapshot),
            )
        ):
            with errors.shown():
                supervisor.start(replace(snapshot.config, **found.fix.changes))
                st.rerun()
        if snapshot.log_path:
            st.caption(f"Whole log: {plain(snapshot.log_path)}")


def _off_while(snapshot: ServerSnapshot) -> dict[str, Any]:
    """Off, with the reason, while somebody has reserved the server."""
    return {"disabled": bool(snapshot.reserved), "help": plain(snapshot.reserved) or None}


def buttons(services: LabServices, snapshot: ServerSnapshot) -> None:
    """Stop or detach what runs; starting is part of the settings."""
    if snapshot.attached:
        if st.button("Detach", icon=":material/link_off:", key="server_detach", **_off_while(snapshot)):
            with errors.shown():
                services.supervisor.detach()
                st.rerun()
        return
    running = snapshot.state in (ServerState.STARTING, ServerState.READY)
    if running and st.button(
        "Stop the server", icon=":material/stop_circle:", key="server_stop", **_off_while(snapshot)
    ):
        with errors.shown():
            services.supervisor.stop()
            st.rerun()


def changed_settings(before: ServerConfig | None, after: ServerConfig) -> list[str]:
    """Names of settings that differ, for people."""
    if before is None:
        return []
    old, new = before.to_dict(), after.to_dict()
    return [f"{name}: {old[name]} → {new[name]}" for name in new if old[name] != new[name]]


def log(supervisor: Supervisor, needle: str | None) -> None:
    lines = supervisor.log_tail(LOG_LINES, needle=needle or None)
    with st.container(height=360, autoscroll=not needle, key="server_log"):
        if lines:
            st.code("\n".join(lines), language=None, wrap_lines=True)
        else:
            st.caption("No line of the log has that." if needle else "The log is empty so far.")
