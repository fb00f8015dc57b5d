"""What is simulated, as controls. Every preset keeps choices of its own, and they are part of the address."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import streamlit as st

from engine.config import ALLOCATORS, CONTIGUOUS_ALLOCATORS, SimulationConfig
from engine.kv.figure_data import PAGE_SIZES
from engine.kv.presets import ALLOCATOR_TITLES, ANIMATIONS
from engine.kv.recording import MOST_REQUESTS, MOST_SLOTS

SHORT_TITLES = {
    "lab": "Mixed",
    "shared_prefix": "Shared prompt",
    "parallel": "Four answers",
    "tight": "Tight memory",
}
MAX_LENGTHS = (64, 128, 256, 512, 1024, 2048)
PAGED_ALLOCATORS = tuple(name for name in ALLOCATORS if name not in CONTIGUOUS_ALLOCATORS)
LEAST_SLOTS = 256
SLOTS_STEP = 4
DEFAULT = "lab"


def choose_preset() -> str:
    """Name of an animation."""
    chosen = st.segmented_control(
        "Preset",
        list(ANIMATIONS),
        format_func=lambda name: SHORT_TITLES.get(name, ANIMATIONS[name].title),
        default=DEFAULT,
        required=True,
        key="paged_preset",
        label_visibility="collapsed",
        bind="query-params",
    )
    return chosen or DEFAULT


def settings(name: str) -> SimulationConfig:
    """The preset with what was changed; raises ConfigError for what can't be simulated."""
    config = ANIMATIONS[name].config
    left, right = st.columns(2, gap="medium")
    with left:
        memory = _memory(name, config)
    with right:
        load = _load(name, config)
    return replace(config, **memory, **load)


def _memory(name: str, config: SimulationConfig) -> dict[str, Any]:
    return {
        "block_size": st.select_slider(
            "Page size (tokens)",
            PAGE_SIZES,
            config.block_size,
            key=f"{name}_page",
            bind="query-params",
            help="Tokens in one block of paged memory. Small pages waste less, large ones need shorter block tables.",
        ),
        "max_model_len": st.select_slider(
            "Max length (tokens)",
            MAX_LENGTHS,
            config.max_model_len,
            key=f"{name}_length",
            bind="query-params",
            help="max_model_len: the most that prompt and answer may have together. "
            "“Contiguous (max length)” keeps this much for every request.",
        ),
        "memory_tokens": st.slider(
            "Memory (slots for tokens)",
            LEAST_SLOTS,
            MOST_SLOTS,
            config.memory_tokens,
            SLOTS_STEP,
            key=f"{name}_memory",
            bind="query-params",
        ),
        "allocators": (
            _allocator("Left", CONTIGUOUS_ALLOCATORS, config.allocators[0], f"{name}_left"),
            _allocator("Right", PAGED_ALLOCATORS, config.allocators[1], f"{name}_right"),
        ),
    }


def _load(name: str, config: SimulationConfig) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "arrivals_per_100_steps": float(
            st.slider(
                "Arrivals (requests per 100 steps)",
                1,
                200,
                round(config.arrivals_per_100_steps or 1),
                key=f"{name}_arrivals",
                bind="query-params",
                help="Poisson arrivals. One step is one decode iteration: a token for every request in memory.",
            )
        )
    }
    if config.workload == "lab":
        changes["long_share"] = (
            st.slider(
                "Long prompts (%)", 0, 100, round(config.long_share * 100), key=f"{name}_long", bind="query-params"
            )
            / 100
        )
    if config.workload == "shared_prefix":
        changes["prefix_tokens"] = st.slider(
            "Shared system prompt (tokens)", 0, 256, config.prefix_tokens, 8, key=f"{name}_prefix", bind="query-params"
        )
    if config.workload == "parallel":
        changes["samples"] = st.slider(
            "Answers to each prompt", 1, 8, config.samples, key=f"{name}_samples", bind="query-params"
        )
    changes["requests"] = st.slider(
        "Requests", 1, MOST_REQUESTS, config.requests, key=f"{name}_requests", bind="query-params"
    )
    changes["seed"] = int(
        st.number_input(
            "Seed",
            0,
            1_000_000,
            config.seed,
            key=f"{name}_seed",
            bind="query-params",
            help="The same seed gives the same requests.",
        )
    )
    return changes


def _allocator(label: str, names: Sequence[str], chosen: str, key: str) -> str:
    return st.selectbox(
        label, names, names.index(chosen), format_func=ALLOCATOR_TITLES.__getitem__, key=key, bind="query-params"
    )


def command(config: SimulationConfig) -> str:
    """The same simulation from a terminal: what differs from the defaults, and always the workload."""
    words = ["python", "-m", "engine", "simulate", "--workload", config.workload]
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name in ("workload", "allocators") or value == field.default:
            continue
        words += [f"--{field.name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    words += ["--allocators", ",".join(config.allocators)]
    return shlex.join(words)


def show_command(line: str) -> None:
    with st.expander("Show the command", icon=":material/terminal:"):
        st.code(line, language="bash", wrap_lines=True)
        st.caption("The same simulation in a terminal, with its averages. Add `--json` for all of its numbers.")
