"""Values of a foreign file, taken for what they should be or for unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LONGEST_TEXT = 300


def number(value: Any) -> float | int | None:
    """A finite number; None for anything else (a bool is no number)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number larger than any float
        return None


def count(value: Any) -> int | None:
    found = number(value)
    return None if found is None or found < 0 else int(found)


def positive(value: Any) -> float | int | None:
    """None for zero and below: a rate or a time of 0 means that nothing was measured."""
    found = number(value)
    return found if found is not None and found > 0 else None


def text(value: Any, longest: int = LONGEST_TEXT) -> str:
    """At most so long, and always encodable: JSON may hold halves of characters."""
    return value[:longest].encode(errors="replace").decode() if isinstance(value, str) else ""


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
