"""Small pieces of our own markup. Every value is escaped here, so that no text from outside becomes markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import streamlit as st


def eyebrow(text: str) -> None:
    st.html(f'<div class="lab-eyebrow">{escape(text)}</div>')


def hero(number: str, claim: str, note: str, colour: str) -> None:
    """One number that a room can read."""
    st.html(
        f'<div class="lab-hero"><div class="lab-number" style="color:{escape(colour)}">{escape(number)}</div>'
        f'<div class="lab-claim">{escape(claim)}<div class="lab-note">{escape(note)}</div></div></div>'
    )


def bars(rows: Iterable[tuple[str, float | None, str, str]]) -> None:
    """Horizontal bars: (name, length or None, text of the value, colour); the longest fills the width."""
    rows = list(rows)
    longest = max((value for _, value, _, _ in rows if value), default=0)
    lines = []
    for name, value, text, colour in rows:
        width = 78 * value / longest if value and longest else 0
        lines.append(
            f'<div class="lab-bar"><div>{escape(name)}</div><div class="lab-bar-track">'
            f'<div class="lab-bar-fill" style="width:{width:.2f}%;background:{escape(colour)}"></div>'
            f'<div class="lab-bar-value">{escape(text)}</div></div></div>'
        )
    st.html(f'<div class="lab-bars">{"".join(lines)}</div>')


def facts(items: Iterable[tuple[str, str, str]], *, big: bool = False) -> None:
    """A row of figures: (label, value, small note)."""
    cells = "".join(
        f'<div><div class="lab-fact-label">{escape(label)}</div><div class="lab-fact-value">{escape(value)}</div>'
        f'<div class="lab-fact-note">{escape(note)}</div></div>'
        for label, value, note in items
    )
    st.html(f'<div class="lab-facts{" big" if big else ""}">{cells}</div>')


def meter(share: float | None) -> str:
    """A thin bar from 0 to 1 as markup; empty when unknown."""
    width = 0 if share is None else max(0.0, min(1.0, share)) * 100
    return f'<div class="lab-meter"><div style="width:{width:.1f}%"></div></div>'
