"""When requests are sent, where a ramp stops, and where the knee is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import LOAD_LIMITS, LoadTestConfig
from engine.errors import ConfigError
from engine.kv.traces import SAMPLE_TRACE
from engine.load.profiles import constant, doubling, knee_of, levels_of, poisson, saturated
from engine.load.results import LevelResult
from engine.metrics import Distribution

TRACE = "arrival_s,input_tokens,output_tokens\n5.0,10,3\n6.0,20,4\n9.0,30,5\n"


def flat(value: float) -> Distribution:
    return Distribution(20, *(value,) * 5)


def level(tok_s: float | None, e2e_ms: float = 1000, queue_ms: float | None = 0.0) -> LevelResult:
    queue = None if queue_ms is None else flat(queue_ms)
    return LevelResult(
        "", requests_ok=20, throughput_tok_s=tok_s, e2e_ms=flat(e2e_ms), ttft_ms=flat(e2e_ms / 4), server_queue_ms=queue
    )


def test_the_workshop_has_a_level_for_each_number_of_users() -> None:
    levels = levels_of(LoadTestConfig())
    assert [(one.label, one.users, one.requests) for one in levels] == [
        ("1 user", 1, 20),
        ("5 users", 5, 20),
        ("10 users", 10, 30),
        ("20 users", 20, 60),
    ]


def test_requests_or_seconds_end_a_level() -> None:
    by_time = levels_of(LoadTestConfig(users=(3,), duration_s=10))[0]
    assert (by_time.requests, by_time.duration_s) == (None, 10)
    both = levels_of(LoadTestConfig(users=(3,), duration_s=10, requests=7))[0]
    assert (both.requests, both.duration_s) == (7, 10)
    assert levels_of(LoadTestConfig(users=(8,), requests=3))[0].requests == 8  # one for every user


def test_a_constant_rate_is_evenly_spaced() -> None:
    assert list(islice(constant(4), 4)) == [0.0, 0.25, 0.5, 0.75]
    one = levels_of(LoadTestConfig(profile="constant", rates=(2.0,), duration_s=3))[0]
    assert one.arrivals_s == (0.0, 0.5, 1.0, 1.5, 2.0, 2.5) and one.requests == 6


def test_poisson_gaps_are_exponential() -> None:
    times = list(islice(poisson(5.0, random.Random(1)), 20_000))
    gaps = [after - before for before, after in pairwise(times)]
    assert fmean(gaps) == pytest.approx(0.2, rel=0.02)
    assert stdev(gaps) == pytest.approx(0.2, rel=0.03)


def test_the_same_seed_gives_the_same_arrivals_and_another_one_others() -> None:
    config = LoadTestConfig(profile="poisson", rates=(5.0,), duration_s=10)
    assert levels_of(config) == levels_of(config)
    assert levels_of(config) != levels_of(replace(config, seed=1))


@given(st.floats(0.5, 50), st.floats(1, 20), st.integers(1, 100))
def test_arrivals_stay_within_time_and_number(rate: float, seconds: float, most: int) -> None:
    config = LoadTestConfig(profile="constant", rates=(rate,), duration_s=seconds, requests=most)
    arrivals = levels_of(config)[0].arrivals_s
    assert arrivals is not None and 0 < len(arrivals) <= most and list(arrivals) == sorted(arrivals)
    assert all(0 <= time_s < seconds for time_s in arrivals)


def test_a_number_of_requests_needs_no_duration() -> None:
    one = levels_of(LoadTestConfig(profile="poisson", rates=(0.5,), requests=100))[0]
    assert len(one.arrivals_s or ()) == 100


def test_a_burst_comes_all_at_once() -> None:
    one = levels_of(LoadTestConfig(profile="burst", users=(8,)))[0]
    assert one.arrivals_s == (0.0,) * 8 and one.requests == 8


@pytest.mark.parametrize(
    ("ends", "steps"), [((1, 8), (1, 2, 4, 8)), ((1, 20), (1, 2, 4, 8, 16, 20)), ((3,), (3,)), ((20, 5), (5, 10, 20))]
)
def test_a_ramp_doubles_from_the_lowest_to_the_highest(ends: tuple[int, ...], steps: tuple[int, ...]) -> None:
    assert doubling(ends) == steps
    assert tuple(one.users for one in levels_of(LoadTestConfig(profile="ramp", users=ends))) == steps
    rates = tuple(map(float, ends))
    assert tuple(one.rate_req_s for one in levels_of(LoadTestConfig(profile="ramp", rates=rates))) == steps


def test_a_trace_is_replayed_from_its_first_request_scaled_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    config = LoadTestConfig(profile="trace", trace=str(path), trace_speed=2.0)
    one = levels_of(config)[0]
    assert one.arrivals_s == (0.0, 0.5, 2.0) and [(row.prompt, row.output) for row in one.rows] == [
        (10, 3),
        (20, 4),
        (30, 5),
    ]
    assert levels_of(replace(config, duration_s=1.0))[0].arrivals_s == (0.0, 0.5)
    assert levels_of(replace(config, requests=1))[0].arrivals_s == (0.0,)


def test_the_sample_trace_can_be_replayed() -> None:
    one = levels_of(LoadTestConfig(profile="trace", trace=str(SAMPLE_TRACE), trace_speed=1000, requests=1000))[0]
    assert one.requests == len(one.rows) == 1000


@pytest.mark.parametrize(
    "settings",
    [
        {"users": (0,)},
        {"users": (10_001,)},
        {"users": ()},
        {"users": tuple(range(1, 60))},
        {"profile": "poisson"},
        {"profile": "poisson", "rates": (0.0,)},
        {"profile": "constant", "rates": (-1.0,)},
        {"profile": "constant", "rates": (float("nan"),)},
        {"profile": "constant", "rates": (float("inf"),)},
        {"profile": "nothing"},
        {"profile": "trace"},
        {"prompts": "file"},
        {"prompts": "poetry"},
        {"duration_s": 0.0},
        {"max_tokens": 0},
        {"prompt_shape": "cauchy"},
        {"timeout_s": 0.0},
        {"slo_ttft_ms": 0.0},
        {"temperature": 3.0},
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_remedy(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        LoadTestConfig(**settings)  # type: ignore[arg-type]
    assert caught.value.remedy


def test_ten_thousand_users_are_accepted() -> None:
    assert levels_of(LoadTestConfig(users=(10_000,)))[0].requests == 30_000


def test_more_requests_than_can_be_held_are_refused() -> None:
    rate = LOAD_LIMITS["rates"][1]
    with pytest.raises(ConfigError, match="more than 100,000"):
        levels_of(LoadTestConfig(profile="constant", rates=(rate,), duration_s=3600))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (level(100), level(104, queue_ms=50), True),  # flat, and the queue grows
        (level(100), level(104, queue_ms=0), False),  # flat, but nobody waits
        (level(100), level(150, queue_ms=50), False),  # still growing
        (level(100), level(90, queue_ms=50), True),
        (level(100, queue_ms=None), level(100, e2e_ms=2000, queue_ms=None), True),  # no word from the server: TTFT
        (level(100), replace(level(None), requests_ok=0), True),
        (level(None), level(None), False),  # a server that sends no usage
    ],
)
def test_saturation_is_flat_throughput_with_longer_waiting(
    before: LevelResult, after: LevelResult, expected: bool
) -> None:
    assert saturated(before, after) is expected


def linear(users: int) -> float:
    return 10.0 * users


def never_more(users: int) -> float:
    return 200.0


def one_queue(users: int) -> float:
    """Mean value analysis: every user thinks for 9 units and needs the one server for 1; 20 tokens each time."""
    waiting = answered = 0.0
    for number in range(1, users + 1):
        response = 1 + waiting
        answered = number / (9 + response)
        waiting = answered * response
    return 20 * answered


def first_saturated(curve: Callable[[int], float], loads: Sequence[int]) -> int | None:
    """Of a ramp on a server where requests wait longer the more there are."""
    levels = [replace(level(curve(load), queue_ms=load), users=load) for load in loads]
    return next((after.users for before, after in pairwise(levels) if saturated(before, after)), None)


DOUBLED, FINE, SINGLE = [2**step for step in range(8)], [round(1.2**step * 5) for step in range(18)], range(1, 120)


@pytest.mark.parametrize("loads", [DOUBLED, FINE, SINGLE])
def test_where_a_ramp_stops_is_the_same_however_fine_its_steps_are(loads: Sequence[int]) -> None:
    assert first_saturated(linear, loads) is None
    assert first_saturated(never_more, loads) == loads[1]
    stop = first_saturated(one_queue, loads)
    assert stop is not None
    full = 20.0  # tokens per unit of a server that is never idle
    before = loads[list(loads).index(stop) - 1]
    assert one_queue(before) > 0.9 * full and 10 < before <= 32  # beyond (9 + 1) / 1 users, but not far


def test_a_rate_that_grew_and_one_that_is_not_known_count_too() -> None:
    before, after = (replace(level(tok_s, queue_ms=tok_s), rate_req_s=rate) for tok_s, rate in ((100, 10), (101.5, 12)))
    assert not saturated(before, after)  # 1.5% more of 20%
    assert saturated(before, replace(after, rate_req_s=20.0))  # 1.5% more of 100%
    assert saturated(replace(before, rate_req_s=None), after)


def test_the_knee_is_where_throughput_over_latency_is_highest() -> None:
    levels = [level(60, 800), level(180, 1400), level(250, 2000), level(340, 2900)]
    assert knee_of(levels) == 1
    assert knee_of(levels[:2]) is None
    assert knee_of([level(None), *levels[:2]]) is None
    assert knee_of([level(60, 800), level(180, 900), level(340, 1000)]) is None  # nothing beyond the best was measured
