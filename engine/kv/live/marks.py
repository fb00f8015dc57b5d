"""Which requests of the lab use which blocks, in the server's own words.

A request may give itself a name (``session_id``) and ask to have the blocks reported that it found in the cache
(``kv_cache_report_mode``): vLLM then says with every event whose it was. Nothing is inferred from texts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from engine.kv.live.block_tree import Key

MOST_MARKS = 8
MOST_BLOCKS_PER_MARK = 4096


@dataclass(frozen=True)
class Mark:
    """One request: ``label`` is short (A, or 1), ``title`` its question; ``session`` names it to the server.

    ``colour`` numbers its colour, 0 to ``MOST_MARKS`` - 1; no two at once have the same.
    """

    label: str
    title: str
    session: str
    colour: int

    @property
    def request_fields(self) -> dict[str, Any]:
        """What the request's JSON must hold in addition."""
        return {"session_id": self.session, "vllm_xargs": {"kv_cache_report_mode": "full"}}


class MarkBook:
    """The latest marks, and the blocks of each. Not for several threads at once."""

    def __init__(self) -> None:
        self._blocks: dict[Mark, dict[Key, None]] = {}

    def add(self, label: str, title: str) -> Mark:
        """A mark in place of an earlier one of this label, or of the oldest when there are many."""
        for old in [mark for mark in self._blocks if mark.label == label]:
            del self._blocks[old]
        while len(self._blocks) >= MOST_MARKS:
            del self._blocks[next(iter(self._blocks))]
        taken = {mark.colour for mark in self._blocks}
        colour = next(number for number in range(MOST_MARKS) if number not in taken)
        mark = Mark(label, title, f"lab-{secrets.token_hex(6)}", colour)
        self._blocks[mark] = {}
        return mark

    def note(self, session: str | None, keys: Iterable[Key]) -> Mark | None:
        """These blocks belong to this session; the mark of it, None for a session that isn't ours."""
        mark = next((mark for mark in self._blocks if mark.session == session), None)
        if mark is not None and len(self._blocks[mark]) < MOST_BLOCKS_PER_MARK:
            self._blocks[mark].update(dict.fromkeys(keys))
        return mark

    def of(self, key: Key) -> tuple[Mark, ...]:
        return tuple(mark for mark, keys in self._blocks.items() if key in keys)

    def blocks(self, mark: Mark) -> tuple[Key, ...]:
        return tuple(self._blocks.get(mark, ()))

    def all(self) -> tuple[Mark, ...]:
        """Oldest first."""
        return tuple(self._blocks)

    def clear(self) -> None:
        self._blocks.clear()
