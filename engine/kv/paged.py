"""Paged memories: blocks on demand, alone, with prefix sharing, and with parallel samples that copy on write."""

from __future__ import annotations

from engine.kv.blocks import BlockPool, Key
from engine.kv.ledger import Ledger
from engine.kv.stay import Grant, Stay
from engine.kv.workloads import Request


class PagedMemory:
    """A block whenever a sequence needs one. Samples of one request live and are preempted together.

    ``watermark`` is the share of blocks that an admission leaves free while anything runs, as in vLLM.
    """

    def __init__(self, slots: int, block_size: int, watermark: float = 0.0) -> None:
        self.unit = block_size
        self.units = slots // block_size
        self.ledger = Ledger(slots, slots % block_size)
        self.pool = BlockPool(self.units)
        self._watermark = int(watermark * (self.units + 1))  # vLLM counts its null block too
        self._tables: dict[Stay, list[list[int]]] = {}

    def estimate(self, request: Request) -> int:
        return 0

    def can_ever_hold(self, request: Request) -> bool:
        return self._blocks_for(request.prompt + request.output - 1) * request.samples <= self.units

    def admit(self, stay: Stay) -> list[Grant] | None:
        if not self._has_room(self._blocks_wanted(stay)):
            return None
        blocks = self._blocks_for(stay.first_context)
        tables = [self.pool.take(blocks) for _ in range(stay.sequences)]
        self._enter(stay, tables, tokens=stay.first_context * stay.sequences)
        return [Grant(sequence, 0, table) for sequence, table in enumerate(tables)]

    def grow(self, stay: Stay) -> list[Grant] | None:
        """One more block for each of its sequences: their last ones are full."""
        if self.pool.free_blocks < stay.sequences:
            return None
        tables = self._tables[stay]
        logical = len(tables[0])
        new = self.pool.take(stay.sequences)
        for table, block in zip(tables, new, strict=True):
            table.append(block)
        self._extend(stay, logical, stay.sequences)
        stay.grows_at = stay.step_of((logical + 1) * self.unit + 1)
        return [Grant(sequence, logical, [block]) for sequence, block in enumerate(new)]

    def release(self, stay: Stay) -> None:
        for table in self._tables.pop(stay):
            self.pool.release(table)
        self.ledger.leave(stay)

    def why_not(self, stay: Stay) -> str:
        return f"blocks needed {self._blocks_wanted(stay)}, free {self.pool.free_blocks}"

    def _blocks_wanted(self, stay: Stay) -> int:
        return self._blocks_for(stay.first_context) * stay.sequences

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.unit)

    def _has_room(self, blocks: int) -> bool:
        kept_free = self._watermark if self._tables else 0
        return blocks + kept_free <= self.pool.free_blocks

    def _enter(
        self, stay: Stay, tables: list[list[int]], tokens: int, shared: int = 0, lasts: int | None = None
    ) -> None:
        """``lasts`` sequences have a last block of their own, in which they will go on writing."""
        self._tables[stay] = tables
        self.ledger.enter(stay, tokens, 0, 0, shared=shared)
        context, logical = stay.first_context, len(tables[0]) - 1
        reserved, internal = self._rest_of_block(stay, logical, context)
        lasts = stay.sequences if lasts is None else lasts
        self.ledger.extend(stay, reserved * lasts, internal * lasts)
        stay.grows_at = stay.step_of((logical + 1) * self.unit + 1)

    def _extend(self, stay: Stay, logical: int, count: int) -> None:
        reserved, internal = self._rest_of_block(stay, logical, logical * self.unit)
        self.ledger.extend(stay, reserved * count, internal * count)

    def _rest_of_block(self, stay: Stay, logical: int, filled_to: int) -> tuple[int, int]:
        """Slots of a block after ``filled_to`` tokens: those the sequence will still fill, and those it won't."""
        block_end = (logical + 1) * self.unit
        last = min(stay.request.prompt + stay.request.output, block_end)
        return last - filled_to, block_end - last


