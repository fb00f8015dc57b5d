"""What every page shares: style, brand, and the state of the server in the sidebar."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

import streamlit as st

from components import errors
from components.format import plain, seconds
from engine.errors import LabError
from engine.server.state import ServerSnapshot, ServerState
from engine.services import LabServices

HERE = Path(__file__).parent
STATE_WORDS = {
    ServerState.STOPPED: "Server stopped",
    ServerState.STARTING: "Server starting",
    ServerState.READY: "Server ready",
    ServerState.STOPPING: "Server stopping",
    ServerState.FAILED: "Server failed",
}
POLL_BUSY_S = 1.0
POLL_READY_S = 2.0
POLL_IDLE_S = 4.0


def style() -> None:
    st.html(HERE / "style.css")
    st.logo(str(HERE / "static" / "logo.svg"), size="large")


def forget_infinities() -> None:
    """Streamlit takes "inf" in the address for a number, and fails where a whole number is wanted."""
    infinite = [name for name in st.query_params if any(map(_no_number, st.query_params.get_all(name)))]
    for name in infinite:
        del st.query_params[name]
    if infinite:
        st.rerun()  # this run's widgets would still be given what the address was


def _no_number(word: str) -> bool:
    try:
        return not math.isfinite(float(word))
    except ValueError:
        return False


def cannot_open(error: LabError) -> None:
    """The services can't be opened: say why; reloading the page tries again."""
    st.title("vLLM Lab can't open")
    errors.show(error)
    st.button("Try again", icon=":material/refresh:", type="primary", key="frame_retry")


def sidebar(services: LabServices) -> None:
    with st.sidebar:
        snapshot = services.supervisor.snapshot()
        comparing = services.compare.snapshot().running
        watch = st.fragment(_badge, run_every=poll_interval(snapshot, comparing))
        watch(services, _identity(snapshot))
        if services.store.notice:
            st.warning(plain(services.store.notice), icon=":material/database:")


def poll_interval(snapshot: ServerSnapshot, comparing: bool = False) -> float:
    """Seconds between looks at the server. Also at a stopped one: another viewer or the command line may start it."""
    if snapshot.busy:
        return POLL_BUSY_S
    return POLL_READY_S if snapshot.ready or comparing else POLL_IDLE_S


Identity = tuple[str, int, bool, str]


def _identity(snapshot: ServerSnapshot) -> Identity:
    return (str(snapshot.state), snapshot.generation, snapshot.attached, snapshot.reserved)


def _badge(services: LabServices, drawn: Identity) -> None:
    snapshot = services.supervisor.snapshot()
    if _identity(snapshot) != drawn:
        st.rerun()  # the whole page: buttons and messages depend on the state
    with st.container(border=True, key="frame_badge"):
        st.html(badge_html(snapshot))
        if snapshot.state == ServerState.STARTING:
            st.progress(start_progress(snapshot), text=None)
        st.page_link("pages/server.py", label="Server settings", icon=":material/tune:")


def start_progress(snapshot: ServerSnapshot) -> float:
    """0 to 1: time against the expected time where there is history, else phases done."""
    if snapshot.expected_s and snapshot.elapsed_s is not None:
        return min(0.98, snapshot.elapsed_s / snapshot.expected_s)
    done = sum(phase.done for phase in snapshot.phases)
    return done / len(snapshot.phases) if snapshot.phases else 0.0


def badge_html(snapshot: ServerSnapshot) -> str:
    words = STATE_WORDS[ServerState(str(snapshot.state))]
    if snapshot.attached:
        words = "Attached" if snapshot.ready else "Attached server lost"
    lines = [
        f'<div class="lab-server" role="status"><div class="lab-server-state">'
        f'<span class="lab-dot {escape(str(snapshot.state))}"></span>{escape(words)}</div>'
    ]
    if model := _model_name(snapshot):
        lines.append(f'<div class="lab-server-model">{escape(model)}</div>')
    lines += [f'<div class="lab-server-note">{escape(note)}</div>' for note in _notes(snapshot)]
    return "".join(lines) + "</div>"


def _model_name(snapshot: ServerSnapshot) -> str:
    if snapshot.endpoint:
        return snapshot.endpoint.model
    return snapshot.config.model if snapshot.config and snapshot.state != ServerState.STOPPED else ""


def _notes(snapshot: ServerSnapshot) -> list[str]:
    if snapshot.state == ServerState.STARTING:
        now = next((phase.label for phase in snapshot.phases if not phase.done), "Starting")
        expected = f" of about {seconds(snapshot.expected_s)}" if snapshot.expected_s else ""
        return [now, f"{seconds(snapshot.elapsed_s)}{expected}"]
    if snapshot.state == ServerState.FAILED and snapshot.diagnosis:
        return [snapshot.diagnosis.cause]
    if snapshot.attached and snapshot.endpoint:
        engine = [snapshot.engine_name] if snapshot.detected else []
        return [*engine, snapshot.endpoint.base_url]
    if snapshot.ready and snapshot.source:
        return [f"{SOURCE_WORDS.get(str(snapshot.source.origin), str(snapshot.source.origin))} weights"]
    return []


SOURCE_WORDS = {"hub": "Hub", "bundled": "Bundled", "local": "Local folder"}
