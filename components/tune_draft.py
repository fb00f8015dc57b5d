"""Where the knobs of a browser tab start: what runs, or a configuration that was loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import streamlit as st

from engine.config import ServerConfig
from engine.server.state import ServerSnapshot

KEY, SECTION = "tune_draft", "tune_section"
KNOBS, EXPERIMENTS, PROFILES = "Turn a knob", "Experiments", "Profiles"


@dataclass(frozen=True)
class Draft:
    """``config`` None: what runs. ``number`` counts new beginnings, so that the widgets of an older one are left."""

    generation: int = 0
    number: int = 0
    config: ServerConfig | None = None
    name: str = ""

    @property
    def suffix(self) -> str:
        """For the keys of widgets."""
        return f"{self.generation}_{self.number}"


def base_of(server: ServerSnapshot) -> ServerConfig:
    """What knobs are turned against: the lab's own server, else what the lab would start."""
    foreign = server.attached and not server.adopted
    return server.config if server.config is not None and not foreign else ServerConfig()


def why_not(server: ServerSnapshot) -> str:
    """Why the server can't be restarted now; empty when it can."""
    if server.attached:
        return "The lab is attached to a server that it can't restart. Detach first."
    if server.reserved:
        return server.reserved
    return "Waits until the start or the stop is over." if server.busy else ""


def current(server: ServerSnapshot) -> Draft:
    """A start by anybody ends a draft: the knobs show what runs then."""
    found = st.session_state.get(KEY)
    if found is None or found.generation != server.generation:
        found = Draft(server.generation, found.number + 1 if found else 0)
        st.session_state[KEY] = found
    return found  # type: ignore[no-any-return]


def load(server: ServerSnapshot, config: ServerConfig | None, name: str = "") -> None:
    """A button's callback: set the knobs to a configuration (None: back to what runs), and show them."""
    kept = None if config is None else replace(config, port=base_of(server).port)
    st.session_state[KEY] = Draft(server.generation, current(server).number + 1, kept, name)
    st.session_state[SECTION] = KNOBS
