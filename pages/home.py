"""Home: what this is, whether the machine is fit for it, and what to do next."""

from __future__ import annotations

import streamlit as st

from components import checks, errors, html, results
from components.format import moment
from components.services import lab
from engine.environment import static_checks
from engine.server.state import ServerState

services = lab()
snapshot = services.supervisor.snapshot()

with st.container(border=True, key="home_hero"):
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
    st.page_link(
        "pages/compare.py",
        label="Measure it again" if best else "Measure HF against vLLM",
        icon=":material/play_arrow:",
    )

st.markdown(
    "**vLLM Lab** runs a real vLLM server on this machine and measures it while you watch. "
    "It shows how fast it answers, why, and what each setting changes. "
    "Every number is measured here and now, and kept with the hardware and software it came from."
)

st.subheader("Is this machine ready?", anchor=False)
checks.show((*static_checks(services.environment, services.settings), checks.server_check(snapshot)))
with st.container(horizontal=True):
    endpoint = snapshot.endpoint if snapshot.ready else None
    if snapshot.state in (ServerState.STOPPED, ServerState.FAILED) and st.button(
        "Start the server", type="primary", icon=":material/play_arrow:", key="home_start"
    ):
        with errors.shown():
            services.supervisor.start(snapshot.config)
            st.rerun()
    checks.quick_generation(endpoint, services.compare.snapshot().state == "running")

st.subheader("What to do next", anchor=False)
with st.container(key="home_next"):
    for column, (target, label, icon, text) in zip(
        st.columns(3),
        (
            (
                "pages/compare.py",
                "Race HF against vLLM",
                ":material/speed:",
                "Two answers side by side, then the numbers.",
            ),
            ("pages/chat.py", "Chat and watch", ":material/forum:", "Time to first token, every gap, cache reuse."),
            (
                "pages/server.py",
                "Turn the knobs",
                ":material/tune:",
                "Context length, batch size, cache: see what they do.",
            ),
        ),
        strict=True,
    ):
        with column.container(border=True, height="stretch"):
            st.page_link(target, label=label, icon=icon)
            st.caption(text)
