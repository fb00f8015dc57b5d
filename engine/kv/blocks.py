"""A pool of blocks with reference counts, prefix-cache keys and the free order of vLLM V1.

The rules are those of ``vllm/v1/core/block_pool.py`` (0.30): blocks are taken from the head of the free queue; a block
whose last reference goes returns to the head when it has no key (so that it is used again at once), to the tail when
it has one (so that the least recently used prefix is lost first). Never-used blocks lie between the two. vLLM's null
block is left out: ids start at 0.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence

Key = Hashable


class BlockPool:
    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free_blocks = blocks
        self.references = [0] * blocks
        self.changes: list[tuple[int, bool]] | None = None
        """When a list: every block that became (True) or stopped being (False) free but findable is added to it."""
        self._head: list[int] = []
        self._unused = 0
        self._tail: OrderedDict[int, None] = OrderedDict()
        self._keys: dict[int, Key] = {}
        self._found: dict[Key, OrderedDict[int, None]] = {}

    def free_order(self) -> Iterator[int]:
        """Free blocks, the next one to be taken first."""
        yield from reversed(self._head)
        yield from range(self._unused, self.blocks)
        yield from self._tail

    def key_of(self, block: int) -> Key | None:
        return self._keys.get(block)

    def find(self, key: Key) -> int | None:
        """The block that has held this content the longest."""
        blocks = self._found.get(key)
        return next(iter(blocks)) if blocks else None

    def take(self, count: int) -> list[int]:
        """Blocks from the head of the free queue, each with one reference; what they held is findable no more."""
        if count > self.free_blocks:
            raise ValueError(f"{count} blocks wanted, {self.free_blocks} free")
        self.free_blocks -= count
        head = self._head
        if count == 1 and head:
            taken = [head.pop()]
        else:
            reused = min(count, len(head))
            taken = head[len(head) - reused :][::-1]
            del head[len(head) - reused :]
            fresh = min(count - reused, self.blocks - self._unused)
            taken += range(self._unused, self._unused + fresh)
            self._unused += fresh
            taken += [self._evict_oldest() for _ in range(count - len(taken))]
        for block in taken:
            self.references[block] = 1
        return taken

    def touch(self, block: int) -> bool:
        """One more reference to a found block; True when it was free."""
        was_free = self.references[block] == 0
        if was_free:
            del self._tail[block]
            self.free_blocks -= 1
            self._note(block, False)
        self.references[block] += 1
        return was_free

    def share(self, block: int, times: int) -> None:
        """More references to a block that is held already."""
        self.references[block] += times

    def label(self, block: int, key: Key) -> None:
        """Make a full block findable by its content. Blocks of equal content are not merged."""
        self._keys[block] = key
        self._found.setdefault(key, OrderedDict())[block] = None

    def release(self, blocks: Sequence[int]) -> int:
        """Drop one reference to each of a sequence's blocks (in logical order); returns how many became free."""
        references = self.references
        freed = []
        for block in blocks:
            references[block] -= 1
            if not references[block]:
                freed.append(block)
        self.free_blocks += len(freed)
        if not self._keys:
            self._head += freed
            return len(freed)
        self._head += [block for block in freed if block not in self._keys]
        for block in reversed(freed):
            if block in self._keys:
                self._tail[block] = None
                self._note(block, True)
        return len(freed)

    def _evict_oldest(self) -> int:
        block, _ = self._tail.popitem(last=False)
        key = self._keys.pop(block)
        others = self._found[key]
        del others[block]
        if not others:
            del self._found[key]
        self._note(block, False)
        return block

    def _note(self, block: int, findable: bool) -> None:
        if self.changes is not None:
            self.changes.append((block, findable))
