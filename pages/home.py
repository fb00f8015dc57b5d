"""Home: what this is, whether the machine is fit for it, and what to do next."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from components import checks, errors, html, results
from components.format import moment, plain
from components.services import lab
from engine.environment import detect_hardware, static_checks
from engine.server.state import ServerState

NEXT = (
    ("pages/compare.py", "Race HF against vLLM", ":material/speed:", "Two answers side by side, then the numbers."),
    ("pages/chat.py", "Chat and watch", ":material/forum:", "Time to first token, every gap, cache reuse."),
    ("pages/server.py", "Turn the knobs", ":material/tune:", "Context, batch, cache: see what they do."),
)
services = lab()
snapshot = services.supervisor.snapshot()
endpoint = snapshot.endpoint if snapshot.ready else None

with st.container(border=True, key="home_hero"):
    best = None
    with errors.shown():
        best = results.last_ratio(services.store)
    if best:
        run, measured = best
        html.eyebrow("Measured on this machine" if results.same_machine(run, services.environment) else "Last measured")
        results.headline(measured, f"{moment(run.created_at)} · {results.summary_of(run)}")
    else:
        st.title("How much faster is vLLM here?", anchor=False)
        st.markdown(
            "Nothing is measured yet. One button answers it: the same weights, prompt and length, "
            "first with plain Hugging Face, then with vLLM."
        )

with st.container(horizontal=True, vertical_alignment="center", key="home_actions"):
    if not snapshot.attached and snapshot.state in (ServerState.STOPPED, ServerState.FAILED):
        start = st.button(
            "Start the server",
            icon=":material/power_settings_new:",
            key="home_start",
            disabled=bool(snapshot.reserved),
            help=plain(snapshot.reserved) or None,
        )
        if start:
            with errors.shown():
                services.supervisor.start(snapshot.config)
                st.rerun()
    st.page_link(
        "pages/compare.py",
        label="Measure it again" if best else "Measure HF against vLLM",
        icon=":material/play_arrow:",
    )
    checks.quick_generation(endpoint, snapshot.reserved)

with st.container(key="home_next"):
    for column, (target, label, icon, text) in zip(st.columns(3), NEXT, strict=True):
        with column.container(border=True, height="stretch"):
            st.page_link(target, label=label, icon=icon)
            st.caption(text)

st.markdown(
    "**vLLM Lab** runs a real vLLM server and measures it while you watch: how fast it answers, why, and what each "
    "setting changes. Every number is measured here, and kept with the hardware and software it came from."
)

st.subheader("Is this machine ready?", anchor=False)
# Memory changes while the app is open; looking costs milliseconds.
now = replace(services.environment, hardware=detect_hardware(services.settings))
running = snapshot.ready and not snapshot.attached
lines = checks.with_server(static_checks(now, services.settings), running)
checks.show((checks.server_check(snapshot), *lines))
