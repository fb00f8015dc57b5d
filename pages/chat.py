"""Chat: real answers, with what they cost beside them."""

from __future__ import annotations

import secrets

import streamlit as st

from components import chat_view, errors
from components.format import plain
from components.services import lab
from engine.errors import LabError
from engine.server.state import ServerState

POLL_S = 0.3
# The chart is what a browser draws longest, on the cores that the answer comes from.
PANEL_POLL_S = 1.0
services = lab()
server = services.supervisor.snapshot()
endpoint = server.endpoint if server.ready else None
measuring = server.reserved

# The id is part of the address: a refresh, a second tab or a shared link shows the same conversation.
if not st.query_params.get("chat"):
    st.query_params["chat"] = st.session_state.setdefault("chat_id", secrets.token_urlsafe(9))
st.session_state["chat_id"] = st.query_params["chat"]
session = services.chats.get(st.query_params["chat"])
snapshot = session.snapshot()


def conversation(drawn: tuple[bool, bool]) -> None:
    now = session.snapshot()
    if (now.streaming, now.saved.pending) != drawn:
        st.rerun()
    with st.container(height=440, border=False, autoscroll=True, key="chat_turns"):
        if now.turns:
            chat_view.turns(now)
        else:
            st.markdown("Ask something. Then ask again: the second turn finds most of its prompt in the cache.")


def panel(streaming: bool) -> None:
    now = session.snapshot()
    if now.streaming == streaming:  # the conversation's fragment redraws the page when it ends
        chat_view.numbers(now, endpoint)


def notice() -> None:
    """Why nothing can be sent now."""
    if server.state == ServerState.STARTING:
        st.info("The server is starting. You can chat as soon as it is ready.", icon=":material/hourglass_top:")
        st.page_link("pages/server.py", label="See how far it is", icon=":material/dns:")
    elif endpoint is None:
        st.info("Chat needs a running server.", icon=":material/info:")
        st.page_link("pages/server.py", label="Start or attach one", icon=":material/dns:")
    else:
        st.info(f"{plain(measuring)} Chatting now would slow it down.", icon=":material/timer:")


def placeholder() -> str:
    if server.state == ServerState.STARTING:
        return "The server is starting"
    return "Message to the model" if endpoint else "Start the server first"


left, right = st.columns([3, 2], gap="large")
drawn = (snapshot.streaming, snapshot.saved.pending)
every = POLL_S if any(drawn) else None
with left:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.title("Chat", anchor=False)
        st.space("stretch")
        options = chat_view.options()
        if st.button("New chat", icon=":material/add_comment:", key="chat_clear", disabled=not snapshot.turns):
            session.clear()
            st.rerun()
        if snapshot.saved.run_id and not snapshot.streaming:
            chat_view.saved_link(snapshot.saved.run_id)
        elif st.button("Stop", icon=":material/stop_circle:", key="chat_stop", disabled=not snapshot.streaming):
            session.stop()
    if endpoint is None or measuring:
        with st.container(key="chat_notice"):
            notice()
    if snapshot.saved.error is not None:
        with st.container(key="chat_not_saved"):
            chat_view.not_saved(snapshot.saved.error)
    st.fragment(conversation, run_every=every)(drawn)
    text = st.chat_input(
        placeholder(),
        key="chat_input",
        disabled=endpoint is None or bool(measuring) or snapshot.streaming,
    )
    if text is not None and endpoint is not None:
        try:
            session.send(endpoint, text, options)
        except LabError as error:
            errors.show(error)
            st.caption("Your message, to copy:")
            st.code(text, language=None, wrap_lines=True)
        else:
            st.rerun()
with right, st.container(border=True, key="chat_numbers"):
    st.fragment(panel, run_every=PANEL_POLL_S if snapshot.streaming else None)(snapshot.streaming)
