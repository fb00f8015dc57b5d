"""The table of engines: ``dialects.yaml`` as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from engine.errors import ConfigError

FILE = Path(__file__).with_name("dialects.yaml")


@dataclass(frozen=True)
class Sign:
    """A field of a route's JSON that only one engine sends; without ``equals`` and ``begins`` it need only be there."""

    path: str
    field: str
    equals: str | None = None
    begins: str | None = None
    exists: bool = False

    def fits(self, value: Any) -> bool:
        if value is None:
            return False
        if self.equals is not None:
            return bool(value == self.equals)
        return self.begins is None or (isinstance(value, str) and value.startswith(self.begins))


@dataclass(frozen=True)
class Dialect:
    """One engine, as ``dialects.yaml`` explains; ``metrics`` are sample names, newest first, by our own names."""

    key: str
    name: str
    metrics_path: str | None = "/metrics"
    metrics_how: str = ""
    health: str = "/health"
    ignore_eos: bool = False
    usage: str = "asked"
    reasoning: tuple[str, ...] = ()
    itl: str = "gap"
    prefix: str | None = None
    signs: tuple[Sign, ...] = ()
    version: Sign | None = None
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sources: tuple[str, ...] = ()


UNKNOWN = Dialect("unknown", "Unknown engine")


@cache
def dialects() -> tuple[Dialect, ...]:
    """Every known engine, in the order in which they are looked for."""
    return tuple(_dialect(entry) for entry in yaml.safe_load(FILE.read_text("utf-8")))


def by_key(key: str | None) -> Dialect:
    """The engine of that key; ``UNKNOWN`` for None and "unknown". Raises ConfigError for any other word."""
    if key in (None, UNKNOWN.key):
        return UNKNOWN
    for dialect in dialects():
        if dialect.key == key:
            return dialect
    raise ConfigError(f"There is no engine {key!r}.", f"Use one of {', '.join(one.key for one in dialects())}.")


def _dialect(entry: dict[str, Any]) -> Dialect:
    version = entry["version"]
    return Dialect(
        **entry
        | {
            "reasoning": tuple(entry["reasoning"]),
            "signs": tuple(Sign(**sign) for sign in entry["signs"]),
            "version": Sign(**version) if version else None,
            "metrics": {name: tuple(names) for name, names in entry["metrics"].items()},
            "sources": tuple(entry["sources"]),
        }
    )
