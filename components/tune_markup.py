"""Markup of the tuning page; every value is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import streamlit as st

VERDICTS = {True: ("better", "▲"), False: ("worse", "▼"), None: ("same", "")}


@dataclass(frozen=True)
class Change:
    """One measure before → after, in words; ``better`` None: neither, or nothing worth a word."""

    label: str
    before: str
    after: str
    note: str = ""
    better: bool | None = None


def number(value: str, claim: str, colour: str) -> None:
    """One number that a room can read, and what it counts."""
    st.html(
        f'<div class="lab-tune-number"><div class="lab-number" style="color:{escape(colour)}">{escape(value)}</div>'
        f'<div class="lab-claim">{escape(claim)}</div></div>'
    )


def changes(items: Iterable[Change]) -> None:
    """Big numbers, what was and what is."""
    st.html(f'<div class="lab-changes">{"".join(map(_change, items))}</div>')


def _change(item: Change) -> str:
    kind, mark = VERDICTS[item.better]
    words = " ".join(filter(None, (item.note, "" if item.better is None else kind)))
    return (
        f'<div><div class="lab-fact-label">{escape(item.label)}</div>'
        f'<div class="lab-change"><span class="lab-before">{escape(item.before)}</span>'
        f'<span class="lab-arrow">→</span><span class="lab-after">{escape(item.after)}</span></div>'
        f'<div class="lab-change-note {kind}">{escape(f"{mark} {words}".strip())}</div></div>'
    )


def steps(names: Sequence[str], now: int) -> None:
    """Where a piece of work is: steps before ``now`` are done."""
    cells = []
    for place, name in enumerate(names):
        kind = "done" if place < now else "now" if place == now else "later"
        mark = "✓" if kind == "done" else str(place + 1)
        current = ' aria-current="step"' if kind == "now" else ""
        cells.append(f'<li class="{kind}"{current}><span>{mark}</span>{escape(name)}</li>')
    st.html(f'<ol class="lab-steps">{"".join(cells)}</ol>')
