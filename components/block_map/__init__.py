"""The block map: two memories side by side with the same requests and the same clock. Runs in the browser.

The page hands over one recording (``engine/kv/recording.py``); playing, scrubbing, hovering and selecting need no
server. Names and events go in as ``textContent``, so markup in them stays text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from components import palette

HERE = Path(__file__).parent
# One module, in this order: what is used stands before what uses it.
SCRIPTS = ("memory.js", "painter.js", "view.js", "player.js")
HTML = '<div class="block-map" tabindex="0" role="group" aria-label="Contiguous and paged memory, step by step"></div>'


def script() -> str:
    return "\n".join((HERE / name).read_text("utf-8") for name in SCRIPTS)


def styles() -> str:
    return (HERE / "block_map.css").read_text("utf-8")


_mount = st.components.v2.component("vllm_lab_block_map", html=HTML, css=styles(), js=script())


def block_map(payload: Mapping[str, Any], key: str) -> None:
    """Draw a recording. A new one keeps the step and goes on playing, so that two settings can be compared."""
    _mount(key=key, data=block_map_data(payload))


def block_map_data(payload: Mapping[str, Any]) -> dict[str, Any]:
    """What the browser needs; ``id`` tells it whether this is the recording that it shows already."""
    return {
        "id": hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest(),
        "payload": payload,
        "palette": list(palette.REQUESTS),
        "kinds": {"light": palette.MEMORY_LIGHT, "dark": palette.MEMORY_DARK},
    }
