"""The router: pages, the shared frame, and what to say when the services can't be opened. Nothing else."""

from __future__ import annotations

import streamlit as st

from components import frame
from components.services import lab
from engine.errors import LabError

st.set_page_config(page_title="vLLM Lab", page_icon=":material/bolt:", layout="wide", initial_sidebar_state=272)

page = st.navigation(
    {
        "": [st.Page("pages/home.py", title="Home", icon=":material/home:", default=True)],
        "Measure": [
            st.Page("pages/compare.py", title="HF vs vLLM", icon=":material/speed:", url_path="compare"),
            st.Page("pages/chat.py", title="Chat", icon=":material/forum:", url_path="chat"),
            st.Page("pages/load.py", title="Load test", icon=":material/stacked_line_chart:", url_path="load"),
            st.Page("pages/tune.py", title="Tuning", icon=":material/tune:", url_path="tune"),
            st.Page("pages/monitor.py", title="Dashboard", icon=":material/monitoring:", url_path="monitor"),
            st.Page("pages/engines.py", title="Engines", icon=":material/travel_explore:", url_path="engines"),
            st.Page("pages/fleet.py", title="Fleet", icon=":material/hub:", url_path="fleet"),
        ],
        "KV cache": [
            st.Page("pages/paged.py", title="Contiguous vs paged", icon=":material/grid_view:", url_path="paged"),
            st.Page("pages/capacity.py", title="How many fit?", icon=":material/groups:", url_path="capacity"),
            st.Page("pages/paper.py", title="The paper's figure", icon=":material/menu_book:", url_path="paper"),
            st.Page("pages/live_blocks.py", title="Live blocks", icon=":material/account_tree:", url_path="blocks"),
        ],
        "Lab": [
            st.Page("pages/server.py", title="Server", icon=":material/dns:", url_path="server"),
            st.Page("pages/runs.py", title="Runs", icon=":material/history:", url_path="runs"),
        ],
    },
    expanded=True,  # else the last pages hide behind “View more” on a projector
)
frame.style()
frame.forget_infinities()
try:
    services = lab()
except LabError as error:
    frame.cannot_open(error)
    st.stop()
frame.sidebar(services)
page.run()
