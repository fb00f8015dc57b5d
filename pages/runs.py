"""Runs: everything that was measured, with what it takes to trust and to repeat it."""

from __future__ import annotations

import streamlit as st

from components import run_view
from components.services import lab

services = lab()
runs = services.store.list()
wanted = st.query_params.get("run")
run = services.store.get(wanted) if wanted else None

if wanted and run is None:
    st.warning("This run doesn't exist (any more).", icon=":material/search_off:")
if run is not None:
    run_view.detail(services, run)
elif not runs:
    st.title("Runs", anchor=False)
    st.markdown("Nothing was measured yet. Every comparison is saved here by itself, with its hardware and software.")
    st.page_link("pages/compare.py", label="Measure HF against vLLM", icon=":material/play_arrow:")
else:
    st.title("Runs", anchor=False)
    run_view.overview(runs)
