"""Runs: everything that was measured, with what it takes to trust and to repeat it."""

from __future__ import annotations

import streamlit as st

from components import errors, run_view
from components.services import lab

services = lab()
wanted = st.query_params.get("run")

with errors.shown():
    run = services.store.get(wanted) if wanted else None
    if wanted and run is None:
        st.warning("This run doesn't exist (any more).", icon=":material/search_off:")
    if run is not None:
        run_view.detail(services, run)
    else:
        st.title("Runs", anchor=False)
        run_view.overview(services)
