"""From traces to numbers, badges, conventions and files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.config import LoadTestConfig
from engine.load.conventions import guidellm, in_conventions, vllm_bench
from engine.load.export import to_csv, to_vllm_bench
from engine.load.levels import level_result
from engine.load.order import CANCELLED, LevelOutcome, Sent
from engine.load.profiles import Level
from engine.load.results import LevelResult, LoadResults
from engine.load.watch import MetricsWatch
from engine.metrics import RequestTrace, ServerTimings, Slo, goodput
from engine.telemetry.host import OtherWork
from engine.telemetry.prometheus import ServerMetrics
from tests.fake_openai import FakeOpenAI
from tests.supervised import eventually

LEVEL = Level("2 users", users=2, requests=4)


def trace(sent_s: float = 0.0, ttft_s: float = 0.1, gap_s: float = 0.02, tokens: int = 11, **more: Any) -> RequestTrace:
    times = tuple(sent_s + ttft_s + gap_s * number for number in range(tokens))
    values: dict[str, Any] = {
        "chunk_times_s": times,
        "prompt_tokens": 7,
        "output_tokens": tokens,
        "finish_reason": "length",
        "finish_s": times[-1],
        "expected_tokens": tokens,
        "ended_s": times[-1] + 0.01,
    }
    return RequestTrace(sent_s, **(values | more))


FAILED = RequestTrace(0.0, error="Boom 1.25 s", ended_s=0.5)


class Watched:
    """What a MetricsWatch found."""

    waiting_peak: int | None = None

    def __init__(self, kv_cache_peak_pct: float | None = None, **grown: int) -> None:
        self.kv_cache_peak_pct = kv_cache_peak_pct
        self._grown = grown

    def grown(self, name: str) -> int | None:
        return self._grown.get(name)


def result(
    traces: list[RequestTrace],
    *,
    watch: Watched | None = None,
    slo: Slo | None = None,
    warmed: list[RequestTrace] | None = None,
    others: OtherWork | None = None,
    **outcome: Any,
) -> LevelResult:
    over = {"began_s": 0.0, "cpu_s": 0.01, "loop_lag_p99_ms": 1.0} | outcome
    sent = tuple(Sent(number, 0, 0, one) for number, one in enumerate(traces))
    return level_result(
        LEVEL, LevelOutcome(sent, **over), watch or Watched(), slo or Slo(), warmed=warmed, others=others  # type: ignore[arg-type]
    )  # fmt: skip


def codes(level: LevelResult) -> set[str]:
    return {badge.code for badge in level.badges}


# -- numbers


def test_a_level_sums_up_what_finished() -> None:
    server = ServerTimings(queue_ms=5.0)
    level = result([trace(server=server), trace(1.0, server=server), FAILED])
    assert (level.requests, level.requests_ok, level.requests_failed) == (3, 2, 1)
    assert level.wall_s == pytest.approx(1.3)
    assert level.throughput_tok_s == pytest.approx(22 / 1.3)
    assert level.throughput_req_s == pytest.approx(2 / 1.3)
    assert level.total_tok_s == pytest.approx(36 / 1.3)
    assert level.ttft_ms and level.ttft_ms.p50 == pytest.approx(100)
    assert level.server_queue_ms and level.server_queue_ms.p50 == 5.0
    assert level.client_queue_ms is None
    assert level.failures == (("Boom 1 s", 1),)
    assert level.client_cpu_ms_per_token == pytest.approx(10 / 22)


def test_a_level_in_which_everything_failed_has_no_numbers_and_no_zeros() -> None:
    level = result([FAILED, FAILED])
    assert level.failures == (("Boom 1 s", 2),)
    unknown = (
        "wall_s",
        "throughput_tok_s",
        "throughput_req_s",
        "total_tok_s",
        "ttft_ms",
        "goodput_pct",
        "prompt_tokens",
    )
    assert [getattr(level, name) for name in unknown] == [None] * len(unknown)
    assert result([]).requests == 0


def test_cancelled_requests_are_neither_failed_nor_counted() -> None:
    level = result([trace(), RequestTrace(0.0, error=CANCELLED)], stopped=CANCELLED)
    assert (level.requests_ok, level.requests_failed, level.requests_cancelled) == (1, 0, 1)
    assert level.partial.startswith("Cancelled before its end") and "partial" in codes(level)


def test_an_open_loop_counts_from_the_intended_start() -> None:
    level = result([trace(0.3, intended_s=0.0), trace(0.5, intended_s=0.5)])
    assert level.ttft_ms and level.ttft_ms.mean == pytest.approx((400 + 100) / 2)
    assert level.client_queue_ms and level.client_queue_ms.mean == pytest.approx(150)
    assert level.wall_s == pytest.approx(0.8)


def test_goodput_counts_requests_that_met_every_limit() -> None:
    fast, slow = trace(), trace(0.0, ttft_s=0.9)
    found = goodput([fast, slow, FAILED], Slo(ttft_ms=500, tpot_ms=25))
    assert found is not None
    assert found.pct == pytest.approx(100 / 3) and found.req_s == pytest.approx(1 / 1.1)
    assert goodput([fast, slow], Slo(tpot_ms=19)) == (0.0, 0.0)
    assert goodput([fast], Slo()) is None and goodput([], Slo(ttft_ms=1)) is None
    assert goodput([FAILED], Slo(ttft_ms=1)) == (0.0, 0.0)


def test_goodput_is_unknown_where_a_tpot_is_and_one_token_meets_any() -> None:
    without_usage = trace(output_tokens=None, expected_tokens=None)
    assert goodput([trace(), without_usage], Slo(tpot_ms=50)) is None
    assert goodput([trace(), without_usage], Slo(ttft_ms=500)) is not None
    one_token = trace(tokens=1)
    assert goodput([one_token], Slo(tpot_ms=0.001, e2e_ms=200)) == (pytest.approx(10), 100)


def test_results_survive_the_store() -> None:
    levels = (result([trace(), trace(1.0), FAILED], watch=Watched(50.0, preemptions=2), slo=Slo(ttft_ms=1)), result([]))
    results = LoadResults(levels, ("a note",), Slo(ttft_ms=1), 0, True)
    saved = json.loads(json.dumps(results.to_dict()))
    assert LoadResults.from_dict(saved) == results
    newer = {**saved, "levels": [{**level, "unheard_of": 1} for level in saved["levels"]]}
    assert LoadResults.from_dict(newer) == results
    assert LoadResults.from_dict({}) == LoadResults()


def test_a_level_is_flat_with_units_and_the_names_that_programs_read() -> None:
    flat = result([trace()], slo=Slo(ttft_ms=500)).to_dict()
    expected = {"users", "requests", "failed", "output_tokens", "throughput_tok_s", "ttft_p50_ms", "tpot_p50_ms"}
    assert expected | {"e2e_p99_ms", "goodput_req_s", "client_cpu_s", "badges"} <= set(flat)


# -- badges: every one has a case with and one without


def test_a_sound_level_has_no_badge() -> None:
    traces = [trace(number * 0.5) for number in range(100)]
    assert codes(result(traces, watch=Watched(10.0, prefix_queries=700, prefix_hits=0, preemptions=0))) == set()


@pytest.mark.parametrize(
    ("count", "label", "severity"),
    [(5, "p90, p95 and p99", "warning"), (15, "p95 and p99", "warning"), (50, "p99", "note"), (100, None, "")],
)
def test_percentiles_need_values_beyond_them(count: int, label: str | None, severity: str) -> None:
    level = result([trace(number * 0.5) for number in range(count)])
    found = [badge for badge in level.badges if badge.code == "few_samples"]
    assert [(badge.label, badge.severity) for badge in found] == (
        [(f"Few samples for {label}", severity)] if label else []
    )


@pytest.mark.parametrize(("hits", "expected"), [(69, False), (71, True)])
def test_cache_warm(hits: int, expected: bool) -> None:
    level = result([trace()], watch=Watched(prefix_queries=700, prefix_hits=hits))
    assert ("cache_warm" in codes(level)) is expected


@pytest.mark.parametrize(("cpu_s", "expected"), [(0.2, False), (0.29, True)])
def test_client_bound_is_a_core_nearly_used_up(cpu_s: float, expected: bool) -> None:
    assert ("client_bound" in codes(result([trace()], cpu_s=cpu_s))) is expected  # 0.3 s of wall time


@pytest.mark.parametrize(("lag_ms", "expected"), [(9.0, False), (11.0, True), (None, False)])
def test_a_client_that_comes_late_blurs_what_it_measures(lag_ms: float | None, expected: bool) -> None:
    assert ("client_late" in codes(result([trace()], loop_lag_p99_ms=lag_ms))) is expected


@pytest.mark.parametrize(("late_s", "expected"), [(0.005, False), (0.03, True)])
def test_requests_that_leave_late_are_said(late_s: float, expected: bool) -> None:
    assert ("sent_late" in codes(result([trace(late_s, intended_s=0.0)]))) is expected


def test_preempted_and_others_busy_and_failed() -> None:
    level = result([trace(), FAILED], watch=Watched(preemptions=3), others=OtherWork(1.5, 2))
    assert {"preempted", "others_busy", "failed"} <= codes(level)
    quiet = result([trace()], watch=Watched(preemptions=0), others=OtherWork(0.1, 2))
    assert not {"preempted", "others_busy", "failed"} & codes(quiet)


def test_a_first_wave_that_is_slower_than_the_warm_up_or_the_rest_was_compiling() -> None:
    slow, later = trace(0.0, ttft_s=1.0), [trace(2.0 + number) for number in range(5)]
    assert "not_warmed" in codes(result([slow, *later]))
    assert "first_slow" not in codes(result([slow, *later], warmed=[]))  # the warm-up was another one
    assert "first_slow" in codes(result([slow, *later], warmed=[trace()]))
    assert "first_slow" not in codes(result([slow, *later], warmed=[slow]))  # its wave is always so slow
    assert "first_slow" not in codes(result([trace(), *later]))


def test_answers_of_unequal_length_are_said_where_nothing_forced_them() -> None:
    free = [trace(tokens=tokens, expected_tokens=None) for tokens in (5, 11)]
    assert "unequal_lengths" in codes(result(free))
    assert "unequal_lengths" not in codes(result([free[1], free[1]]))
    assert "unequal_lengths" not in codes(result([trace(tokens=5), trace(tokens=11)]))  # chosen so


# -- conventions


def test_vllms_convention_takes_the_first_choice_and_the_time_it_was_sent() -> None:
    ours = trace(0.2, intended_s=0.0, first_choice_s=0.25)
    theirs = vllm_bench([ours])
    assert theirs["ttft_p50_ms"] == pytest.approx(50)  # from 0.2 to the role-only chunk
    assert theirs["e2e_p50_ms"] == pytest.approx(300)
    assert theirs["tpot_mean_ms"] == pytest.approx(250 / 10)
    assert theirs["throughput_tok_s"] == pytest.approx(11 / 0.31)  # until the stream closed
    assert theirs["max_concurrent_requests"] == 1 and theirs["max_output_tokens_per_s"] == 12


def test_guidellms_tpot_includes_the_first_token_and_its_itl_is_our_tpot() -> None:
    ours = trace()
    theirs = guidellm([ours])
    assert theirs["tpot_p50_ms"] == pytest.approx(300 / 11)
    assert theirs["itl_p50_ms"] == pytest.approx(ours.tpot_ms)
    assert theirs["ttft_p50_ms"] == pytest.approx(100)
    assert theirs["e2e_p50_ms"] == pytest.approx(310)  # until the stream closed


def test_guidellm_weighs_requests_by_their_tokens_and_interpolates_nothing() -> None:
    short, long = trace(tokens=2, gap_s=0.1), trace(tokens=11, gap_s=0.02)
    theirs = guidellm([short, long])
    assert theirs["itl_mean_ms"] == pytest.approx((1 * 100 + 10 * 20) / 11)
    assert theirs["itl_p50_ms"] == pytest.approx(20)
    assert guidellm([trace(), trace(ttft_s=0.2)])["ttft_p50_ms"] == pytest.approx(100)  # not 150


def test_conventions_are_those_of_finished_requests_and_unknown_tokens_stay_unknown() -> None:
    assert in_conventions([FAILED]) == {}
    assert in_conventions([trace(), FAILED])["vllm_bench"]["throughput_req_s"] == pytest.approx(1 / 0.31)
    without = in_conventions([trace(output_tokens=None, expected_tokens=None)])
    assert without["vllm_bench"]["throughput_tok_s"] is None and without["vllm_bench"]["tpot_p50_ms"] is None


# -- files


def test_the_table_has_one_line_a_level_and_no_formulas() -> None:
    level = replace(result([trace(), FAILED]), label="=1+1")
    rows = list(csv.DictReader(io.StringIO(to_csv(LoadResults((level, result([trace()])))))))
    assert len(rows) == 2 and rows[0]["label"] == "'=1+1"
    assert rows[0]["failures"] == "1 × Boom 1 s" and float(rows[0]["ttft_p50_ms"]) == pytest.approx(100)
    assert rows[0]["goodput_pct"] == "" and "samples" not in rows[0]
    assert to_csv(LoadResults()) == ""


def test_vllms_shape_has_the_keys_that_its_benchmark_saves() -> None:
    saved = to_vllm_bench(LoadResults((result([trace(), trace(1.0)], slo=Slo(ttft_ms=500)),)), LoadTestConfig(), "m")[0]
    assert set(saved) == {
        *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate"),
        *("burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens"),
        *("total_output_tokens", "request_throughput", "request_goodput", "output_throughput"),
        *("total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests"),
        *(f"{part}_{name}_ms" for part in ("mean", "median", "std", "p90", "p95", "p99") for name in ("ttft", "tpot", "itl", "e2el")),
    }  # fmt: skip
    assert (saved["completed"], saved["max_concurrency"], saved["request_rate"]) == (2, 2, "inf")
    assert saved["total_token_throughput"] == pytest.approx(36 / saved["duration"])
    assert saved["std_ttft_ms"] == pytest.approx(0)


# -- the server's own metrics


@pytest.fixture
def fake() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as server:
        yield server


def metrics(hits: int, waiting: int, usage: float) -> str:
    return (
        f"vllm:prefix_cache_queries_total 100\nvllm:prefix_cache_hits_total {hits}\n"
        f"vllm:num_requests_waiting {waiting}\nvllm:kv_cache_usage_perc {usage}\n"
    )


def test_counters_are_differences_and_gauges_are_peaks(fake: FakeOpenAI) -> None:
    fake.metrics_text = metrics(5, 0, 0.1)
    with MetricsWatch(fake.endpoint(), every_s=0.01) as watch:
        fake.metrics_text = metrics(6, 4, 0.75)
        eventually(lambda: watch.waiting == 4)
        fake.metrics_text = metrics(25, 1, 0.2)
        eventually(lambda: watch.waiting == 1)
    assert watch.grown("prefix_hits") == 20 and watch.grown("prefix_queries") == 0
    assert watch.waiting_peak == 4 and watch.kv_cache_peak_pct == pytest.approx(75)
    assert watch.grown("preemptions") is None


def test_a_server_without_metrics_leaves_everything_unknown(fake: FakeOpenAI) -> None:
    fake.metrics_text = None
    with MetricsWatch(fake.endpoint(), every_s=0.01) as watch:
        pass
    assert (watch.waiting, watch.waiting_peak, watch.kv_cache_peak_pct, watch.grown("prefix_hits")) == (None,) * 4


def test_a_counter_that_a_restart_set_back_is_unknown(fake: FakeOpenAI) -> None:
    watch = MetricsWatch(fake.endpoint())
    watch.before, watch.after = ServerMetrics(preemptions=5), ServerMetrics(preemptions=1)
    assert watch.grown("preemptions") is None
