"""The command line that repeats a simulation without a browser."""

from __future__ import annotations

import shlex
from dataclasses import fields

from engine.config import SimulationConfig
from engine.kv.presets import PRESETS, matching_preset

ALWAYS_SAID = ("workload", "memory_tokens", "max_model_len")


def simulate_command(config: SimulationConfig) -> str:
    """``python -m engine simulate …`` with what differs from its preset (or from the defaults)."""
    name = matching_preset(config)
    base = PRESETS[name].config if name else SimulationConfig()
    words = ["python", "-m", "engine", "simulate"]
    if name:
        words += ["--preset", name]
    for field in fields(config):
        value = getattr(config, field.name)
        always = not name and field.name in ALWAYS_SAID
        if value is not None and (always or value != getattr(base, field.name)):
            words += [f"--{field.name.replace('_', '-')}", _word(value)]
    return shlex.join(words)


def _word(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
