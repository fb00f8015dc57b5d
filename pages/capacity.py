"""How many fit?: users on a card, paged against contiguous. Arithmetic, with its assumptions in the open."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from components import capacity_form, capacity_view, errors
from components.services import lab
from engine.environment import detect_hardware
from engine.kv.cards import Card
from engine.kv.fit import Fit, ask
from engine.kv.proof import against_server

services = lab()


def on_another(other: Card) -> Fit:
    """The same question; a block size is chosen for GPUs or for CPUs."""
    return ask(question if other.is_cpu == card.is_cpu else replace(question, block_size=None), other)


with st.container(horizontal=True, vertical_alignment="center", key="capacity_head"):
    st.title("How many fit?", anchor=False, width="content")
    st.badge("Calculator", icon=":material/calculate:", color="violet")
    st.space("stretch")
    popover = st.popover("Assumptions", icon=":material/tune:", key="capacity_assumptions")

with errors.shown():
    cards = capacity_form.cards_with(detect_hardware(services.settings))
    card = capacity_form.choose_card(cards)
    subject = capacity_form.choose_model(services.settings)
    question = capacity_form.lengths(subject.shape)
    with popover:
        question = capacity_form.assumptions(question, subject, card)
        given = capacity_form.kv_memory(card) if card.is_cpu else None
    chosen = replace(question, kv_memory_bytes=given)
    fit = ask(chosen, card)
    with st.container(border=True, key="capacity_answer"):
        capacity_view.answer(fit, chosen, subject)
        capacity_view.numbers(fit)
    if found := against_server(services.supervisor.snapshot(), services.environment.hardware):
        capacity_view.proof(found)
    st.subheader("On every card", anchor=False)
    capacity_view.every_card([fit if other is card else on_another(other) for other in cards], card.key)
    capacity_view.rules(subject)
    capacity_view.show_commands(chosen, subject, fit)
