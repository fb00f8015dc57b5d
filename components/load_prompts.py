"""What is asked in a load test: prompts and their lengths, as controls."""

from __future__ import annotations

from typing import Any

import streamlit as st

from components import uploads
from components.format import plain
from engine.config import LoadTestConfig
from engine.errors import ConfigError, LabError
from engine.kv.traces import SAMPLE_CREDIT, SAMPLE_TRACE
from engine.load.prompts import POOL
from engine.services import LabServices

DEFAULTS = LoadTestConfig(slo_ttft_ms=500.0, slo_tpot_ms=100.0)
PROMPTS = {
    "synthetic": "Made up, exact length",
    "short": "Short questions",
    "long": "Long texts",
    "mixed": "Short and long",
    "chat": "Chats of several turns",
    "sharegpt": "Lengths as in ShareGPT",
    "file": "My own file",
}
SAMPLE, OWN_FILE = "Azure, conversations", "My own file"


def source(services: LabServices, profile: str) -> dict[str, Any]:
    """``prompts``, and the file they or their lengths come from; ``problem`` where there is none."""
    if profile == "trace":
        return {"prompts": DEFAULTS.prompts} | _trace(services)
    chosen = st.selectbox(
        "Prompts",
        list(PROMPTS),
        format_func=PROMPTS.__getitem__,
        key="load_prompts",
        bind="query-params",
        help="Made-up prompts are cut to an exact number of tokens by the server's own tokenizer.",
    )
    if chosen != "file":
        return {"prompts": chosen}
    return {"prompts": "file"} | _uploaded(services, "prompt_file", ["jsonl", "json", "csv"])


def _trace(services: LabServices) -> dict[str, Any]:
    chosen = st.selectbox("Trace", [SAMPLE, OWN_FILE], key="load_trace", persist_state="session", help=SAMPLE_CREDIT)
    if chosen == SAMPLE:
        return {"trace": str(SAMPLE_TRACE)}
    return _uploaded(services, "trace", ["csv"])


def _uploaded(services: LabServices, name: str, kinds: list[str]) -> dict[str, Any]:
    """The file's path as the setting ``name``; a ``problem`` where there is none, or it can't be kept."""
    file = st.file_uploader("File", kinds, key=f"load_{name}", label_visibility="collapsed")
    if name == "prompt_file":
        st.caption(f"A test asks the first {POOL:,} prompts of a file, in turn.")
    kept = f"load_{name}_kept"  # a browser's file is gone after a change of page, ours isn't
    if file is not None:
        try:
            st.session_state[kept] = str(uploads.keep(services.settings, file.name, file.getvalue()))
        except LabError as error:
            return {"problem": error}
    path = st.session_state.get(kept)
    if path is None:
        return {"problem": ConfigError("No file was given.", f"Choose one: {', '.join(kinds)}.")}
    if file is None:
        st.caption(plain(f"Still: {uploads.given_name(path)}"))
    return {name: path}


def lengths(profile: str, prompts: str) -> dict[str, Any]:
    """Tokens of prompts and answers, where they aren't those of a recording."""
    if profile == "trace" or prompts == "sharegpt":
        st.caption("Lengths of prompts and answers are those of the recording, cut to what the server takes.")
        return {}
    found: dict[str, Any] = {}
    left, right = st.columns(2, gap="small")
    if prompts == "synthetic":
        found["prompt_tokens"] = left.number_input(
            "Prompt tokens", 1, 131_072, DEFAULTS.prompt_tokens, 16, key="load_prompt_tokens", bind="query-params"
        )
    elif prompts == "chat":
        found["turns"] = left.number_input("Turns", 1, 20, DEFAULTS.turns, key="load_turns", persist_state="session")
    found["max_tokens"] = right.number_input(
        "Output tokens",
        1,
        131_072,
        DEFAULTS.max_tokens,
        10,
        key="load_max_tokens",
        bind="query-params",
        help="Every answer is forced to this length where the engine can, so that levels compare.",
    )
    return {name: int(value or 1) for name, value in found.items()}
