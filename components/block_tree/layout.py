"""Where each block of the tree is drawn: a column for its place in the chain, as many rows as chains go through it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from components import palette
from engine.kv.live.chains import Segment, ShownBlock
from engine.kv.live.follow import Cache
from engine.kv.live.marks import Mark

# What a room can read at once. Longer runs show fewer of their blocks, until everything fits or nothing more can go.
MOST_COLUMNS = 6
CELLS_IN_A_RUN = (5, 4, 3, 2)


@dataclass(frozen=True)
class Cell:
    """A block, or ``hidden`` blocks that are left out (``block`` is then the one before them)."""

    column: int
    row: int
    rows: int
    block: ShownBlock
    hidden: int = 0
    orphan: bool = False


def tree_data(cache: Cache) -> dict[str, Any]:
    """What the browser needs: cells of the tree, and a letter for every block of the map."""
    cells = lay_out(cache.chains)
    return {
        "cells": [_cell_data(cell) for cell in cells],
        "columns": [_width(cells, column) for column in range(_columns(cells))],
        "map": [_map_colour(users) for users in cache.map],
        "different": cache.different,
        "copies": cache.blocks,
        "neutral": palette.NEUTRAL,
    }


def lay_out(chains: Sequence[Segment]) -> list[Cell]:
    for most in CELLS_IN_A_RUN:
        cells = list(_rows(chains, 0, 0, most))
        if _columns(cells) <= MOST_COLUMNS:
            break
    return cells


def colour(mark: Mark) -> str:
    return palette.REQUESTS[mark.colour % len(palette.REQUESTS)]


def mark_data(marks: Iterable[Mark]) -> list[dict[str, str]]:
    return [{"label": mark.label, "title": mark.title, "colour": colour(mark)} for mark in marks]


def _rows(segments: Iterable[Segment], column: int, row: int, most: int) -> Iterator[Cell]:
    for segment in segments:
        run = list(_run(segment, most))
        for place, (block, hidden) in enumerate(run):
            orphan = segment.orphan and not place
            yield Cell(column + place, row, segment.ends, block, hidden, orphan)
        yield from _rows(segment.children, column + len(run), row, most)
        row += segment.ends


def _run(segment: Segment, most: int) -> Iterator[tuple[ShownBlock, int]]:
    """At most so many cells: the first blocks, the number of those left out, the last block."""
    blocks, total = segment.blocks, len(segment.blocks) + segment.hidden
    if total <= most:
        yield from ((block, 0) for block in blocks)
        return
    tail = 1 if most > 2 else 0
    head = min(most - 1 - tail, len(blocks) - 1)
    yield from ((block, 0) for block in blocks[:head])
    yield blocks[head - 1], total - head - tail
    if tail:
        yield blocks[-1], 0


def _columns(cells: Sequence[Cell]) -> int:
    return max((cell.column + 1 for cell in cells), default=0)


def _width(cells: Sequence[Cell], column: int) -> str:
    """A column of nothing but left out blocks is narrow."""
    inside = [cell for cell in cells if cell.column == column]
    return "minmax(4.2rem, 0.4fr)" if all(cell.hidden for cell in inside) else "minmax(8.4rem, 1fr)"


def _cell_data(cell: Cell) -> dict[str, Any]:
    block = cell.block
    words = None if block.words is None else " ".join(block.words.split())
    return {
        "id": f"{block.key[0]}.{block.key[1]}.{_hash_text(block.key[2])}{'+' if cell.hidden else ''}",
        "column": cell.column + 1,
        "row": cell.row + 1,
        "rows": cell.rows,
        "hidden": cell.hidden,
        "orphan": cell.orphan,
        "number": block.number,
        "words": words,
        "tokens": block.tokens,
        "copies": block.copies,
        "marks": mark_data(block.marks),
    }


def _hash_text(block_hash: int | bytes) -> str:
    """A hash as text: numbers of 64 bits are more than JavaScript can count."""
    return block_hash.hex() if isinstance(block_hash, bytes) else f"{block_hash:x}"


def _map_colour(users: Sequence[Mark]) -> str:
    """Colour of the only user; "shared" for several, empty for none that is known."""
    return "shared" if len(users) > 1 else colour(users[0]) if users else ""
