"""Runs: everything that was measured, with what it takes to trust, to repeat and to compare it."""

from __future__ import annotations

import streamlit as st

from components import errors, run_compare, run_list, run_view
from components.services import lab

services = lab()
wanted, compared = st.query_params.get("run"), st.query_params.get("compare")

with errors.shown():
    run = services.store.get(wanted) if wanted else None
    if wanted and run is None:
        st.warning("This run doesn't exist (any more).", icon=":material/search_off:")
    if run is not None:
        run_view.detail(services, run)
    elif compared is not None:
        run_compare.show(services, compared)
    else:
        st.title("Runs", anchor=False)
        run_list.overview(services)
