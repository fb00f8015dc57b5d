"""The engines there are as a table: what each is for, when to choose it, and what was measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from components import html
from components.format import moment, speed
from engine.landscape import EngineFacts, Measured
from engine.peers.launching import PEERS

HEAD = ("Engine", "What it is for", "Choose it when", "Runs on", "Measured here")
NOT_MEASURED = "Not measured here"


def table(engines: Sequence[EngineFacts], measured: Mapping[str, Measured]) -> None:
    """One row an engine; the last column is from the newest comparison on this machine, with its date."""
    rows = [
        (facts.name, facts.purpose, facts.choose, facts.hardware, _measured(measured.get(facts.key or "")))
        for facts in engines
    ]
    with st.container(key="engines_table"):
        html.table(HEAD, rows)


def missing() -> None:
    """What could be measured here, and how to get it."""
    for peer in PEERS.values():
        if (reason := peer.missing()) is not None:
            st.caption(f"{peer.label} can be measured here too. {reason.remedy}")


def _measured(found: Measured | None) -> str:
    if found is None:
        return NOT_MEASURED
    alone = found.throughput_tok_s.get(1)
    words = [f"{speed(alone)} for one user"] if alone is not None else []
    words += [f"{speed(value)} for {users} at once" for users, value in found.throughput_tok_s.items() if users > 1][
        -1:
    ]
    doubt = "; other programs disturbed it" if found.doubted else ""
    return f"{', '.join(words)} ({moment(found.created_at)}{doubt})"
