"""The results that a page shows, with what is needed to show them."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import LoadTestConfig
from engine.load.results import LevelResult, LoadResults


@dataclass(frozen=True)
class Shown:
    """Results, how they came about, and the prefix of the widgets' keys."""

    results: LoadResults
    config: LoadTestConfig | None
    key: str

    @property
    def levels(self) -> tuple[LevelResult, ...]:
        return self.results.levels

    @property
    def measured(self) -> tuple[LevelResult, ...]:
        """Levels with at least one finished request."""
        return tuple(level for level in self.levels if level.requests_ok)

    @property
    def knee(self) -> int | None:
        """Index among the measured levels; None for the last of them, since nothing beyond it was measured."""
        if self.results.knee is None or self.results.knee >= len(self.levels):
            return None
        level = self.levels[self.results.knee]
        place = self.measured.index(level) if level in self.measured else None
        return None if place == len(self.measured) - 1 else place
