"""Engines: what there is besides vLLM, when to choose which, and what was measured on this machine."""

from __future__ import annotations

import streamlit as st

from components import engines_view, errors
from components.services import lab
from engine.landscape import Measured, engines, measured_here

services = lab()
found: dict[str, Measured] = {}
with errors.shown():
    found = measured_here(services.store, services.environment.summary())

with st.container(horizontal=True, vertical_alignment="center"):
    st.title("Engines", anchor=False, width="content")
    st.space("stretch")
    st.page_link("pages/compare.py", label="Measure them", icon=":material/speed:")
st.caption("No engine is best for everyone. Only what this lab measured on this machine has numbers.")
engines_view.table(engines(), found)
engines_view.missing()
if found:
    st.caption(
        "Numbers are output tokens per second of the newest comparison that has the engine. Two engines of two "
        "comparisons may have had other prompts or lengths: the saved runs tell."
    )
