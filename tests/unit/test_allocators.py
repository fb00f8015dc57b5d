"""The contiguous baselines: what they assume, and what that costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import CONTIGUOUS_ALLOCATORS, SimulationConfig
from engine.kv.allocators import ContiguousMemory, Memory, longest, make_memory, next_power_of_two, true_length
from engine.kv.stay import Stay
from engine.kv.workloads import Request


def admit(memory: Memory, prompt: int, output: int, samples: int = 1) -> Stay | None:
    stay = Stay(Request(0, 0, prompt, output, samples=samples), 0, memory.ledger.step)
    return stay if memory.admit(stay) is not None else None


def kinds(memory: Memory) -> tuple[int, int, int, int, int]:
    ledger = memory.ledger
    return ledger.tokens, ledger.reserved, ledger.internal, ledger.external, ledger.free


@pytest.mark.parametrize(
    ("prompt", "output", "pow2", "oracle"),
    [(10, 25, 42, 35), (10, 32, 42, 42), (10, 1, 11, 11), (2000, 40, 2048, 2040)],
)
def test_estimates(prompt: int, output: int, pow2: int, oracle: int) -> None:
    """25 tokens of output count as 32; nothing is longer than the model allows."""
    request = Request(0, 0, prompt, output)
    assert longest(2048)(request) == 2048
    assert next_power_of_two(2048)(request) == pow2
    assert true_length(2048)(request) == oracle


def test_the_papers_figure_3() -> None:
    """Two requests, of at most 2048 and 512: 7 and 3 tokens of prompt; 2038 and 507 slots are never used.

    The figure shows A after one more token (so one step on) and B at its start; each has two or one more to come.
    """
    for limit, prompt, output, never_used in ((2048, 7, 3, 2038), (512, 3, 2, 507)):
        memory = ContiguousMemory(limit, 1, limit, longest(limit))
        assert admit(memory, prompt, output) is not None
        assert kinds(memory) == (prompt, output, never_used, 0, 0)


def test_rounding_up_to_a_chunk_is_external_fragmentation() -> None:
    memory = ContiguousMemory(1000, 16, 512, true_length(512))
    assert admit(memory, 90, 30) is not None
    assert kinds(memory) == (90, 30, 0, 128 - 120 + 1000 % 16, 1000 - 128 - 1000 % 16)


def test_samples_get_a_chunk_each_all_or_none() -> None:
    memory = ContiguousMemory(300, 1, 128, longest(100))
    assert admit(memory, 10, 20, samples=3) is None
    assert kinds(memory) == (0, 0, 0, 0, 300)
    assert admit(memory, 10, 20, samples=2) is not None
    assert kinds(memory) == (20, 40, 2 * 70, 2 * 28, 300 - 256)


def test_token_by_token_reserved_slots_become_token_states() -> None:
    memory = make_memory("contiguous_max", SimulationConfig())
    stay = admit(memory, 100, 50)
    assert stay is not None
    memory.ledger.advance(30)
    assert (memory.ledger.tokens, memory.ledger.reserved) == (130, 20)
    memory.release(stay)
    assert kinds(memory) == (0, 0, 0, 0, 4000)


@given(
    allocator=st.sampled_from(CONTIGUOUS_ALLOCATORS),
    lengths=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 200)), max_size=20),
    steps=st.integers(0, 50),
)
def test_the_kinds_always_add_up_and_all_memory_comes_back(
    allocator: str, lengths: list[tuple[int, int]], steps: int
) -> None:
    memory = make_memory(allocator, SimulationConfig(memory_tokens=3001))
    stays = [stay for prompt, output in lengths if (stay := admit(memory, prompt, output + steps))]
    assert sum(kinds(memory)) == 3001
    memory.ledger.advance(steps)
    assert sum(kinds(memory)) == 3001
    assert min(kinds(memory)) >= 0
    for stay in stays:
        memory.release(stay)
    assert kinds(memory) == (0, 0, 0, 3001 % 16, 3001 - 3001 % 16)
