"""How metrics arrive."""

from __future__ import annotations

import json


def unquoted(text: str) -> str:
    """Some builds of llama.cpp send the text as one JSON string."""
    if not text.startswith('"'):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) else text
