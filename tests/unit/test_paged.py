"""Paged memories in the scenarios of vLLM's own tests (tests/v1/core/test_prefix_caching.py and test_scheduler.py).

vLLM's block 0 is its null block, so its block n is n - 1 here, and N blocks there are N - 1 here.
"""

from __future__ import annotations

from engine.kv.paged import PagedMemory, ParallelMemory, PrefixCachedMemory
from engine.kv.scheduler import Scheduler
from engine.kv.stay import Grant, Stay
from engine.kv.workloads import Request

PAGE = 16


class Caller:
    """Admits and ends requests by hand."""

    def __init__(self, memory: PagedMemory) -> None:
        self.memory = memory
        self.count = 0

    def admit(self, prompt: int, output: int = 1000, prefix: int = 0, shared: int = 0, **values: int) -> Stay | None:
        request = Request(self.count, 0, prompt, output, prefix=prefix, prefix_tokens=shared, **values)
        stay = Stay(request, self.count, self.memory.ledger.step)
        self.count += 1
        self.grants: list[Grant] | None = self.memory.admit(stay)
        return stay if self.grants is not None else None

    @property
    def table(self) -> list[int]:
        """Of the first sequence that was admitted last, in vLLM's ids."""
        assert self.grants is not None
        return [block + 1 for block in self.grants[0].units]

    def grow_to(self, stay: Stay, context: int) -> list[int]:
        """New blocks in vLLM's ids."""
        new: list[int] = []
        while stay.context_at(self.memory.ledger.step) < context:
            self.memory.ledger.advance(self.memory.ledger.step + 1)
            if stay.grows_at == self.memory.ledger.step:
                grants = self.memory.grow(stay)
                assert grants is not None
                new += [block + 1 for grant in grants for block in grant.units]
        return new

    def end(self, *stays: Stay | None) -> None:
        """vLLM frees what a request has computed; here the ledger must have moved on by a step first."""
        self.memory.ledger.advance(self.memory.ledger.step + 1)
        for stay in stays:
            assert stay is not None
            self.memory.release(stay)

    def free_order(self) -> list[int]:
        return [block + 1 for block in self.memory.pool.free_order()]


def cached(blocks: int, page: int = PAGE) -> Caller:
    return Caller(PrefixCachedMemory((blocks - 1) * page, page))


def test_prefill_shares_full_blocks_and_frees_in_vllms_order() -> None:
    caller = cached(11)
    first = caller.admit(55, shared=48)
    assert caller.table == [1, 2, 3, 4]
    second = caller.admit(53, shared=48)
    assert caller.table == [1, 2, 3, 5]
    assert second is not None and second.hits == 3
    assert caller.memory.pool.references[:5] == [2, 2, 2, 1, 1]
    assert caller.memory.pool.free_blocks == 5
    caller.end(first, second)
    assert caller.free_order() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    third = caller.admit(54, shared=48)
    assert caller.table == [1, 2, 3, 5]
    assert caller.memory.pool.free_blocks == 6
    caller.end(third)
    caller.admit(160)
    assert caller.table == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    assert caller.memory.pool.free_blocks == 0


def test_decode_takes_a_block_only_when_the_last_is_full_and_hashes_only_full_ones() -> None:
    caller = cached(11)
    stay = caller.admit(55)
    assert stay is not None and caller.table == [1, 2, 3, 4]
    assert caller.grow_to(stay, 59) == []
    assert caller.memory.pool.key_of(3) is None
    assert caller.grow_to(stay, 78) == [5]
    caller.end(stay)
    assert [caller.memory.pool.key_of(block) is not None for block in range(5)] == [True] * 4 + [False]


def test_a_reused_block_forgets_what_it_held() -> None:
    caller = cached(2)
    caller.end(caller.admit(16))
    assert caller.memory.pool.key_of(0) is not None
    caller.admit(15)
    assert caller.table == [1]
    assert caller.memory.pool.key_of(0) is None


def test_found_blocks_are_not_evicted_by_the_same_admission() -> None:
    caller = cached(3)
    first, second = caller.admit(16, prefix=1, shared=16), caller.admit(16, prefix=2, shared=16)
    caller.end(first, second)
    stay = caller.admit(32, prefix=1, shared=16)
    assert stay is not None and stay.hits == 1
    assert caller.table == [1, 2]


def test_without_caching_blocks_are_only_counted() -> None:
    caller = Caller(PagedMemory(16, 4))
    first = caller.admit(10)
    assert len(caller.table) == 3
    caller.end(first)
    caller.admit(16)
    assert len(caller.table) == 4
    assert caller.admit(4) is None


