"""The buddy allocator: nothing is given out twice, and everything comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.buddy import BuddyAllocator, power_of_two_at_least

OPT_13B_UNITS = 983


def test_the_papers_memory_holds_seven_requests_of_full_length() -> None:
    buddy = BuddyAllocator(OPT_13B_UNITS, 128)
    assert buddy.capacity(128) == 7
    assert [buddy.allocate(128) for _ in range(8)] == [0, 128, 256, 384, 512, 640, 768, None]
    assert buddy.free_units == OPT_13B_UNITS - 7 * 128
    assert buddy.largest_hole == 64


def test_a_chunk_is_rounded_up_and_its_halves_join_again() -> None:
    buddy = BuddyAllocator(8, 8)
    assert buddy.chunk_for(3) == 4
    first, second = buddy.allocate(3), buddy.allocate(1)
    assert (first, second) == (0, 4)
    assert buddy.allocate(8) is None
    buddy.release(0)
    assert buddy.largest_hole == 4
    buddy.release(4)
    assert buddy.largest_hole == 8


def test_free_memory_in_pieces_holds_no_large_chunk() -> None:
    buddy = BuddyAllocator(8, 8)
    addresses = [buddy.allocate(2) for _ in range(4)]
    buddy.release(addresses[0])
    buddy.release(addresses[2])
    assert (buddy.free_units, buddy.largest_hole, buddy.allocate(4)) == (4, 2, None)


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 4), (128, 128), (129, 256)])
def test_power_of_two(number: int, power: int) -> None:
    assert power_of_two_at_least(number) == power


@given(
    units=st.integers(0, 300),
    largest=st.integers(1, 128),
    actions=st.lists(st.tuples(st.booleans(), st.integers(1, 140)), max_size=80),
)
def test_chunks_never_overlap_and_freed_memory_comes_back(
    units: int, largest: int, actions: list[tuple[bool, int]]
) -> None:
    buddy = BuddyAllocator(units, largest)
    held: dict[int, int] = {}
    for take, number in actions:
        if take:
            chunk = buddy.chunk_for(number)
            hole = buddy.largest_hole
            address = buddy.allocate(number)
            assert (address is not None) == (hole >= chunk)
            if address is not None:
                held[address] = chunk
        elif held:
            address = sorted(held)[number % len(held)]
            del held[address]
            buddy.release(address)
        owned = [unit for address, chunk in held.items() for unit in range(address, address + chunk)]
        assert len(owned) == len(set(owned))
        assert all(0 <= unit < units for unit in owned)
        assert buddy.free_units == units - len(owned)
    for address in held:
        buddy.release(address)
    fresh = BuddyAllocator(units, largest)
    assert (buddy.free_units, buddy.largest_hole) == (units, fresh.largest_hole)


@given(units=st.integers(0, 300), largest=st.integers(1, 128), number=st.integers(1, 128))
def test_capacity_is_what_really_fits(units: int, largest: int, number: int) -> None:
    buddy = BuddyAllocator(units, largest)
    count = 0
    while buddy.allocate(number) is not None:
        count += 1
    assert count == buddy.capacity(number)
