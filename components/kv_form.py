"""What is simulated, as controls. Every preset keeps choices of its own, and they are part of the address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    with st.container(key="paged_controls"):
        changes = _main(name, config)
        with st.expander("More", key="paged_more"):
            changes |= _more(name, config)
    return replace(config, **changes)


def _main(name: str, config: SimulationConfig) -> dict[str, Any]:
    changes: dict[str, Any] = {
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
        "memory_tokens": _slider("Memory (slots)", LEAST_SLOTS, MOST_SLOTS, config.memory_tokens, f"{name}_memory", 4),
        "arrivals_per_100_steps": float(
            _slider(
                "Arrivals per 100 steps",
                1,
                200,
                round(config.arrivals_per_100_steps or 1),
                f"{name}_arrivals",
                help="Requests, at random (Poisson). One step is one decode iteration: a token for each one in memory.",
            )
        ),
    }
    return changes | _workload(name, config)


def _workload(name: str, config: SimulationConfig) -> dict[str, Any]:
    """What only this kind of requests has."""
    if config.workload == "lab":
        return {"long_share": _slider("Long prompts (%)", 0, 100, round(config.long_share * 100), f"{name}_long") / 100}
    if config.workload == "shared_prefix":
        tokens = _slider("Shared prompt (tokens)", 0, 256, config.prefix_tokens, f"{name}_prefix", 8)
        return {"prefix_tokens": tokens}
    return {"samples": _slider("Answers to each prompt", 1, 8, config.samples, f"{name}_samples")}


def _more(name: str, config: SimulationConfig) -> dict[str, Any]:
    left = _allocator("Left", CONTIGUOUS_ALLOCATORS, config.allocators[0], f"{name}_left")
    right = _allocator("Right", PAGED_ALLOCATORS, config.allocators[1], f"{name}_right")
    requests = _slider("Requests", 1, MOST_REQUESTS, config.requests, f"{name}_requests")
    seed = st.number_input(
        "Seed",
        0,
        1_000_000,
        config.seed,
        key=f"{name}_seed",
        bind="query-params",
        help="The same seed gives the same requests.",
    )
    return {"allocators": (left, right), "requests": requests, "seed": int(seed)}


def _slider(label: str, low: int, high: int, value: int, key: str, step: int = 1, help: str | None = None) -> int:
    return int(st.slider(label, low, high, value, step, key=key, bind="query-params", help=help))


def _allocator(label: str, names: Sequence[str], chosen: str, key: str) -> str:
    return st.selectbox(
        label, names, names.index(chosen), format_func=ALLOCATOR_TITLES.__getitem__, key=key, bind="query-params"
    )


def show_command(line: str) -> None:
    with st.expander("Show the command", icon=":material/terminal:"):
        st.code(line, language="bash", wrap_lines=True)
        st.caption("The same simulation in a terminal, with its averages. Add `--json` for all of its numbers.")
