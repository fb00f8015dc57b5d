"""The prefix cache as a tree of blocks, drawn in the browser: what several requests share is one wide block.

Words go in as ``textContent``, so markup in a prompt or an answer stays text.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from components.block_tree.layout import tree_data
from engine.kv.live.follow import Cache

HERE = Path(__file__).parent
_mount = st.components.v2.component(
    "vllm_lab_block_tree",
    html='<div class="block-tree"></div>',
    css=(HERE / "block_tree.css").read_text(),
    js=(HERE / "block_tree.js").read_text(),
)


def block_tree(cache: Cache, key: str) -> None:
    """Draw what is cached; blocks that are new since the last time light up."""
    _mount(key=key, data=tree_data(cache))
