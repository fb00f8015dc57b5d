"""A saved run as points: one for each load level, each engine, or each turn of a chat, with all its numbers.

Runs may come from a file, from another version or from a damaged database: whatever is not a number is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.compare_results import ENGINE_LABELS, MODE_LABELS
from engine.imports.mark import LAB, kind_of, origin_of
from engine.imports.values import mapping, number, text
from engine.report.measures import MEASURES
from engine.store import Run

# What a convention defines of its own; everything else is a count, or the server's own word.
BY_CONVENTION = ("ttft_", "tpot_", "itl_", "e2e_", "throughput_tok_s", "throughput_req_s")
REPEATED = ("throughput_tok_s", "ttft_ms", "tpot_ms", "generate_s")


@dataclass(frozen=True)
class Doubt:
    """A badge of a level: why a number may not mean what it seems to."""

    label: str
    why: str
    severity: str


@dataclass(frozen=True)
class Point:
    """``name`` is what the same point is called in another run. ``repeats`` holds each repeat's own value by measure,
    empty where nothing was repeated. ``load`` is users or requests/s. ``others``: what only the whole table has."""

    name: str
    values: Mapping[str, float | None]
    load: float | None = None
    engine: str = ""
    repeats: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    others: Mapping[str, float | None] = field(default_factory=dict)


def convention_of(run: Run) -> str:
    """By whose definitions its numbers are; this lab's unless another tool measured it."""
    origin = origin_of(run)
    return origin.format if origin else LAB


def conventions_in(run: Run) -> set[str]:
    """All that its numbers are known by: a load test of ours has kept the same requests in others' definitions too."""
    levels = _levels(run)
    shared = [set(mapping(level.get("conventions"))) for level in levels]
    return {convention_of(run)} | (set.intersection(*shared) if shared else set())


def points_of(run: Run, convention: str | None = None) -> tuple[Point, ...]:
    """``convention``: its own unless another is asked for."""
    kind = kind_of(run.kind)
    if kind == "compare":
        return (*_engines(run), *_compare_levels(run))
    if kind == "chat":
        return (*_chat_medians(run), *_turns(run))
    return tuple(_load_point(level, convention or convention_of(run)) for level in _levels(run))


def values_in(found: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: number(found.get(name)) for name in MEASURES if name in found}


def _levels(run: Run) -> list[Mapping[str, Any]]:
    return list(_dicts(mapping(run.results).get("levels"))) if kind_of(run.kind) != "compare" else []


def _dicts(found: Any) -> Iterable[Mapping[str, Any]]:
    return (one for one in found if isinstance(one, dict)) if isinstance(found, list | tuple) else ()


def _load_point(level: Mapping[str, Any], convention: str) -> Point:
    values = values_in(level)
    if convention != LAB:
        theirs = mapping(mapping(level.get("conventions")).get(convention))
        values = {name: value for name, value in values.items() if not name.startswith(BY_CONVENTION)}
        values |= values_in(theirs)
    users, rate = number(level.get("users")), number(level.get("rate_req_s"))
    return Point(
        text(level.get("label")) or "Level",
        values,
        rate if users is None else users,
        doubts=tuple(
            Doubt(text(badge.get("label")), text(badge.get("why"), 600), text(badge.get("severity")))
            for badge in _dicts(level.get("badges"))
        ),
        others={
            name: number(value)
            for name, value in level.items()
            if not isinstance(value, list | dict | str) and not name.startswith(BY_CONVENTION)
        },
    )


def _engines(run: Run) -> Iterable[Point]:
    for engine, found in mapping(mapping(run.results).get("engines")).items():
        if isinstance(found, dict):
            name = f"{ENGINE_LABELS.get(engine, engine)}, one request"
            yield Point(name, values_in(found), 1, engine, _repeats(found))


def _compare_levels(run: Run) -> Iterable[Point]:
    for level in _dicts(mapping(run.results).get("levels")):
        engine, mode, users = text(level.get("engine")), text(level.get("mode")), number(level.get("users"))
        if users == 1:
            continue  # the single request is a point of its own
        words = f"{'—' if users is None else f'{users:g}'} users, {MODE_LABELS.get(mode, mode)}"
        yield Point(f"{ENGINE_LABELS.get(engine, engine)}, {words}", values_in(level), users, engine, _repeats(level))


def _repeats(found: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    repeats = list(_dicts(found.get("repeats")))
    each = {name: [number(repeat.get(name)) for repeat in repeats] for name in REPEATED}
    return {
        name: tuple(value for value in values if value is not None)
        for name, values in each.items()
        if len(values) > 1 and None not in values
    }


def _chat_medians(run: Run) -> Iterable[Point]:
    values = values_in(mapping(run.results))
    if values:
        yield Point("Median of finished answers", values)


def _turns(run: Run) -> Iterable[Point]:
    for place, turn in enumerate(turns_of(run), 1):
        yield Point(f"Turn {place}", values_in(turn), place)


def turns_of(run: Run) -> list[Mapping[str, Any]]:
    """What was said, and its numbers; empty for anything but a chat."""
    return list(_dicts(mapping(run.results).get("turns"))) if kind_of(run.kind) == "chat" else []
