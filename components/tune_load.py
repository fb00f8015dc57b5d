"""The load that configurations are measured with, and the limits that a good one keeps."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from engine.config import LoadTestConfig
from engine.units import counted

LIMITS = (
    ("slo_ttft_ms", "TTFT p95 (ms)", 50.0),
    ("slo_tpot_ms", "TPOT p95 (ms)", 10.0),
    ("slo_e2e_ms", "E2E p95 (ms)", 500.0),
)


def in_words(load: LoadTestConfig) -> str:
    """Such as "20 users for 10 s, 64 prompt and 50 output tokens"."""
    users = load.users[0] if load.users else None
    who = f"{load.rates[0]:g} requests/s" if users is None else counted(users, "user")
    if load.duration_s is not None:
        who += f" for {load.duration_s:g} s"
    elif load.requests is not None:
        who += f", {counted(load.requests, 'request')}"
    return f"{who}, {load.prompt_tokens:,} prompt and {load.max_tokens:,} output tokens"


def choose(defaults: LoadTestConfig, prefix: str) -> LoadTestConfig:
    """Behind a button that says what is chosen; the same load for every configuration, so that they compare."""
    with st.popover("Load", icon=":material/groups:", help="The short benchmark that every configuration gets."):
        left, right = st.columns(2, gap="small")
        users = left.number_input("Users", 1, 1000, defaults.users[0], key=f"{prefix}_users", persist_state="session")
        duration_s = right.number_input(
            "Seconds",
            1.0,
            600.0,
            defaults.duration_s,
            5.0,
            format="%g",
            key=f"{prefix}_seconds",
            persist_state="session",
        )
        prompt = left.number_input(
            "Prompt tokens", 1, 131_072, defaults.prompt_tokens, 16, key=f"{prefix}_prompt", persist_state="session"
        )
        output = right.number_input(
            "Output tokens", 1, 131_072, defaults.max_tokens, 10, key=f"{prefix}_output", persist_state="session"
        )
        same = st.toggle(
            "Same prompt for all",
            key=f"{prefix}_same",
            persist_state="session",
            help="The prefix cache then answers for most of the prompt, where it is on.",
        )
    return replace(
        defaults,
        users=(int(users),),
        duration_s=float(duration_s or 10.0),
        prompt_tokens=int(prompt),
        max_tokens=int(output),
        same_prompt=same,
    )


def choose_limits(load: LoadTestConfig, prefix: str) -> LoadTestConfig:
    """The SLO: three numbers that may be empty."""
    limits = {}
    for column, (name, label, step) in zip(st.columns(len(LIMITS), gap="small"), LIMITS, strict=True):
        limits[name] = column.number_input(
            f"{label} at most",
            0.1,
            86_400_000.0,
            None,
            step,
            format="%g",
            placeholder="no limit",
            key=f"{prefix}_{name}",
            persist_state="session",
        )
    return replace(load, **limits)
