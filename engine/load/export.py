"""A load test for other programs: a table, and the JSON that ``vllm bench serve --save-result`` writes."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from engine.config import LoadTestConfig
from engine.load.results import LevelResult, LoadResults
from engine.store import FORMULA_STARTS

NOT_IN_TABLE = ("samples", "conventions", "failures", "badges")
BENCH_STATISTICS = {"mean": "mean", "median": "p50", "std": "std", "p90": "p90", "p95": "p95", "p99": "p99"}
BENCH_MEASURES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}


def to_csv(results: LoadResults) -> str:
    """One line a level, units in the names of the columns; failures and badges as text."""
    rows = [_row(level) for level in results.levels]
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


def to_vllm_bench(results: LoadResults, config: LoadTestConfig, model: str, date: str = "") -> list[dict[str, Any]]:
    """One object a level, in the shape and the convention of vLLM's benchmark without ``--save-detailed``.

    ``date`` is like 20260131-235959. What our settings have no equivalent of is None.
    """
    return [_bench(level, config, model, date) for level in results.levels]


def vllm_bench_lines(results: LoadResults, config: LoadTestConfig, model: str, date: str = "") -> str:
    """As ``--append-result`` writes them, an object a line: with one level the file of ``--save-result``."""
    return "\n".join(json.dumps(level) for level in to_vllm_bench(results, config, model, date))


def _row(level: LevelResult) -> dict[str, Any]:
    values = {name: value for name, value in level.to_dict().items() if name not in NOT_IN_TABLE}
    values["failures"] = "; ".join(f"{count} × {reason}" for reason, count in level.failures)
    values["badges"] = ", ".join(badge.code for badge in level.badges)
    return {name: _cell(value) for name, value in values.items()}


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def _bench(level: LevelResult, config: LoadTestConfig, model: str, date: str) -> dict[str, Any]:
    theirs = level.conventions.get("vllm_bench", {})
    found: dict[str, Any] = {
        "date": date,
        "endpoint_type": "openai",
        "backend": "openai",
        "label": level.label,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": level.requests,
        "request_rate": level.rate_req_s if level.rate_req_s is not None else "inf",
        "burstiness": 1.0 if config.profile == "poisson" else None,
        "max_concurrency": level.users,
        "duration": theirs.get("duration_s"),
        "completed": level.requests_ok,
        "failed": level.requests_failed + level.requests_cancelled,
        "total_input_tokens": level.prompt_tokens,
        "total_output_tokens": level.output_tokens,
        "request_throughput": theirs.get("throughput_req_s"),
        "request_goodput": level.goodput_req_s,
        "output_throughput": theirs.get("throughput_tok_s"),
        "total_token_throughput": _total_rate(level, theirs.get("duration_s")),
        "max_output_tokens_per_s": theirs.get("max_output_tokens_per_s"),
        "max_concurrent_requests": theirs.get("max_concurrent_requests"),
    }
    for name, ours in BENCH_MEASURES.items():
        found |= {f"{word}_{name}_ms": theirs.get(f"{ours}_{part}_ms") for word, part in BENCH_STATISTICS.items()}
    return found


def _total_rate(level: LevelResult, seconds: float | None) -> float | None:
    if level.prompt_tokens is None or level.output_tokens is None or not seconds:
        return None
    return (level.prompt_tokens + level.output_tokens) / seconds
