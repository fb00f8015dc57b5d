"""The buddy allocator under the contiguous baselines, as in the artifact of the PagedAttention paper."""

from __future__ import annotations

from bisect import insort


def power_of_two_at_least(number: int) -> int:
    return 1 << (number - 1).bit_length()


class BuddyAllocator:
    """``units`` equal pieces of memory, given out in chunks of a power of two.

    The memory starts as chunks of ``largest_chunk`` and the binary rest. A chunk comes from the smallest free one
    that is large enough (the lowest address among equals), which is halved until it fits; two free halves of the
    same chunk become whole again.
    """

    def __init__(self, units: int, largest_chunk: int) -> None:
        self.units = units
        self.largest_chunk = power_of_two_at_least(largest_chunk)
        self._held: dict[int, int] = {}
        self._free: dict[int, list[int]] = {}
        address = 0
        size = self.largest_chunk
        while size:
            self._free[size] = []
            while units - address >= size:
                self._free[size].append(address)
                address += size
            size //= 2
        self._whole = {size: len(chunks) for size, chunks in self._free.items()}

    @property
    def free_units(self) -> int:
        return sum(size * len(chunks) for size, chunks in self._free.items())

    @property
    def largest_hole(self) -> int:
        """Units of the largest free chunk; 0 when nothing is free."""
        return max((size for size, chunks in self._free.items() if chunks), default=0)

    def chunk_for(self, units: int) -> int:
        """How many units a request for ``units`` really takes."""
        return power_of_two_at_least(units)

    def capacity(self, units: int) -> int:
        """How many chunks for ``units`` fit into the empty memory."""
        chunk = self.chunk_for(units)
        return sum(count * (size // chunk) for size, count in self._whole.items() if size >= chunk)

    def allocate(self, units: int) -> int | None:
        """The address (in units) of a chunk, or None when there is no hole for it."""
        chunk = self.chunk_for(units)
        size = chunk
        while not self._free.get(size):
            if size >= self.largest_chunk:
                return None
            size *= 2
        address = self._free[size].pop(0)
        while size > chunk:
            size //= 2
            insort(self._free[size], address + size)
        self._held[address] = chunk
        return address

    def release(self, address: int) -> None:
        size = self._held.pop(address)
        while size < self.largest_chunk:
            buddy = address ^ size
            if buddy not in self._free[size]:
                break
            self._free[size].remove(buddy)
            address = min(address, buddy)
            size *= 2
        insort(self._free[size], address)
