"""HTML in which nothing from outside is markup: every text goes through ``escape`` here and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from engine.store import to_json


def tag(name: str, text: object, css: str = "") -> str:
    """An element with text in it."""
    return f"<{name}{_class(css)}>{escape(str(text))}</{name}>"


def around(name: str, *inner: str, css: str = "") -> str:
    """An element around markup that was made here."""
    return f"<{name}{_class(css)}>{''.join(inner)}</{name}>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], css: str = "") -> str:
    """The first column names the rows."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(around("tr", _row_head(row[0]), *(tag("td", cell) for cell in row[1:])) for row in rows)
    return f'<div class="wide"><table{_class(css)}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def chart(number: int, words: str, height: int) -> str:
    """A place for a chart; the script draws the figure of that number there."""
    size = f'style="height:{height}px"'
    return f'<div class="chart" data-figure="{number}" role="img" aria-label="{escape(words)}" {size}></div>'


def data_block(name: str, value: Any) -> str:
    """JSON inside a page: no “<” can end the block, and what JavaScript takes for line ends is escaped."""
    text = json.dumps(json.loads(to_json(value)), separators=(",", ":"))  # ASCII: U+2028 and U+2029 as \\u…
    for mark, safe in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(mark, safe)
    return f'<script type="application/json" id="{name}">{text}</script>'


def details(summary: str, inner: str, *, shown: bool = False) -> str:
    return f"<details{' open' if shown else ''}><summary>{escape(summary)}</summary>{inner}</details>"


def _row_head(text: str) -> str:
    return f'<th scope="row">{escape(text)}</th>'


def _class(css: str) -> str:
    return f' class="{css}"' if css else ""
