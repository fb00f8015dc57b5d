"""Reads a recording as the animation does, cell by cell, with nothing of the simulator's own bookkeeping."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

Payload = dict[str, Any]
PRIORITY = ("external", "internal", "reserved", "tokens")


class Holder(NamedTuple):
    stay: int
    logical: int


def frames(payload: Payload, side: dict[str, Any]) -> Iterator[tuple[int, dict[int, list[Holder]], dict[int, int]]]:
    """(frame, holders of each physical unit, tokens of each present stay)."""
    stays, holds = side["stays"], side["holds"]
    for frame in range(payload["steps"]):
        present = {
            number
            for number, (start, end) in enumerate(zip(stays["from"], stays["to"], strict=True))
            if start <= frame < end
        }
        tables: dict[int, dict[int, int]] = defaultdict(dict)
        for stay, begin, logical, physical, count in zip(*holds.values(), strict=True):
            if stay in present and begin <= frame:
                for offset in range(count):
                    tables[stay][logical + offset] = physical + offset
        holders: dict[int, list[Holder]] = defaultdict(list)
        for stay, table in tables.items():
            for logical, physical in table.items():
                holders[physical].append(Holder(stay, logical))
        yield frame, holders, {stay: tokens(side, stay, frame) for stay in present}


def tokens(side: dict[str, Any], stay: int, frame: int) -> int:
    anchors = side["anchors"]
    known = [
        (begin, count)
        for number, begin, count in zip(*anchors.values(), strict=True)
        if number == stay and begin <= frame
    ]
    begin, count = known[-1]
    return int(count + frame - begin)


def kinds(
    payload: Payload, side: dict[str, Any], holders: dict[int, list[Holder]], context: dict[int, int]
) -> list[int]:
    """Slots by kind (tokens, reserved, internal, external, free) in one frame, by the rules of the picture."""
    unit = side["unit"]
    count = dict.fromkeys(("tokens", "reserved", "internal", "external", "free"), 0)
    for physical in range(side["blocks"]):
        if physical not in holders:
            count["free"] += unit
            continue
        for offset in range(unit):
            cells = [cell(payload, side, one, one.logical * unit + offset, context) for one in holders[physical]]
            count[max(cells, key=PRIORITY.index)] += 1
    count["external"] += payload["slots"] - side["blocks"] * unit
    return list(count.values())


def cell(payload: Payload, side: dict[str, Any], holder: Holder, position: int, context: dict[int, int]) -> str:
    request = side["stays"]["request"][holder.stay]
    final = payload["requests"]["prompt"][request] + payload["requests"]["output"][request]
    if position < context[holder.stay]:
        return "tokens"
    if position < final:
        return "reserved"
    if side["allocator"].startswith("contiguous") and position >= side["stays"]["estimate"][holder.stay]:
        return "external"
    return "internal"
