"""Every number that a report shows: its name on paper, its unit, and which way is better."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engine.units import millis, number, seconds, short, size, with_unit


class Measure(NamedTuple):
    """``better`` is 1 where more is better, -1 where less is, 0 where neither is. ``term``: in ``METRIC_HELP``."""

    label: str
    unit: str
    better: int
    text: Callable[[float | None], str]
    term: str = ""


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{value:.1f}%"


def _rate(value: float | None) -> str:
    return "0 req/s" if value == 0 else with_unit(value, "req/s")


def _latencies(name: str, term: str, parts: tuple[str, ...] = ("p50", "p95", "p99")) -> dict[str, Measure]:
    unit = "ms/token" if name == "tpot" else "ms"
    return {f"{name}_{part}_ms": Measure(f"{term} {part}", unit, -1, millis, term) for part in parts}


def _speed(value: float | None) -> str:
    return with_unit(value, "tok/s")


MEASURES: dict[str, Measure] = {
    "throughput_tok_s": Measure("Throughput", "tok/s", 1, _speed, "throughput"),
    "throughput_req_s": Measure("Requests answered", "req/s", 1, _rate),
    "goodput_req_s": Measure("Goodput", "req/s", 1, _rate, "goodput"),
    "goodput_pct": Measure("Goodput, share", "%", 1, _percent, "goodput"),
    **_latencies("ttft", "TTFT"),
    **_latencies("tpot", "TPOT"),
    **_latencies("itl", "ITL", ("p95", "p99")),
    **_latencies("e2e", "E2E"),
    "ttft_mean_ms": Measure("TTFT mean", "ms", -1, millis, "TTFT"),
    "tpot_mean_ms": Measure("TPOT mean", "ms/token", -1, millis, "TPOT"),
    "e2e_mean_ms": Measure("E2E mean", "ms", -1, millis, "E2E"),
    "ttft_ms": Measure("TTFT", "ms", -1, millis, "TTFT"),
    "tpot_ms": Measure("TPOT", "ms/token", -1, millis, "TPOT"),
    "e2e_ms": Measure("E2E", "ms", -1, millis, "E2E"),
    "ttft_median_ms": Measure("TTFT, median", "ms", -1, millis, "TTFT"),
    "tpot_median_ms": Measure("TPOT, median", "ms/token", -1, millis, "TPOT"),
    "generate_s": Measure("Generation", "s", -1, seconds),
    "load_s": Measure("Load", "s", -1, seconds),
    "memory_bytes": Measure("Memory, all processes", "bytes", -1, size),
    "requests_ok": Measure("Requests answered whole", "", 0, number),
    "failed": Measure("Requests failed", "", -1, number),
    "output_tokens": Measure("Output tokens", "tokens", 0, number, "output tokens"),
    "prompt_tokens": Measure("Prompt tokens", "tokens", 0, number),
    "preemptions": Measure("Preempted", "", -1, number),
    "kv_cache_peak_pct": Measure("KV cache, peak", "%", 0, _percent),
    "prefix_hit_pct": Measure("Prefix-cache hits", "%", 0, _percent),
}


def text_of(name: str, value: float | None) -> str:
    """With its unit; unknown is “—”."""
    measure = MEASURES.get(name)
    return short(value) if measure is None else measure.text(value)
