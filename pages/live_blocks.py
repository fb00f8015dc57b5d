"""Live blocks: the running server's own prefix cache, block by block."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from components import blocks_view, errors
from components.format import plain
from components.services import lab
from engine.server.state import ServerSnapshot, ServerState

POLL_S = 1.0
SMALL_BLOCK = 32
services = lab()
server = services.supervisor.snapshot()


def live() -> None:
    now = services.blocks.look()
    blocks_view.numbers(now)
    if now.cache is None:
        st.info(f"{plain(now.missing)} What is shown is from /metrics.", icon=":material/info:")
        return
    blocks_view.paused(now)
    blocks_view.tree(now.cache)
    left, right = st.columns([2, 3], gap="large")
    with left:
        blocks_view.events(now.cache)
    with right:
        blocks_view.four(now.four, now.cache.marks)
    blocks_view.notes(now.cache)


def send(server: ServerSnapshot) -> None:
    pressed = st.button(
        "Send four requests that share a system prompt",
        icon=":material/call_split:",
        type="primary",
        key="blocks_send",
        disabled=not server.ready or bool(server.reserved),
        help=plain(server.reserved) or None,
    )
    if pressed:
        with errors.shown():
            services.blocks.send_four()


def smaller_blocks(server: ServerSnapshot) -> None:
    """Blocks so large that a short chat fills none teach nothing."""
    size = server.capacity.block_size
    if server.attached or server.config is None or size is None or size <= SMALL_BLOCK:
        return
    st.info(f"A block is {size} tokens here: a short conversation fills none.", icon=":material/info:")
    if st.button(f"Restart with blocks of {SMALL_BLOCK} tokens", key="blocks_smaller", disabled=bool(server.reserved)):
        with errors.shown():
            services.supervisor.restart(replace(server.config, block_size=SMALL_BLOCK))
            st.rerun()


with st.container(horizontal=True, vertical_alignment="center"):
    st.title("Live blocks", anchor=False, width="content")
    st.badge("Measured: this server's own blocks", color="green")
    st.space("stretch")
    if not server.attached:
        send(server)
if server.ready:
    smaller_blocks(server)
    st.fragment(live, run_every=POLL_S)()
elif server.state == ServerState.STARTING:
    st.info(
        "The server is starting. Its blocks are shown here as soon as it is ready.", icon=":material/hourglass_top:"
    )
    st.page_link("pages/server.py", label="See how far it is", icon=":material/dns:")
else:
    st.info("The blocks of a running server are shown here, and none is ready.", icon=":material/info:")
    st.page_link("pages/server.py", label="Start or attach one", icon=":material/dns:")
