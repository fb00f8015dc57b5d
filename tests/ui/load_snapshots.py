"""A load test at every moment, scripted: for page tests and screenshots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.config import LoadTestConfig
from engine.load.results import (
    Badge,
    Lane,
    LaneRequest,
    LevelResult,
    LivePoint,
    LoadResults,
    LoadSnapshot,
    LoadState,
    RequestState,
    Sample,
)
from engine.metrics import Distribution, Slo
from engine.store import Run
from tests.ui import fakes

CONFIG = LoadTestConfig(slo_ttft_ms=500, slo_tpot_ms=100)
TOOLS = ("vllm_bench", "guidellm")


def spread(middle: float, count: int = 60) -> Distribution:
    return Distribution(count, middle * 1.05, middle, middle * 1.2, middle * 1.3, middle * 1.5)


def level(users: int, tok_s: float, ttft_ms: float, **changes: Any) -> LevelResult:
    """A level that went well; ``changes`` are fields of its own."""
    requests = max(20, 3 * users)
    result = LevelResult(
        label="1 user" if users == 1 else f"{users} users",
        users=users,
        requests_ok=requests,
        wall_s=50 * requests / tok_s,
        prompt_tokens=64 * requests,
        output_tokens=50 * requests,
        throughput_req_s=tok_s / 50,
        throughput_tok_s=tok_s,
        total_tok_s=tok_s * 114 / 50,
        ttft_ms=spread(ttft_ms, requests),
        tpot_ms=spread(9.0 + users, requests),
        itl_ms=spread(9.0 + users, requests * 49),
        e2e_ms=spread(ttft_ms + 49 * (9.0 + users), requests),
        goodput_req_s=tok_s / 100,
        goodput_pct=50.0,
        preemptions=0,
        kv_cache_peak_pct=12.5,
        prefix_queries=64 * requests,
        prefix_hits=0,
        client_cpu_s=0.2,
        loop_lag_p99_ms=1.2,
        lengths_forced=True,
        samples=tuple(Sample(0.1 * i, True, ttft_ms + i, 9.0 + users, 600.0 + i, 64, 50) for i in range(requests)),
        conventions={tool: {"throughput_tok_s": tok_s - 11, "ttft_p95_ms": 777.0} for tool in TOOLS},
    )
    return replace(result, **changes)


FEW = Badge("few_samples", "Few samples for p99", "20 requests: p99 is hardly more than the slowest of them.", "note")
LATE = Badge("preempted", "Preempted", "3 times the KV cache was full.")
LEVELS = (
    level(1, 100, 60, badges=(FEW,)),
    level(5, 330, 90),
    level(10, 520, 150),
    level(20, 590, 410, badges=(LATE,)),
)
RESULTS = LoadResults(LEVELS, ("Prompts repeat.",), Slo(500, 100), knee=2)
LANES = (
    Lane(
        0,
        (LaneRequest(0, RequestState.DONE, 0.0, 0.01, 0.08, 1.2), LaneRequest(2, RequestState.DECODE, 1.2, None, 1.3)),
    ),
    Lane(1, (LaneRequest(1, RequestState.FAILED, 0.0, None, None, 0.9), LaneRequest(3, RequestState.QUEUED, 0.9))),
)
RUNNING = LoadSnapshot(
    LoadState.RUNNING,
    CONFIG,
    "5 users: measuring",
    0.4,
    elapsed_s=21.0,
    left_s=32.0,
    level=1,
    labels=("1 user", "5 users", "10 users", "20 users"),
    level_s=2.0,
    requests_planned=20,
    requests_done=7,
    requests_failed=1,
    requests_running=5,
    lanes=LANES,
    live=(LivePoint(0.5, 200.0, 5, 0), LivePoint(1.0, 287.4, 4, 3)),
    results=replace(RESULTS, levels=LEVELS[:1], knee=None),
)
STARTING = LoadSnapshot(LoadState.RUNNING, CONFIG, "Starting the vLLM server", elapsed_s=3.0)
WARMING = replace(RUNNING, warming_up=True, lanes=(), live=(), level_s=None, requests_done=0, requests_running=0)
DONE = LoadSnapshot(
    LoadState.DONE, CONFIG, "Done", 1.0, elapsed_s=40.0, level=3, labels=RUNNING.labels, level_s=2.0, lanes=LANES,
    results=RESULTS, run_id="20261201-070000-abcdef",
)  # fmt: skip
CUT = replace(
    LEVELS[1], requests_cancelled=5, partial="Cancelled before its end.", badges=(Badge("partial", "Not whole", "Cancelled."),)
)  # fmt: skip
CANCELLED = replace(DONE, state=LoadState.CANCELLED, results=replace(RESULTS, levels=(LEVELS[0], CUT), knee=None))
FAILED = replace(
    CANCELLED, state=LoadState.FAILED, error="20 requests failed one after another.", remedy="Look at the log."
)
BARE = LevelResult("5 users", users=5, requests_ok=5, ttft_ms=None)


def saved(run_id: str = "20261201-070000-abcdef", **changes: Any) -> Run:
    """A finished load test as the store gives it back."""
    run = fakes.saved_run(
        run_id,
        kind="load",
        title="1, 5, 10, 20 users: up to 590 tok/s",
        config=CONFIG.to_dict() | {"server": None},
        results=RESULTS.to_dict(),
    )
    return replace(run, **changes)
