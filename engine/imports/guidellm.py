"""guidellm's ``benchmarks.json``: one report with a benchmark for each strategy that it ran.

Names are those of its schemas (``benchmark/schemas``, 0.4 and later; older files differ in where the strategy stands).
Its “time per output token” and “inter-token latency” are kept under its own definitions
(``engine.load.conventions``). A summary over nothing is written as zeros there; here it is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from engine.errors import ConfigError
from engine.imports.foreign import ForeignLevel, load_label, load_run
from engine.imports.mark import Origin
from engine.imports.values import count, mapping, number, positive, text
from engine.load.conventions import PARTS, Values
from engine.store import Run

FORMAT = "guidellm"
MEASURES = {"time_to_first_token_ms": "ttft", "time_per_output_token_ms": "tpot", "inter_token_latency_ms": "itl"}
SETTINGS = ("target", "profile", "rate", "data", "max_seconds", "max_requests", "seed")
MOST_LEVELS = 200
LONGEST_SETTING = 500


def recognises(documents: Sequence[dict[str, Any]]) -> bool:
    if len(documents) != 1:
        return False
    found = documents[0].get("benchmarks")
    return isinstance(found, list) and all("metrics" in mapping(one) for one in found)


def runs_of(documents: Sequence[dict[str, Any]], file: str) -> list[Run]:
    report = documents[0]
    benchmarks = [mapping(one) for one in report["benchmarks"]]
    if not benchmarks or len(benchmarks) > MOST_LEVELS:
        raise ConfigError(f"{file} holds {len(benchmarks)} benchmarks.", f"Give one with 1 to {MOST_LEVELS}.")
    return [
        load_run(
            [_level(one) for one in benchmarks],
            Origin(FORMAT, file),
            model=_model(report, benchmarks),
            created_at=_time(benchmarks[0]),
            config={"tool": "guidellm", **_settings(report)},
        )
    ]


def _level(benchmark: Mapping[str, Any]) -> ForeignLevel:
    metrics, strategy = mapping(benchmark["metrics"]), _strategy(benchmark)
    users, rate = _users(strategy), _rate(strategy)
    totals = mapping(metrics.get("request_totals"))
    return ForeignLevel(
        label=load_label(None, rate) if rate is not None else load_label(users, None),
        users=users if rate is None else None,
        rate_req_s=rate,
        requests_ok=count(totals.get("successful")),
        failed=count(totals.get("errored")),
        cancelled=count(totals.get("incomplete")),
        prompt_tokens=_tokens(metrics, "prompt_token_count"),
        output_tokens=_tokens(metrics, "output_token_count"),
        numbers=_numbers(benchmark, metrics),
    )


def _numbers(benchmark: Mapping[str, Any], metrics: Mapping[str, Any]) -> Values:
    values: Values = {
        "duration_s": positive(benchmark.get("duration")),
        "throughput_tok_s": positive(_successful(metrics, "output_tokens_per_second").get("mean")),
        "throughput_req_s": positive(_successful(metrics, "requests_per_second").get("mean")),
    }
    for theirs, ours in MEASURES.items():
        values |= _statistics(_successful(metrics, theirs), ours, 1.0)
    return values | _statistics(_successful(metrics, "request_latency"), "e2e", 1000.0)  # it writes seconds


def _statistics(found: Mapping[str, Any], measure: str, to_ms: float) -> Values:
    known = found.get("count") != 0
    parts = {"mean": found.get("mean"), **mapping(found.get("percentiles"))}
    parts.setdefault("p50", found.get("median"))
    values = {part: number(parts.get(part)) if known else None for part in PARTS}
    return {f"{measure}_{part}_ms": None if value is None else value * to_ms for part, value in values.items()}


def _successful(metrics: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return mapping(mapping(metrics.get(name)).get("successful"))


def _tokens(metrics: Mapping[str, Any], name: str) -> int | None:
    return count(_successful(metrics, name).get("total_sum"))


def _strategy(benchmark: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where it stood in the versions so far."""
    places = (("config", "strategy"), ("args", "strategy"), ("scheduler", "strategy"))
    found = (mapping(mapping(benchmark.get(outer)).get(inner)) for outer, inner in places)
    return next((strategy for strategy in found if strategy), {})


def _users(strategy: Mapping[str, Any]) -> int | None:
    if strategy.get("type_") == "synchronous":
        return 1
    return count(strategy.get("streams")) or count(strategy.get("max_concurrency"))


def _rate(strategy: Mapping[str, Any]) -> float | int | None:
    return positive(strategy.get("rate")) if strategy.get("type_") in ("constant", "poisson") else None


def _model(report: Mapping[str, Any], benchmarks: Sequence[Mapping[str, Any]]) -> str:
    return next((name for name in _models(report, benchmarks) if name), "")


def _models(report: Mapping[str, Any], benchmarks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield text(mapping(report.get("args")).get("model"))
    for benchmark in benchmarks:
        yield text(mapping(mapping(benchmark.get("config")).get("backend")).get("model"))
        yield text(mapping(benchmark.get("worker")).get("backend_model"))


def _settings(report: Mapping[str, Any]) -> dict[str, Any]:
    """What it was told, as far as that is short: the file holds much more."""
    args = mapping(report.get("args"))
    named = {name: args[name] for name in SETTINGS if name in args}
    return {name: value for name, value in named.items() if len(str(value)) <= LONGEST_SETTING}


def _time(benchmark: Mapping[str, Any]) -> str:
    seconds = positive(benchmark.get("start_time"))
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else ""
    except (OverflowError, OSError, ValueError):
        return ""
