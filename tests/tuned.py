"""Levels and trials with known numbers, for the tests of tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.load.results import LevelResult
from engine.metrics import Distribution
from engine.tuning.study import Trial, TrialState


def spread(p50: float, p95: float | None = None, mean: float | None = None) -> Distribution:
    high = p50 if p95 is None else p95
    return Distribution(20, p50 if mean is None else mean, p50, high, high, high)


def level(tok_s: float = 100.0, ttft_p95_ms: float = 300.0, **more: Any) -> LevelResult:
    values: dict[str, Any] = {
        "label": "20 users",
        "users": 20,
        "requests_ok": 40,
        "throughput_tok_s": tok_s,
        "ttft_ms": spread(ttft_p95_ms / 2, ttft_p95_ms),
        "tpot_ms": spread(20.0),
        "e2e_ms": spread(1000.0),
    }
    return LevelResult(**(values | more))


def trial(number: int, changes: Mapping[str, Any], measured: LevelResult | None = None, **more: Any) -> Trial:
    state = TrialState.DONE if measured else TrialState.QUEUED
    return Trial(number, changes, **({"state": state, "level": measured} | more))
