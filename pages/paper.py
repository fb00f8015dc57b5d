"""The paper's figure: what PagedAttention's authors published, and what our simulation gives."""

from __future__ import annotations

import streamlit as st

from components import errors, kv_figures, kv_form, palette, paper_view, simulations
from components.format import plain
from engine.kv.command import simulate_command
from engine.kv.figure_data import bars
from engine.kv.presets import preset

PAPERS = {"paper-sharegpt": "ShareGPT", "paper-alpaca": "Alpaca"}

with st.container(horizontal=True, vertical_alignment="center", key="paper_head"):
    st.title("The paper's figure", anchor=False)
    st.badge("Simulation", icon=":material/science:", color="violet")
    st.space("stretch")
    name = st.segmented_control(
        "Requests",
        list(PAPERS),
        format_func=PAPERS.__getitem__,
        default="paper-sharegpt",
        required=True,
        key="paper_preset",
        label_visibility="collapsed",
        bind="query-params",
    )
    seed = st.number_input(
        "Seed",
        0,
        1_000_000,
        0,
        key="paper_seed",
        bind="query-params",
        width=150,
        label_visibility="collapsed",
        icon=":material/casino:",
    )

chosen = name or "paper-sharegpt"
with errors.shown():
    config = preset(chosen, seed=int(seed))
    with st.spinner(f"Simulating {config.requests:,} requests under {len(config.allocators)} allocators…"):
        result = simulations.simulated(config)
    shown = bars(result)
    paper_view.claim(any(bar.published_token_states_pct is not None for bar in shown))
    figure = kv_figures.shares_figure(shown, palette.memory(st.context.theme.type))
    st.plotly_chart(figure, key="paper_shares", alt=kv_figures.shares_alt(shown))
    paper_view.differences(shown)
    st.subheader("What differs from the paper", anchor=False)
    st.markdown("\n".join(f"- {plain(note)}" for note in result.notes))
    kv_form.show_command(simulate_command(config))
    paper_view.citation()
