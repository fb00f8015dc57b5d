"""How long a load test will take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.compare_estimate import Span
from engine.config import LoadTestConfig
from engine.errors import ConfigError
from engine.load.estimate import estimate
from engine.load.results import LevelResult, LoadResults
from engine.store import Run

MACHINE, MODEL = "two cores", "owner/model"


def run(*levels: tuple[int, float], **changes: Any) -> Run:
    """``levels``: users, and seconds per output token of all of them together."""
    measured = tuple(
        LevelResult(f"{users} users", users=users, requests_ok=20, wall_s=1000 * token_s, output_tokens=1000)
        for users, token_s in levels
    )
    saved = Run(
        "1", "load", "", "done", "2026-12-01",
        config=LoadTestConfig().to_dict(),
        environment={"summary": MACHINE},
        model={"model_id": MODEL},
        results=LoadResults(measured).to_dict(),
    )  # fmt: skip
    return replace(saved, **changes)


def of(config: LoadTestConfig, *runs: Run) -> Any:
    return estimate(runs, config, machine=MACHINE, model=MODEL)


CLOSED = LoadTestConfig(users=(4,), requests=20, max_tokens=50, warm_up=False)


def test_a_closed_loop_takes_as_long_as_the_server_did() -> None:
    found = of(CLOSED, run((4, 0.01)))
    assert (found.levels, found.requests, found.span, found.runs) == (1, 20, Span(10, 10), 1)


def test_without_history_the_work_is_known_and_the_time_is_not() -> None:
    found = of(CLOSED)
    assert (found.requests, found.span, found.runs) == (20, None, 0)


def test_between_measured_users_it_is_between_their_times() -> None:
    assert of(CLOSED, run((1, 0.02), (8, 0.01))).span == Span(10, 20)


@pytest.mark.parametrize(("known", "span"), [((2, 0.02), Span(10, 20)), ((8, 0.01), Span(10, 20))])
def test_beyond_measured_users_it_is_a_proportion_at_most(known: tuple[int, float], span: Span) -> None:
    assert of(CLOSED, run(known)).span == span


def test_the_newest_measurement_counts() -> None:
    found = of(CLOSED, run((4, 0.01)), run((4, 0.5), (1, 0.5)))
    assert found.span == Span(10, 10) and found.runs == 2


def test_a_level_by_time_takes_that_time() -> None:
    found = of(LoadTestConfig(users=(1, 2), duration_s=10))
    assert (found.requests, found.span) == (None, Span(20, 20))


def test_an_open_loop_takes_its_arrivals_or_longer() -> None:
    config = LoadTestConfig(profile="constant", rates=(2,), duration_s=10, warm_up=False)
    assert of(config).span == Span(9.5, 9.5)
    assert of(config, run((8, 0.001))).span == Span(9.5, 9.5)
    assert of(config, run((8, 0.1))).span == Span(100, 100)


def test_a_ramp_may_end_after_two_levels() -> None:
    config = LoadTestConfig(profile="ramp", users=(1, 4), requests=20, warm_up=False)
    assert of(config, run((1, 0.01), (2, 0.01), (4, 0.01))).span == Span(20, 30)


def test_a_warm_up_is_counted() -> None:
    config = replace(CLOSED, warm_up=True)
    assert of(config, run((4, 0.01))).span == Span(10 + 4 * 8 * 0.01, 10 + 4 * 8 * 0.01)


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "compare"},
        {"environment": {"summary": "another machine"}},
        {"model": {"model_id": "owner/other"}},
        {"config": LoadTestConfig(prompt_tokens=4096).to_dict()},
        {"config": LoadTestConfig(prompts="long").to_dict()},
        {"config": "damaged"},
        {"results": {"levels": "damaged"}},
    ],
)
def test_what_is_not_comparable_or_damaged_teaches_nothing(other: dict[str, Any]) -> None:
    found = of(CLOSED, run((4, 0.01), **other))
    assert (found.span, found.runs) == (None, 0)


def test_what_cannot_be_sent_is_a_config_error() -> None:
    with pytest.raises(ConfigError):
        of(LoadTestConfig(profile="trace", trace="/no/such/file.csv"))
