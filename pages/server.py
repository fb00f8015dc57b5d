"""Server: what runs, how it is configured, and the proof when it doesn't start."""

from __future__ import annotations

import streamlit as st

from components import errors, frame, server_form, server_view
from components.services import lab
from engine.server.state import ServerState

FORKED = (
    " It is ready later then: the lab keeps a process that has imported vLLM, and forks servers from it instead of "
    "importing the same packages anew in every process."
)

services = lab()
snapshot = services.supervisor.snapshot()

with st.container(horizontal=True, vertical_alignment="center"):
    st.title("Server", anchor=False)
    st.space("stretch")
    server_view.buttons(services, snapshot)
if snapshot.state == ServerState.FAILED and snapshot.diagnosis:
    server_view.diagnosis(services.supervisor, snapshot)
else:
    live = st.fragment(server_view.status, run_every=frame.poll_interval(snapshot))
    live(services.supervisor)

own, attach = st.tabs(["Start with these settings", "Attach to a running server"])
with own:
    server_form.configuration(services, snapshot)
with attach:
    server_form.attach(services.supervisor, snapshot)

if snapshot.command:
    with st.expander("Show the command", icon=":material/terminal:", expanded=False):
        st.code(snapshot.command, language="bash", wrap_lines=True)
        st.caption(
            "What was started last; changes above count after a restart. Type it in a terminal to start the same "
            "server without the lab, with a key of your own in place of “…”." + (FORKED if snapshot.forked else "")
        )

if not snapshot.attached and snapshot.generation:
    st.subheader("Log", anchor=False)
    needle = st.text_input(
        "Search the log", key="server_log_needle", type="search", live=True, placeholder="For example: error, KV cache"
    )
    log = st.fragment(server_view.log, run_every=2.0 if snapshot.busy or snapshot.ready else None)
    with errors.shown():
        log(services.supervisor, needle)
