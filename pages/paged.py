"""Contiguous vs paged: the same requests in two memories, side by side. A simulation."""

from __future__ import annotations

import streamlit as st

from components import errors, kv_figures, kv_form, kv_rules, simulations
from components.block_map import block_map
from components.format import plain
from engine.config import SimulationConfig
from engine.kv.command import simulate_command
from engine.kv.figure_data import running_requests


def details(config: SimulationConfig) -> None:
    """The same simulation as charts, and what it leaves out."""
    st.subheader("Requests in memory over time", anchor=False)
    running = running_requests(simulations.simulated(config))
    st.plotly_chart(kv_figures.running_figure(running), key="paged_running", alt=kv_figures.running_alt(running))
    st.subheader("Which page size?", anchor=False)
    st.markdown(
        "Small pages waste almost nothing, but block tables grow long. Large pages leave their last slots empty."
    )
    sizes = simulations.page_sizes(config)
    left, right = st.columns(2, gap="medium")
    left.plotly_chart(
        kv_figures.page_size_figure(sizes, config.block_size), key="paged_sizes", alt=kv_figures.page_size_alt(sizes)
    )
    right.plotly_chart(
        kv_figures.table_length_figure(sizes, config.block_size),
        key="paged_tables",
        alt=kv_figures.table_length_alt(sizes),
    )


with st.container(horizontal=True, vertical_alignment="center", key="paged_head"):
    st.title("Contiguous vs paged", anchor=False)
    st.badge("Simulation", icon=":material/science:", color="violet")
    st.space("stretch")
    name = kv_form.choose_preset()
    popover = st.popover("Settings", icon=":material/tune:", key="paged_settings")

with errors.shown():
    with popover:
        config = kv_form.settings(name)
    recording = simulations.recorded(config)
    block_map(recording, key=f"{name}_map")  # another preset begins anew, another setting goes on
    for note in recording["notes"]:
        st.caption(plain(note))
    kv_rules.show(config)
    kv_form.show_command(simulate_command(config))
    details(config)
