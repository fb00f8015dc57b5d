"""The difference between two measured levels, in words that are true of the numbers."""

from __future__ import annotations

from dataclasses import replace

from engine.load.results import Badge
from engine.tuning.explain import Delta, difference
from tests.tuned import level, spread


def test_what_changed_is_told_with_both_values() -> None:
    found = difference(level(100, 1300), level(200, 400))
    assert found.headline == "TTFT p95 fell from 1.3 s to 400 ms; throughput rose from 100 tok/s to 200 tok/s."


def test_less_than_a_tenth_is_not_called_a_change() -> None:
    found = difference(level(100, 300), level(109, 280))
    assert found.headline == "Nothing changed by 10% or more."
    assert found.causes == ()
    assert all(delta.better is None for delta in found.deltas)


def test_the_queue_is_named_where_it_makes_up_most_of_the_change() -> None:
    before = level(
        100, ttft_ms=spread(900, 1300, mean=1000), server_queue_ms=spread(0, mean=900), server_waiting_peak=12
    )
    after = level(100, ttft_ms=spread(90, 400, mean=100), server_queue_ms=spread(0, mean=0), server_waiting_peak=0)
    (cause,) = difference(before, after).causes
    assert cause == (
        "Of the change in TTFT, 100% is the queue: before, a request waited 900 ms on average until the server took it "
        "up, now 0 ms. At most 12 waited at once before, none now."
    )


def test_nobody_who_waited_is_not_counted() -> None:
    after = level(100, ttft_ms=spread(900, mean=1000), server_queue_ms=spread(0, mean=900), server_waiting_peak=5)
    before = level(100, ttft_ms=spread(90, mean=100), server_queue_ms=spread(0, mean=0), server_waiting_peak=0)
    (cause,) = difference(before, after).causes
    assert cause.endswith("now 900 ms. None waited before, at most 5 at once now.")
    (cause,) = difference(before, replace(after, server_waiting_peak=None)).causes
    assert cause.endswith("now 900 ms.")


def test_a_few_milliseconds_are_told_apart() -> None:
    found = difference(level(tpot_ms=spread(2.1)), level(tpot_ms=spread(2.4)))
    assert found.headline == "TPOT p50 rose from 2.1 ms to 2.4 ms."


def test_the_queue_is_not_named_where_the_change_is_elsewhere() -> None:
    before = level(100, ttft_ms=spread(900, 1300, mean=1000), server_queue_ms=spread(0, mean=20))
    after = level(100, ttft_ms=spread(90, 400, mean=100), server_queue_ms=spread(0, mean=10))
    assert difference(before, after).causes == ()


def test_a_queue_that_moved_the_other_way_is_not_a_cause() -> None:
    before = level(100, ttft_ms=spread(900, 1300, mean=1000), server_queue_ms=spread(0, mean=0))
    after = level(100, ttft_ms=spread(90, 400, mean=100), server_queue_ms=spread(0, mean=90))
    assert difference(before, after).causes == ()


def test_the_trade_of_batching_preemptions_cache_and_room_are_told() -> None:
    before = level(100, tpot_ms=spread(20), preemptions=0, prefix_queries=100, prefix_hits=0, kv_cache_peak_pct=10.0)
    after = level(150, tpot_ms=spread(30), preemptions=3, prefix_queries=100, prefix_hits=80, kv_cache_peak_pct=95.0)
    told = " ".join(difference(before, after).causes)
    assert "preempted no times before and 3 times now" in told
    assert "0% of the prompt tokens came from the prefix cache before, 80% now" in told
    assert "more slowly than before, all of them together faster" in told
    assert "10% full at most before, 95% now" in told


def test_what_is_unknown_is_neither_a_change_nor_a_cause() -> None:
    bare = replace(level(), throughput_tok_s=None, ttft_ms=None, tpot_ms=None, e2e_ms=None)
    found = difference(bare, level(preemptions=4))
    assert found.headline == "Nothing changed by 10% or more."
    assert found.causes == ()
    named = {delta.name: delta for delta in found.deltas}
    assert (named["preemptions"].before, named["preemptions"].change) == (None, None)


def test_from_none_to_some_is_a_change_without_a_share() -> None:
    delta = Delta("preemptions", "Preemptions", "", 0, 3, "down")
    assert (delta.change, delta.better, delta.words) == (None, False, "Preemptions rose from 0 to 3")
    assert Delta("preemptions", "Preemptions", "", 0, 0, "down").better is None


def test_what_may_spoil_the_comparison_is_said() -> None:
    before = level(badges=(Badge("few", "Few samples", "8 requests"),), partial="Cancelled.")
    after = level(requests_failed=2, users=10)
    assert difference(before, after).caveats == (
        "The level before is not whole: Cancelled.",
        "Few samples (before): 8 requests",
        "2 of 42 requests failed after.",
        "The two were not measured under the same load.",
    )
