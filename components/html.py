"""Small pieces of our own markup. Every value is escaped here, so that no text from outside becomes markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

import streamlit as st


def eyebrow(text: str) -> None:
    st.html(f'<div class="lab-eyebrow">{escape(text)}</div>')


Rows = Iterable[tuple[str, float | None, str, str]]


def hero(number: str, claim: str, note: str, colour: str, rows: Rows) -> None:
    """One number that a room can read, and the bars that it comes from beside it."""
    st.html(
        f'<div class="lab-hero"><div class="lab-number" style="color:{escape(colour)}">{escape(number)}</div>'
        f'<div class="lab-proof"><div class="lab-claim">{escape(claim)}</div>{bars_html(rows)}'
        f'<div class="lab-note">{escape(note)}</div></div></div>'
    )


def bars(rows: Rows) -> None:
    st.html(bars_html(rows))


def bars_html(rows: Rows) -> str:
    """Horizontal bars: (name, length or None, text of the value, colour); the longest and its text fill the width."""
    rows = list(rows)
    longest = max((value for _, value, _, _ in rows if value), default=0)
    room = max((len(text) for _, _, text, _ in rows), default=0)
    lines = []
    for name, value, text, colour in rows:
        share = value / longest if value and longest else 0
        style = f"width:calc((100% - {room}ch - 0.7rem) * {share:.4f});background:{escape(colour)}"
        lines.append(
            f'<div class="lab-bar"><div>{escape(name)}</div><div class="lab-bar-track">'
            f'<div class="lab-bar-fill" style="{style}"></div>'
            f'<div class="lab-bar-value">{escape(text)}</div></div></div>'
        )
    return f'<div class="lab-bars">{"".join(lines)}</div>'


def table(head: Iterable[str], rows: Iterable[Iterable[str]], helps: Mapping[str, str] | None = None) -> None:
    """A small table, closer than Streamlit's; the first column names the rows. ``helps``: by column, shown on hover."""
    helps = helps or {}
    top = "".join(f'<th scope="col"{_title(helps.get(cell))}>{escape(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(_cell(number, cell) for number, cell in enumerate(row)) + "</tr>" for row in rows)
    st.html(f'<table class="lab-table"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>')


def _title(words: str | None) -> str:
    return f' class="lab-help" title="{escape(words)}"' if words else ""


def _cell(number: int, text: str) -> str:
    return f"<td>{escape(text)}</td>" if number else f'<th scope="row">{escape(text)}</th>'


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