class PrefixCachedMemory(PagedMemory):
    """Full blocks of equal content and equal past are shared, also after their request has ended (LRU).

    A hit ends one token before the context does, as in vLLM: the last token is always computed.
    """

    def admit(self, stay: Stay) -> list[Grant] | None:
        if not self._has_room(self._blocks_wanted(stay)):
            return None
        blocks = self._blocks_for(stay.first_context)
        tables, shared = [], 0
        for sequence in range(stay.sequences):
            found = self._longest_hit(stay, sequence)
            shared += sum(not self.pool.touch(block) for block in found)
            table = found + self.pool.take(blocks - len(found))
            self._label(stay, sequence, table, len(found), stay.first_context)
            tables.append(table)
            stay.hits += len(found)
        self._enter(stay, tables, tokens=stay.first_context * stay.sequences, shared=shared * self.unit)
        return [Grant(sequence, 0, table) for sequence, table in enumerate(tables)]

    def release(self, stay: Stay) -> None:
        """Blocks filled since the admission become findable first, as vLLM makes them in the step that fills them."""
        written = stay.context_at(self.ledger.step) - 1
        kept = 0
        tables = self._tables.pop(stay)
        for sequence, table in enumerate(tables):
            self._label(stay, sequence, table, stay.first_context // self.unit, written)
        for table in tables:
            kept += len(table) - self.pool.release(table)
        self.ledger.leave(stay, shared=kept * self.unit)

    def _blocks_wanted(self, stay: Stay) -> int:
        """Free blocks an admission takes: new ones, and found ones that nobody holds."""
        blocks, full = self._blocks_for(stay.first_context), stay.first_context // self.unit
        made: set[Key] = set()
        wanted = 0
        for sequence in range(stay.sequences):
            keys = [self._key(stay, sequence, logical) for logical in range(full)]
            found = self._longest_hit(stay, sequence)
            held = sum(self.pool.references[block] > 0 or key in made for block, key in zip(found, keys, strict=False))
            rest = keys[len(found) : (stay.first_context - 1) // self.unit]
            repeats = next((number for number, key in enumerate(rest) if key not in made), len(rest))
            wanted += blocks - held - repeats
            made.update(keys)
        return wanted

    def _longest_hit(self, stay: Stay, sequence: int) -> list[int]:
        found: list[int] = []
        for logical in range((stay.first_context - 1) // self.unit):
            block = self.pool.find(self._key(stay, sequence, logical))
            if block is None:
                break
            found.append(block)
        return found

    def _label(self, stay: Stay, sequence: int, table: list[int], start: int, written: int) -> None:
        for logical in range(start, written // self.unit):
            self.pool.label(table[logical], self._key(stay, sequence, logical))

    def _key(self, stay: Stay, sequence: int, logical: int) -> Key:
        """Stands for a block's content and all before it: equal exactly when vLLM's chained hashes would be."""
        request, end = stay.request, (logical + 1) * self.unit
        if end <= request.prefix_tokens:
            return ("prefix", request.prefix, logical)
        if end <= request.prompt:
            return ("prompt", request.index, logical)
        return ("answer", request.index, sequence, logical)


class ParallelMemory(PagedMemory):
    """All samples of a request share its prompt's blocks; who writes into a shared block gets a copy first."""

    def __init__(self, slots: int, block_size: int, watermark: float = 0.0) -> None:
        super().__init__(slots, block_size, watermark)
        self._unforked: set[Stay] = set()

    def can_ever_hold(self, request: Request) -> bool:
        shared = request.prompt // self.unit
        own = self._blocks_for(request.prompt + request.output - 1) - shared
        return shared + own * request.samples <= self.units

    def admit(self, stay: Stay) -> list[Grant] | None:
        if not self._has_room(self._blocks_wanted(stay)):
            return None
        shared = self._shared_blocks(stay)
        prompt = self.pool.take(shared)
        for block in prompt:
            self.pool.share(block, stay.sequences - 1)
        own = self._blocks_for(stay.first_context) - shared
        tables = [prompt + self.pool.take(own) for _ in range(stay.sequences)]
        in_prompt = min(stay.first_context, shared * self.unit)
        tokens = in_prompt + (stay.first_context - in_prompt) * stay.sequences
        self._enter(stay, tables, tokens, lasts=stay.sequences if own else 1)
        if not own and stay.first_context % self.unit and stay.sequences > 1:
            self._unforked.add(stay)
            stay.grows_at = stay.step_of(stay.first_context + 1)
        return [Grant(sequence, 0, table) for sequence, table in enumerate(tables)]

    def grow(self, stay: Stay) -> list[Grant] | None:
        return self._copy_on_write(stay) if stay in self._unforked else super().grow(stay)

    def release(self, stay: Stay) -> None:
        self._unforked.discard(stay)
        super().release(stay)

    def _copy_on_write(self, stay: Stay) -> list[Grant] | None:
        """The last prompt block is shared and about to be written: all but one sequence get a copy of it."""
        copies = stay.sequences - 1
        if self.pool.free_blocks < copies:
            return None
        self._unforked.discard(stay)
        tables = self._tables[stay]
        logical = len(tables[0]) - 1
        new = self.pool.take(copies)
        for table, block in zip(tables, new, strict=False):
            self.pool.release([table[logical]])
            table[logical] = block
        reserved, internal = self._rest_of_block(stay, logical, stay.first_context)
        copied = stay.first_context - logical * self.unit
        self.ledger.extend(stay, reserved * copies, internal * copies, tokens=copied * copies)
        stay.grows_at = stay.step_of((logical + 1) * self.unit + 1)
        return [Grant(sequence, logical, [block], copied=True) for sequence, block in enumerate(new)]

    def _blocks_wanted(self, stay: Stay) -> int:
        shared = self._shared_blocks(stay)
        return shared + (self._blocks_for(stay.first_context) - shared) * stay.sequences

    def _shared_blocks(self, stay: Stay) -> int:
        """The whole prompt at first; after a preemption only its full blocks, since the rest has been written to."""
        return stay.request.prompt // self.unit if stay.generated else self._blocks_for(stay.request.prompt)
