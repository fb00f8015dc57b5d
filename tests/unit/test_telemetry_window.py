"""Rates and percentiles against an exact reckoning, over restarts, gaps and thinned history."""

from __future__ import annotations

import math
import random

import pytest

from engine.telemetry.points import Point
from engine.telemetry.readings import MetricsReader
from engine.telemetry.series import COARSE_S, Sample, Series
from engine.telemetry.window import Window, look
from tests.unit.telemetry_texts import BOUNDS, metrics_text

T0 = 1_796_000_000.0


def sample(second: float, era: int = 1, text: str | None = None, **machine: float | None) -> Sample:
    return Sample(T0 + second, era, MetricsReader().read(text) if text else None, machine)


def series_of(*samples: Sample) -> Window:
    kept = Series()
    for one in samples:
        kept.add(one)
    now_s = samples[-1].at_s
    return look(kept.since(now_s - 60), 60, now_s)


def column(window: Window, key: str) -> list[float | None]:
    return [point.get(key) for point in window.points]


def exact_quantile(seconds: list[float], share: float) -> float:
    """Prometheus' definition, written the slow way: the rank's place between the bounds of its bucket."""
    rank = share * len(seconds)
    lower, below = 0.0, 0
    for bound in BOUNDS:
        count = sum(one <= bound for one in seconds)
        if count >= rank:
            return lower if bound == math.inf else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    raise AssertionError


def test_a_steady_rate_is_that_rate() -> None:
    window = series_of(*(sample(s, text=metrics_text(generation=100 * s, prompt=7 * s)) for s in range(30)))
    assert column(window, "generation_tok_s")[1:] == [pytest.approx(100.0)] * 29
    assert column(window, "prompt_tok_s")[-1] == pytest.approx(7.0)
    assert column(window, "generation_tok_s")[0] is None


def test_percentiles_are_of_the_window_and_not_of_the_servers_life() -> None:
    chance = random.Random(7)
    old = [0.05] * 10_000
    new = [chance.uniform(0.0, 0.8) for _ in range(500)]
    before, after = metrics_text(observed={"ttft": old}), metrics_text(observed={"ttft": old + new})
    window = series_of(sample(0, text=before), sample(1, text=after))
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert window.latencies_ms[f"ttft_{name}_ms"] == pytest.approx(1000 * exact_quantile(new, share))


def test_the_mean_is_exact_and_of_the_window() -> None:
    before = metrics_text(engines=2, observed={"queue": [0.7] * 100})
    after = metrics_text(engines=2, observed={"queue": [0.7] * 100 + [0.001, 0.003]})
    window = series_of(sample(0, text=before), sample(1, text=after))
    assert window.latencies_ms["queue_mean_ms"] == pytest.approx(2.0)
    assert window.points[-1].get("queue_mean_ms") == pytest.approx(2.0)


def test_no_request_in_the_window_has_no_percentile() -> None:
    text = metrics_text(observed={"ttft": [0.3] * 50, "e2e": [0.3] * 50})
    window = series_of(sample(0, text=text), sample(1, text=text))
    assert window.latencies_ms["ttft_p95_ms"] is None
    assert window.requests == 0
    assert window.points[-1].get("ttft_p95_ms") is None


def test_a_restart_is_no_negative_rate_and_no_spike() -> None:
    texts = [(s, 1, metrics_text(start_s=1.0, generation=1000 + 10 * s)) for s in range(5)]
    texts += [(s, 2, metrics_text(start_s=2.0, generation=10 * (s - 5))) for s in range(5, 10)]
    rates = column(series_of(*(sample(s, era, text) for s, era, text in texts)), "generation_tok_s")
    assert rates[5] is None
    assert [rate for rate in rates if rate is not None] == [pytest.approx(10.0)] * 8


def test_what_came_before_and_after_a_restart_counts_together() -> None:
    a, b = metrics_text(start_s=1.0, observed={"e2e": [0.3]}), metrics_text(start_s=1.0, observed={"e2e": [0.3] * 4})
    c, d = metrics_text(start_s=2.0, observed={"e2e": []}), metrics_text(start_s=2.0, observed={"e2e": [0.7] * 2})
    window = series_of(sample(0, 1, a), sample(1, 1, b), sample(2, 2, c), sample(3, 2, d))
    assert window.requests == 3 + 2


def test_a_gap_is_a_gap_and_what_follows_is_no_spike() -> None:
    said = [sample(s, text=metrics_text(generation=100 * s, running=2)) for s in range(4)]
    silent = [sample(s) for s in range(4, 8)]
    back = [sample(s, text=metrics_text(generation=100 * s, running=2)) for s in range(8, 12)]
    window = series_of(*said, *silent, *back)
    assert column(window, "generation_tok_s")[4:9] == [None] * 5
    assert column(window, "running")[3:9] == [2, None, None, None, None, 2]
    assert column(window, "generation_tok_s")[-1] == pytest.approx(100.0)


def test_a_silent_collector_is_a_gap_too() -> None:
    window = series_of(
        *(
            sample(s, text=metrics_text(running=3, generation=count))
            for s, count in ((0, 0), (1, 10), (40, 50_000), (41, 50_010))
        )
    )
    assert column(window, "generation_tok_s") == [None, pytest.approx(10.0), None, None, pytest.approx(10.0)]
    assert column(window, "running") == [3, 3, None, 3, 3]


def test_prefix_hits_are_a_share_of_what_was_asked_in_the_window() -> None:
    window = series_of(
        sample(0, text=metrics_text(queries=1000, hits=1000)), sample(1, text=metrics_text(queries=1200, hits=1050))
    )
    assert window.prefix_hit_percent == pytest.approx(25.0)


def test_old_samples_are_thinned_to_their_peaks_and_memory_is_bounded() -> None:
    series = Series(fine=20, coarse=5)
    for second in range(200):
        busy = 9.0 if second == 131 else 1.0
        text = metrics_text(running=50 if second == 132 else 2, generation=10 * second)
        series.add(sample(second, text=text, host_busy_cores=busy))
    assert len(series) == 25
    coarse = [one for one in series.all() if one.thinned]
    assert {int((one.at_s - T0 + T0 % COARSE_S) // COARSE_S) for one in coarse} == {13, 14, 15, 16, 17}
    peak = coarse[0]
    assert peak.machine["host_busy_cores"] == 9.0
    assert peak.reading is not None and peak.reading.values["running"] == 50
    assert peak.reading.values["generation_tokens"] == 1390


def test_rates_hold_over_thinned_history() -> None:
    series = Series(fine=60)
    for second in range(600):
        series.add(sample(second, text=metrics_text(generation=25 * second)))
    window = look(series.since(T0), 900, T0 + 599)
    rates = [rate for rate in column(window, "generation_tok_s")[3:] if rate is not None]
    assert rates and rates == [pytest.approx(25.0)] * len(rates)


def test_a_clock_that_was_set_back_begins_anew() -> None:
    series = Series()
    series.add(sample(100))
    series.add(sample(50))
    assert [one.at_s for one in series.all()] == [T0 + 50]


def test_the_highest_of_several_gpus_counts() -> None:
    point = Point(T0, {"gpu_memory_percent:a": 40.0, "gpu_memory_percent:b": 99.0, "gpu_memory_percent:c": None})
    assert point.highest("gpu_memory_percent") == 99.0
    assert point.highest("gpu_power_w") is None
