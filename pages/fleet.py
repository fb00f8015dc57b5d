"""Fleet: the metrics of several servers, one row each and summed."""

from __future__ import annotations

import streamlit as st

from components import fleet_view
from components.services import lab

POLL_S = 1.0
services = lab()
server = services.supervisor.snapshot()

with st.container(horizontal=True, vertical_alignment="center"):
    st.title("Fleet", anchor=False, width="content")
    st.space("stretch")
    if server.ready and server.endpoint is not None:
        fleet_view.add_own(services.fleet, server.endpoint.base_url, server.endpoint.api_key)
    fleet_view.remove(services.fleet)
st.caption("Several servers at once, from their metrics. Nothing is sent to them but the question for these.")
fleet_view.add_form(services.fleet)
st.fragment(fleet_view.live, run_every=POLL_S)(services.fleet)
fleet_view.where()
