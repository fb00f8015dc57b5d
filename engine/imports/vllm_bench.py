"""What ``vllm bench serve`` writes with ``--save-result`` (one object) or ``--append-result`` (an object a line).

The names are those of vLLM 0.32, ``vllm/benchmarks/serve.py``. Which percentiles are there was chosen with
``--metric-percentiles`` (99 unless told): the others are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from engine.errors import ConfigError
from engine.imports.foreign import ForeignLevel, load_label, load_run
from engine.imports.mark import Origin
from engine.imports.values import count, number, positive, text
from engine.load.conventions import Values
from engine.load.export import BENCH_MEASURES, BENCH_STATISTICS
from engine.store import Run

FORMAT = "vllm_bench"
REQUIRED = {"duration", "completed", "request_throughput"}
SETTINGS = ("backend", "endpoint_type", "label", "tokenizer_id", "num_prompts", "burstiness")


def recognises(documents: Sequence[dict[str, Any]]) -> bool:
    return all(document.keys() >= REQUIRED for document in documents)


def runs_of(documents: Sequence[dict[str, Any]], file: str) -> list[Run]:
    """One run for each model in the file, a level for each object, in the order of the file."""
    if not all("output_throughput" in document for document in documents):
        raise ConfigError(f"{file} is of a benchmark without generated text.", "Import results of generation.")
    models = dict.fromkeys(text(document.get("model_id")) for document in documents)
    return [_run([one for one in documents if text(one.get("model_id")) == model], model, file) for model in models]


def _run(objects: Sequence[dict[str, Any]], model: str, file: str) -> Run:
    first = objects[0]
    settings = {name: first.get(name) for name in SETTINGS if isinstance(first.get(name), str | int | float)}
    return load_run(
        [_level(one) for one in objects],
        Origin(FORMAT, file),
        model=model,
        created_at=_time(first.get("date")),
        config={"tool": "vllm bench serve", **settings},
    )


def _level(found: dict[str, Any]) -> ForeignLevel:
    users, rate = count(found.get("max_concurrency")), positive(found.get("request_rate"))  # "inf": no rate
    return ForeignLevel(
        label=load_label(users, rate),
        users=users if rate is None else None,
        rate_req_s=rate,
        requests_ok=count(found.get("completed")),
        failed=count(found.get("failed")),
        prompt_tokens=count(found.get("total_input_tokens")),
        output_tokens=count(found.get("total_output_tokens")),
        goodput_req_s=number(found.get("request_goodput")),
        numbers=_numbers(found),
    )


def _numbers(found: dict[str, Any]) -> Values:
    values: Values = {
        "duration_s": positive(found.get("duration")),
        "throughput_tok_s": positive(found.get("output_throughput")),
        "throughput_req_s": positive(found.get("request_throughput")),
    }
    for name, ours in BENCH_MEASURES.items():
        for word, part in BENCH_STATISTICS.items():
            values[f"{ours}_{part}_ms"] = positive(found.get(f"{word}_{name}_ms"))
    return values


def _time(date: Any) -> str:
    """It writes local time without saying of which place: kept as it is, without a zone."""
    try:
        return datetime.strptime(date, "%Y%m%d-%H%M%S").isoformat()
    except (TypeError, ValueError):
        return ""
