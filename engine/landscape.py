"""The engines there are, what each is for, and what this lab has measured of them itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from engine.compare_results import CompareResults, Level
from engine.store import RunStore

DATA = Path(__file__).with_name("landscape.yaml")
RUNS_LOOKED_AT = 50


@dataclass(frozen=True)
class EngineFacts:
    """One engine in words; ``key`` is its name in a comparison, None where the lab can't measure it."""

    key: str | None
    name: str
    license: str
    purpose: str
    choose: str
    hardware: str
    source: str


@dataclass(frozen=True)
class Measured:
    """The newest comparison on this machine that has the engine: tokens per second by users, the best way of each.

    ``doubted``: it warned of something that makes its numbers wrong, like other work on the same cores.
    """

    run_id: str
    created_at: str
    model: str | None
    throughput_tok_s: dict[int, float]
    doubted: bool


@cache
def engines() -> tuple[EngineFacts, ...]:
    """In the order of the data file."""
    return tuple(EngineFacts(**entry) for entry in yaml.safe_load(DATA.read_text(encoding="utf-8")))


def measured_here(store: RunStore, machine: str) -> dict[str, Measured]:
    """By engine, from finished comparisons of ``machine`` (an environment's summary); raises StoreError."""
    found: dict[str, Measured] = {}
    for run in store.list("compare", limit=RUNS_LOOKED_AT):
        if run.status != "done" or run.environment.get("summary") != machine:
            continue
        try:
            results = CompareResults.from_dict(run.results)
        except (LookupError, TypeError, ValueError, AttributeError):  # damaged, or another version's
            continue
        for engine in results.engines:
            if speeds := _speeds(results.levels, engine):
                measured = Measured(
                    run.id, run.created_at, run.model.get("model_id"), speeds, doubted=bool(results.warnings)
                )
                found.setdefault(engine, measured)
    return found


def _speeds(levels: tuple[Level, ...], engine: str) -> dict[int, float]:
    speeds: dict[int, float] = {}
    for level in levels:
        if level.engine == engine and level.throughput_tok_s is not None:
            speeds[level.users] = max(level.throughput_tok_s, speeds.get(level.users, 0.0))
    return dict(sorted(speeds.items()))
