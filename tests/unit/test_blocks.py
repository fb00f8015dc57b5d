"""The block pool against the free order of vLLM V1 (its ids start at 1: block 0 is its null block)."""

from __future__ import annotations

import pytest

from engine.kv.blocks import BlockPool


def test_blocks_are_taken_in_order_and_one_without_a_key_is_used_again_first() -> None:
    pool = BlockPool(5)
    assert pool.take(3) == [0, 1, 2]
    assert pool.release([0, 1, 2]) == 3
    assert list(pool.free_order()) == [2, 1, 0, 3, 4]


def test_blocks_with_keys_go_to_the_tail_with_the_end_of_the_chain_first() -> None:
    pool = BlockPool(5)
    blocks = pool.take(3)
    pool.label(blocks[0], "a")
    pool.label(blocks[1], "ab")
    pool.release(blocks)
    assert list(pool.free_order()) == [2, 3, 4, 1, 0]


def test_a_taken_block_is_findable_no_more() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.label(block, "a")
    pool.release([block])
    assert pool.find("a") == block
    assert pool.take(2) == [1, 0]
    assert pool.find("a") is None
    assert pool.key_of(block) is None


def test_a_touched_block_leaves_the_free_queue_and_comes_back_once_nobody_holds_it() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.label(block, "a")
    pool.release([block])
    assert pool.touch(block) is True
    assert pool.touch(block) is False
    assert pool.free_blocks == 1
    assert pool.release([block]) == 0
    assert pool.release([block]) == 1
    assert pool.free_blocks == 2


def test_equal_blocks_are_not_merged_and_the_older_one_is_found() -> None:
    pool = BlockPool(3)
    first, second = pool.take(2)
    pool.label(first, "a")
    pool.label(second, "a")
    assert pool.find("a") == first
    pool.release([first])
    pool.take(2)
    assert pool.find("a") == second


def test_changes_tell_which_free_blocks_are_findable() -> None:
    pool = BlockPool(1)
    pool.changes = []
    pool.take(1)
    pool.label(0, "a")
    pool.release([0])
    pool.touch(0)
    pool.release([0])
    pool.take(1)
    assert pool.changes == [(0, True), (0, False), (0, True), (0, False)]


def test_more_than_is_free_is_refused() -> None:
    with pytest.raises(ValueError, match="3 blocks wanted, 2 free"):
        BlockPool(2).take(3)
