"""What shares out the memory: the interface of the scheduler to it, and the contiguous baselines.

The baselines are the paper's own version of Orca (section 6.1 of arXiv 2309.06180, with the bookkeeping of its
artifact): each request gets one chunk for as many tokens as it may need, rounded up to a power of two of units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.config import SimulationConfig
from engine.kv.buddy import BuddyAllocator
from engine.kv.ledger import Ledger
from engine.kv.paged import PagedMemory, ParallelMemory, PrefixCachedMemory
from engine.kv.stay import Grant, Stay
from engine.kv.workloads import Request

Estimate = Callable[[Request], int]


class Memory(Protocol):
    """One side of the comparison. ``units`` pieces of ``unit`` tokens; the ledger says what they are used for."""

    ledger: Ledger
    unit: int
    units: int

    def can_ever_hold(self, request: Request) -> bool:
        """Whether it fits into the empty memory, to its last token."""

    def admit(self, stay: Stay) -> list[Grant] | None:
        """Memory for a stay that begins in the ledger's step, or None: nothing has changed then.

        Sets ``stay.grows_at``: the step in which ``grow`` is due, None for never.
        """

    def grow(self, stay: Stay) -> list[Grant] | None:
        """More memory in the step ``stay.grows_at``, or None: the scheduler has to make room."""

    def release(self, stay: Stay) -> None:
        """All of a stay's memory comes back, in the ledger's step."""

    def why_not(self, stay: Stay) -> str:
        """In words, why a stay that was refused doesn't fit now."""

    def estimate(self, request: Request) -> int:
        """Tokens the allocator assumes for a whole sequence; 0 where it assumes nothing."""


def longest(max_model_len: int) -> Estimate:
    """Orca (Max): every request may become as long as the model allows."""
    return lambda request: max_model_len


def next_power_of_two(max_model_len: int) -> Estimate:
    """Orca (Pow2): the output is over-estimated by at most two times."""
    return lambda request: min(request.prompt + (1 << (request.output - 1).bit_length()), max_model_len)


def true_length(max_model_len: int) -> Estimate:
    """Orca (Oracle): the true length, which no server can know."""
    return lambda request: min(request.prompt + request.output, max_model_len)


ESTIMATES = {
    "contiguous_max": longest,
    "contiguous_pow2": next_power_of_two,
    "contiguous_oracle": true_length,
}
PAGED = {
    "paged": PagedMemory,
    "paged_prefix": PrefixCachedMemory,
    "paged_parallel": ParallelMemory,
}


class ContiguousMemory:
    """One chunk of a buddy allocator for every sequence, for its whole life."""

    def __init__(self, slots: int, unit: int, max_model_len: int, estimate: Estimate) -> None:
        self.unit = unit
        self.units = slots // unit
        self.ledger = Ledger(slots, slots % unit)
        self.estimate = estimate
        self._buddy = BuddyAllocator(self.units, _ceil_div(max_model_len, unit))
        self._chunks: dict[Stay, list[int]] = {}

    def can_ever_hold(self, request: Request) -> bool:
        return self._buddy.capacity(self._units_for(request)) >= request.samples

    def admit(self, stay: Stay) -> list[Grant] | None:
        request = stay.request
        units = self._units_for(request)
        chunks: list[int] = []
        for _ in range(request.samples):
            address = self._buddy.allocate(units)
            if address is None:
                for taken in chunks:
                    self._buddy.release(taken)
                return None
            chunks.append(address)
        self._chunks[stay] = chunks
        chunk = self._buddy.chunk_for(units)
        self._enter(stay, chunk * self.unit)
        return [Grant(number, 0, range(start, start + chunk)) for number, start in enumerate(chunks)]

    def grow(self, stay: Stay) -> list[Grant] | None:
        raise AssertionError("a contiguous stay has all its memory from the start")

    def release(self, stay: Stay) -> None:
        for address in self._chunks.pop(stay):
            self._buddy.release(address)
        self.ledger.leave(stay)

    def why_not(self, stay: Stay) -> str:
        ledger = self.ledger
        needed = self._buddy.chunk_for(self._units_for(stay.request)) * self.unit
        holes = f"no {stay.sequences} holes" if stay.sequences > 1 else "no hole"
        if ledger.free >= needed * stay.sequences:
            return f"{holes} of {needed}, although {100 * ledger.free / ledger.slots:.0f}% is free"
        return f"{holes} of {needed}, yet only {100 * ledger.tokens / ledger.slots:.0f}% holds tokens"

    def _units_for(self, request: Request) -> int:
        return _ceil_div(self.estimate(request), self.unit)

    def _enter(self, stay: Stay, chunk: int) -> None:
        request = stay.request
        final = request.prompt + request.output
        assumed = max(self.estimate(request), final)
        self.ledger.enter(
            stay,
            tokens=stay.first_context * request.samples,
            reserved=(final - stay.first_context) * request.samples,
            internal=(assumed - final) * request.samples,
            external=(chunk - assumed) * request.samples,
        )


def make_memory(allocator: str, config: SimulationConfig) -> Memory:
    """An empty memory with one of the ``ALLOCATORS``."""
    if allocator in ESTIMATES:
        estimate = ESTIMATES[allocator](config.max_model_len)
        return ContiguousMemory(config.memory_tokens, config.buddy_unit, config.max_model_len, estimate)
    return PAGED[allocator](config.memory_tokens, config.block_size, config.watermark)


def _ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)