def test_other_contents_are_not_found() -> None:
    """vLLM's cache salt does the same: another salt, another prefix."""
    caller = cached(11)
    caller.end(caller.admit(50, prefix=1, shared=48))
    same = caller.admit(50, prefix=1, shared=48)
    assert same is not None and same.hits == 3
    other = caller.admit(50, prefix=2, shared=48)
    assert other is not None and other.hits == 0


def test_the_last_token_of_a_known_prompt_is_computed_again() -> None:
    caller = cached(10)
    caller.end(caller.admit(48, shared=48))
    again = caller.admit(48, shared=48)
    assert again is not None and again.hits == 2


def test_a_refused_admission_changes_nothing() -> None:
    caller = cached(11)
    holder = caller.admit(55, shared=48)
    assert holder is not None
    before = (list(caller.memory.pool.references), caller.free_order())
    assert caller.admit(48 + 16 * 7, shared=48) is None
    assert (list(caller.memory.pool.references), caller.free_order()) == before


def test_a_running_request_that_needs_a_block_preempts_the_latest() -> None:
    """test_preempt_during_execution: two prompts of 80 tokens in ten blocks."""
    memory = PagedMemory(160, PAGE)
    scheduler = Scheduler(memory, max_num_seqs=16)
    scheduler.run([Request(0, 0, 80, 5), Request(1, 0, 80, 5)], until=2)
    table = scheduler.timeline.table()
    assert table["running"].tolist() == [2, 1, 1]
    assert table["waiting"].tolist() == [0, 1, 1]
    assert scheduler.preemptions == 1


def test_the_watermark_holds_only_while_something_runs() -> None:
    caller = Caller(PagedMemory(160, PAGE, watermark=0.2))
    first = caller.admit(160)
    assert first is not None
    caller.end(first)
    assert caller.admit(16 * 4) is not None
    assert caller.admit(16 * 5) is None
    assert caller.admit(16 * 4) is not None


def test_the_walk_of_the_paper() -> None:
    """Section 4.3: block size 4, prompt of 7: two blocks; the first decode fills slot 8, the second takes a block."""
    caller = Caller(PagedMemory(100, 4))
    stay = caller.admit(7)
    assert stay is not None and len(caller.table) == 2
    assert caller.grow_to(stay, 8) == []
    assert len(caller.grow_to(stay, 9)) == 1


def test_samples_share_the_prompt_and_copy_its_last_block_before_writing() -> None:
    """Section 4.4: all but the last writer get a copy; the full blocks stay shared."""
    caller = Caller(ParallelMemory(400, 4))
    memory = caller.memory
    stay = caller.admit(7, samples=3)
    assert stay is not None and caller.grants is not None
    assert [list(grant.units) for grant in caller.grants] == [[0, 1]] * 3
    assert memory.pool.references[:2] == [3, 3]
    assert caller.grow_to(stay, 8) == [3, 4]
    assert memory.pool.references[:4] == [3, 1, 1, 1]
    assert memory.ledger.tokens == 4 + 3 * 4
    assert len(caller.grow_to(stay, 9)) == 3
    caller.end(stay)
    assert memory.pool.free_blocks == 100


def test_samples_of_a_prompt_that_ends_with_its_block_need_no_copy() -> None:
    caller = Caller(ParallelMemory(400, 4))
    stay = caller.admit(8, samples=2)
    assert stay is not None
    caller.memory.ledger.advance(1)
    grants = caller.memory.grow(stay)
    assert grants is not None and [grant.copied for grant in grants] == [False, False]
    assert caller.memory.pool.references[:4] == [2, 2, 1, 1]


def test_parallel_samples_hold_fewer_blocks_than_separate_requests() -> None:
    alone, shared = PagedMemory(4000, PAGE), ParallelMemory(4000, PAGE)
    for memory in (alone, shared):
        stay = Caller(memory).admit(100, samples=4)
        assert stay is not None
    assert alone.pool.free_blocks == 250 - 28
    assert shared.pool.free_blocks == 250 - 7


def test_cached_samples_share_the_prompt_that_the_first_of_them_brings() -> None:
    """As in vLLM, where samples are requests of their own: full blocks of 52 tokens three times, and a rest each."""
    caller = Caller(PrefixCachedMemory(7 * PAGE, PAGE))
    stay = caller.admit(52, samples=4)
    assert stay is not None and stay.hits == 9
    assert caller.memory.pool.free_blocks == 0
    assert caller.memory.ledger.tokens == 48 + 4 * 4


def test_a_request_that_would_outgrow_the_empty_memory_never_fits() -> None:
    memory = PagedMemory(160, PAGE)
    assert memory.can_ever_hold(Request(0, 0, 100, 61))
    assert not memory.can_ever_hold(Request(0, 0, 100, 62))
    assert not memory.can_ever_hold(Request(0, 0, 100, 20, samples=2))
    assert ParallelMemory(160, PAGE).can_ever_hold(Request(0, 0, 100, 20, samples=2))
