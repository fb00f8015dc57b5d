"""One file that needs nothing else: style, data, and Plotly's own script inside; no request leaves it.

A content security policy lets only the two scripts run that were put here, known by their hashes, and nothing load.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.errors import LabError
from engine.report.markup import data_block

HERE = Path(__file__).parent


def page(title: str, body: str, figures: Sequence[dict[str, Any]]) -> str:
    """``body`` is markup that was made by ``markup``; raises LabError where Plotly isn't installed."""
    scripts = [plotly_script(), _file("page.js")] if figures else []
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts) or "'none'"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {allowed}"
    running = "".join(f"<script>{script}</script>" for script in scripts)
    document = (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_file('page.css')}</style></head>"
        f"<body>{body}{data_block('figures', list(figures))}{running}</body></html>\n"
    )
    return document.encode(errors="replace").decode()  # a text from outside may hold half a character


@cache
def plotly_script() -> str:
    """The script that the installed package brings, read without importing the package."""
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise LabError("Plotly isn't installed, so the report has no charts.", "Run make setup.")
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8").strip()


@cache
def _file(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8").strip()


@cache
def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
