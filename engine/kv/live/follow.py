"""The running server's prefix cache, followed event by event: what ``engine.server`` opens and closes with a server.

One thread (the feed's) writes, any may read; readers get frozen values.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from engine.config import ServerConfig
from engine.errors import LabError
from engine.kv.live.block_tree import BlockTree, Key
from engine.kv.live.chains import Segment, Words, block_map, shown_chains
from engine.kv.live.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch
from engine.kv.live.feed import EventFeed, FeedCounts
from engine.kv.live.marks import Mark, MarkBook

MOST_LINES = 100
NO_SERVER = "No server of the lab is running."
TOO_OLD = "The installed vLLM does not publish KV events."
CACHING_OFF = "Prefix caching is off, so blocks have no hash and nothing is kept for reuse."


class What(StrEnum):
    """What happened to blocks. Compare with ``==``."""

    STORED = "stored"
    FOUND = "found"
    REMOVED = "removed"
    CLEARED = "cleared"
    RESTARTED = "restarted"


@dataclass(frozen=True)
class Line:
    """Something that happened: last when, by the server's clock, to how many blocks, by which request of ours.

    ``mark`` None: by others, or by nobody in particular. What goes on is one line: a request that stores its answer
    block by block, and what others do within one second.
    """

    unix_s: float
    what: What
    blocks: int
    mark: Mark | None = None

    def continues(self, before: Line) -> bool:
        """Whether both are the same going on."""
        if (self.what, self.mark) != (before.what, before.mark):
            return False
        return self.mark is not None or int(self.unix_s) == int(before.unix_s)


@dataclass(frozen=True)
class Cache:
    """What is cached now. ``blocks`` of memory hold something findable, ``different`` by content.

    ``stored`` and ``removed`` count since the server's start; ``forgotten`` blocks were too many to follow.
    """

    block_size: int | None
    blocks: int
    different: int
    stored: int
    removed: int
    cleared: int
    forgotten: int
    counts: FeedCounts
    chains: tuple[Segment, ...]
    map: tuple[tuple[Mark, ...], ...]
    marks: tuple[Mark, ...]
    lines: tuple[Line, ...]


class LiveBlocks:
    """At most one server at a time. ``supported`` tells whether the installed vLLM publishes KV events."""

    def __init__(self, supported: Callable[[], bool] = lambda: True) -> None:
        self._supported = supported
        self._lock = threading.Lock()
        self._feed: EventFeed | None = None
        self._reason = NO_SERVER
        self._tree, self._marks = BlockTree(), MarkBook()
        self._lines: deque[Line] = deque(maxlen=MOST_LINES)
        self._block_size: int | None = None
        self._turns = 0

    # -- with a server's life

    def open(self, config: ServerConfig) -> str | None:
        """Listen for a server that is about to start; the value of its ``--kv-events-config``, None for none."""
        self.close()
        try:
            reason = "" if self._supported() else TOO_OLD
            reason = reason if config.enable_prefix_caching else CACHING_OFF
            feed = None if reason else EventFeed(self._take, self._restarted, config.data_parallel_size)
        except LabError as error:
            feed, reason = None, str(error)
        with self._lock:
            self._feed, self._reason = feed, reason
        return feed.server_option() if feed else None

    def close(self) -> None:
        """The server is gone, and its cache with it."""
        with self._lock:
            feed, self._feed, self._reason = self._feed, None, NO_SERVER
        if feed is not None:
            feed.close()
        with self._lock:
            self._tree, self._marks, self._block_size = BlockTree(), MarkBook(), None
            self._lines.clear()
            self._turns = 0

    # -- for viewers

    def mark(self, label: str, title: str) -> Mark:
        """Follow a request that is about to be sent with the mark's ``request_fields``."""
        with self._lock:
            return self._marks.add(label, title)

    def chat_fields(self, question: str) -> dict[str, Any]:
        """What a chat request is to hold in addition, so that its blocks can be told; nothing without events."""
        with self._lock:
            if self._feed is None:
                return {}
            self._turns += 1
            return self._marks.add(str(self._turns), question).request_fields

    @property
    def missing(self) -> str:
        """Why there are no events; empty when there are."""
        with self._lock:
            return self._reason

    def cache(self, words: Words, chains: int) -> Cache | None:
        """What is cached now, with at most so many chains; None without events."""
        with self._lock:
            if self._feed is None:
                return None
            tree = self._tree
            return Cache(
                block_size=self._block_size,
                blocks=tree.copies,
                different=len(tree),
                stored=tree.stored,
                removed=tree.removed,
                cleared=tree.cleared,
                forgotten=tree.forgotten,
                counts=self._feed.counts,
                chains=shown_chains(tree, self._marks, words, chains),
                map=block_map(tree, self._marks),
                marks=self._marks.all(),
                lines=tuple(self._lines),
            )

    def tokens(self, key: Key) -> tuple[int, ...]:
        """The token ids of a block, empty where they aren't known."""
        with self._lock:
            block = self._tree.get(key)
            return tuple(block.tokens) if block else ()

    # -- on the feed's thread

    def _take(self, batch: EventBatch) -> None:
        with self._lock:
            for event in batch.events:
                self._note(event, batch)

    def _note(self, event: Event, batch: EventBatch) -> None:
        stored = self._tree.stored
        keys = self._tree.apply(event, batch.rank, batch.unix_s)
        if isinstance(event, AllBlocksCleared):
            self._say(Line(batch.unix_s, What.CLEARED, 0))
        elif isinstance(event, BlockRemoved):
            self._say(Line(batch.unix_s, What.REMOVED, len(keys)))
        elif isinstance(event, BlockStored):
            self._block_size = event.block_size
            mark = self._marks.note(event.session, keys)
            what = What.STORED if self._tree.stored > stored else What.FOUND
            self._say(Line(batch.unix_s, what, len(keys), mark))

    def _restarted(self, rank: int) -> None:
        with self._lock:
            self._tree.forget(rank)
            self._say(Line(0.0, What.RESTARTED, 0))

    def _say(self, line: Line) -> None:
        """The line that it continues moves to the end: a request of ours has at most one of a kind."""
        earlier = next((old for old in reversed(self._lines) if line.continues(old)), None)
        if earlier is not None:
            self._lines.remove(earlier)
            line = replace(line, blocks=earlier.blocks + line.blocks)
        self._lines.append(line)
