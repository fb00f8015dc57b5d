"""One moment of a chart: named values, None where nothing is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Point:
    """``at_s`` is Unix time. Keys are those of ``panels.Line``; ``key:which`` where there are several of a kind."""

    at_s: float
    values: Mapping[str, float | None] = field(default_factory=dict)

    def get(self, key: str) -> float | None:
        return self.values.get(key)

    def highest(self, key: str) -> float | None:
        """Of ``key`` itself and of every ``key:which``."""
        known = [value for name, value in self.values.items() if name.split(":", 1)[0] == key and value is not None]
        return max(known, default=None)
