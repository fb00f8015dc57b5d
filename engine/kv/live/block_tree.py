"""The prefix cache of a server as its events tell it: blocks, each below the block that comes before it.

A block's hash covers everything before it, so blocks form trees: two requests that begin alike share the path from
the root to where they differ. A parent may be gone while its child is still there; the child is then a root, until
its parent is stored again. Memory is bounded: beyond ``most`` blocks the oldest are forgotten, and counted.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from engine.kv.live.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event

MOST_BLOCKS = 50_000

# Data-parallel rank, cache group and hash: the same words are cached apart in each.
Key = tuple[int, int, BlockHash]


@dataclass(slots=True)
class Block:
    """One hash that can be found. ``copies`` blocks of memory hold it: vLLM does not merge equal ones.

    ``unix_s`` is when it was stored, by the server's clock; ``tokens`` is empty where the server didn't tell.
    """

    key: Key
    parent: Key | None
    tokens: array[int]
    size: int
    unix_s: float
    copies: int = 1


class BlockTree:
    """Not for several threads at once. Blocks are in the order in which they were last stored."""

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self._most = most
        # Not a dict: that takes the longer to its first key, the more before it were dropped.
        self._blocks: OrderedDict[Key, Block] = OrderedDict()
        self._children: dict[Key, dict[Key, None]] = {}
        self._copies = 0
        self.stored = self.removed = self.cleared = self.forgotten = 0

    def apply(self, event: Event, rank: int, unix_s: float) -> tuple[Key, ...]:
        """Take one event; the blocks that it is about, in order."""
        if isinstance(event, BlockStored):
            return self._store(event, rank, unix_s)
        if isinstance(event, BlockRemoved):
            return self._remove(event, rank)
        return self._clear(event, rank)

    def forget(self, rank: int) -> None:
        """Drop what one rank had cached, because what it holds now is unknown."""
        for key in [key for key in self._blocks if key[0] == rank]:
            self._drop(key)

    def __len__(self) -> int:
        """Different blocks; ``copies`` of them are held."""
        return len(self._blocks)

    @property
    def copies(self) -> int:
        """Blocks of memory that hold something findable."""
        return self._copies

    def get(self, key: Key) -> Block | None:
        return self._blocks.get(key)

    def newest(self) -> Iterator[Block]:
        """All blocks, the last stored first."""
        return reversed(self._blocks.values())

    def children(self, key: Key) -> tuple[Key, ...]:
        return tuple(self._children.get(key, ()))

    def path(self, key: Key) -> tuple[Block, ...]:
        """From the first block that is still known to this one; empty for an unknown one."""
        found: dict[Key, Block] = {}
        block = self._blocks.get(key)
        while block is not None and block.key not in found:  # no real server sends a circle, but it would never end
            found[block.key] = block
            block = self._blocks.get(block.parent) if block.parent is not None else None
        return tuple(reversed(found.values()))

    def _store(self, event: BlockStored, rank: int, unix_s: float) -> tuple[Key, ...]:
        keys = tuple((rank, event.group, one) for one in event.hashes)
        parent = None if event.parent is None else (rank, event.group, event.parent)
        for number, key in enumerate(keys):
            tokens = event.tokens[number * event.block_size : (number + 1) * event.block_size]
            self._add(Block(key, parent, tokens, event.block_size, unix_s), event)
            parent = key
        return keys

    def _add(self, block: Block, event: BlockStored) -> None:
        known = self._blocks.get(block.key)
        if known is not None:
            if not _reports_reuse(event):
                known.copies += 1
                self._copies += 1
                self.stored += 1
            return
        self.stored += 1
        self._copies += 1
        self._blocks[block.key] = block
        if block.parent is not None:
            self._children.setdefault(block.parent, {})[block.key] = None
        if len(self._blocks) > self._most:
            self._drop(next(iter(self._blocks)))
            self.forgotten += 1

    def _remove(self, event: BlockRemoved, rank: int) -> tuple[Key, ...]:
        keys = tuple((rank, event.group, one) for one in event.hashes)
        for key in keys:
            self.removed += 1
            block = self._blocks.get(key)
            if block is not None and block.copies > 1:
                block.copies -= 1
                self._copies -= 1
            elif block is not None:
                self._drop(key)
        return keys

    def _drop(self, key: Key) -> None:
        block = self._blocks.pop(key)
        self._copies -= block.copies
        if block.parent is not None:
            siblings = self._children[block.parent]
            del siblings[key]
            if not siblings:
                del self._children[block.parent]

    def _clear(self, event: AllBlocksCleared, rank: int) -> tuple[Key, ...]:
        self.forget(rank)
        self.cleared += 1
        return ()


def _reports_reuse(event: BlockStored) -> bool:
    """Whether this tells of blocks that were found, not stored.

    A request that asks for it (``kv_cache_report_mode``) reports its hits in the same words, from the first block on.
    """
    return event.session is not None and event.parent is None
