"""Knobs as widgets: a slider where values have an order, a switch for on and off, a list for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from components.format import plain
from engine.config import ServerConfig
from engine.tuning.knobs import Knob, Value

# They decide how much memory there is and how it is shared out; the others stand behind a click.
FIRST = ("max_model_len", "max_num_seqs", "kv_cache_gib", "gpu_memory_utilization", "max_num_batched_tokens")
MORE_COLUMNS = 2


def choose(knobs: Sequence[Knob], start: ServerConfig, suffix: str) -> ServerConfig:
    """All that are offered, set to ``start`` at first. Raises ConfigError for what can't be together."""
    offered = [knob for knob in knobs if knob.offered]
    values = {knob.name: turn(knob, start, suffix) for knob in offered if knob.name in FIRST}
    rest = [knob for knob in offered if knob.name not in FIRST]
    with st.expander("More knobs", icon=":material/tune:", key=f"tune_more_{suffix}"):
        for place, column in enumerate(st.columns(MORE_COLUMNS, gap="medium")):
            with column:
                values |= {knob.name: turn(knob, start, suffix) for knob in rest[place::MORE_COLUMNS]}
        _not_offered(knobs)
    return replace(start, **values)  # type: ignore[arg-type]


def turn(knob: Knob, start: ServerConfig, suffix: str) -> Value:
    """One knob and what it trades."""
    value: Value = getattr(start, knob.name)
    knob, key = knob.with_value(value), f"tune_{knob.name}_{suffix}"
    label = f"{knob.label} ({knob.name}){_range(knob)}"
    with st.container(gap="xxsmall"):
        if set(knob.values) == {True, False}:
            chosen: Value = st.toggle(label, bool(value), key=key, persist_state="session")
        else:
            chosen = _one_of(knob, value, label, key)
        st.caption(plain(knob.trades))
    return chosen


def _range(knob: Knob) -> str:
    """Such as “, 64 to 8,192 tokens”; empty where values have no order."""
    given = [value for value in knob.values if value is not None]
    if not knob.is_number:
        return ""
    return f", {replace(knob, unit='').show(given[0])} to {knob.show(given[-1])}"


def _one_of(knob: Knob, value: Value, label: str, key: str) -> Value:
    by_words = {knob.show(one): one for one in knob.values}
    words = list(by_words)
    if knob.is_number:
        chosen = st.select_slider(label, words, knob.show(value), key=key, persist_state="session")
    else:
        chosen = st.selectbox(label, words, words.index(knob.show(value)), key=key, persist_state="session")
    return by_words.get(chosen, value)


def _not_offered(knobs: Sequence[Knob]) -> None:
    refused = [f"{plain(knob.label)}: {plain(knob.refused)}" for knob in knobs if not knob.offered]
    if refused:
        st.caption("Not to be turned here  \n" + "  \n".join(refused))
