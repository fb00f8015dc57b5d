"""Simulations for the pages, remembered by their configuration: the same one is never worked out twice."""

from __future__ import annotations

from typing import Any

import streamlit as st

from engine.config import SimulationConfig
from engine.kv import figure_data
from engine.kv.recording import record
from engine.kv.simulate import SimulationResult, simulate

# One recording is about 0.3 MB, one result of the paper's size about 5 MB.
_remember = st.cache_data(max_entries=24, show_spinner=False)


@_remember
def recorded(config: SimulationConfig) -> dict[str, Any]:
    """The animation's payload; raises ConfigError where it can't be drawn."""
    return record(config)


@_remember
def simulated(config: SimulationConfig) -> SimulationResult:
    return simulate(config)


@_remember
def page_sizes(config: SimulationConfig) -> list[figure_data.PageSize]:
    """The first paged allocator of the config with every page size."""
    return figure_data.page_sizes(config)
