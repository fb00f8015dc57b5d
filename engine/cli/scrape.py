"""``scrape``: what a server says about itself now, by the same names for every engine."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import Any

from engine.cli.common import Answer, add_verb
from engine.config import Endpoint, Settings
from engine.dialects import Detected, by_key, detect, dialects
from engine.errors import ServerNotReady
from engine.fetch import base_url_of
from engine.server.record import read_record
from engine.telemetry.latencies import latencies_ms
from engine.telemetry.prometheus import ServerMetrics, parse, read

TIMEOUT_S = 10.0


def register(verbs: Any) -> None:
    verb = add_verb(verbs, "scrape", _run, _text, "what a server's metrics say now, by the same names for every engine")
    verb.add_argument("--url", help="base URL of the server; the running lab's own when this is left out")
    verb.add_argument("--api-key", help="its key; OPENAI_API_KEY is used when this is left out")
    keys = [dialect.key for dialect in dialects()]
    verb.add_argument("--engine", choices=keys, metavar="NAME", help=f"don't ask which engine it is: {', '.join(keys)}")


def _run(arguments: argparse.Namespace, settings: Settings) -> Answer:
    endpoint = _endpoint(arguments, settings)
    found = Detected(by_key(arguments.engine)) if arguments.engine else detect(endpoint)
    if found.known:
        endpoint = replace(endpoint, engine=found.dialect.key)
    text = read(endpoint, TIMEOUT_S)
    return common_names(found, text), True


def common_names(found: Detected, text: str) -> dict[str, Any]:
    """The answer: None for what the engine doesn't say. Rates and percentiles are since the server's start."""
    engine = found.dialect.key if found.known else None
    metrics = parse(text, engine)
    told = metrics != ServerMetrics(engine=engine)
    return {
        "engine": found.dialect.key,
        "engine_name": found.dialect.name,
        "engine_version": found.version,
        "evidence": found.evidence or None,
        "requests_running": metrics.running,
        "requests_waiting": metrics.waiting,
        "kv_cache_usage": metrics.kv_cache_usage,
        "prompt_tokens_total": metrics.prompt_tokens,
        "generation_tokens_total": metrics.generation_tokens,
        "preemptions_total": metrics.preemptions,
        "prefix_hit_rate": _hit_rate(metrics),
        **latencies_ms(text, engine),
        "itl_kind": found.dialect.itl if found.known else None,
        "note": "" if told else _why_nothing(found),
    }


def _hit_rate(metrics: ServerMetrics) -> float | None:
    counted = metrics.prefix_hit_rate_since(ServerMetrics(prefix_queries=0, prefix_hits=0))
    return metrics.prefix_hit_rate if counted is None else counted


def _why_nothing(found: Detected) -> str:
    if not found.known:
        return "No known engine: only what the client measures is known of it."
    if found.dialect.metrics_path is None:
        return f"{found.dialect.name} has no metrics: only what the client measures is known of it."
    return f"{found.dialect.name} sends no metrics. {found.dialect.metrics_how}".strip()


def _endpoint(arguments: argparse.Namespace, settings: Settings) -> Endpoint:
    if arguments.url:
        return Endpoint(base_url_of(arguments.url), "", arguments.api_key or os.environ.get("OPENAI_API_KEY"))
    running = read_record(settings.state_dir)
    if running is None or not running.ready or not running.alive:
        raise ServerNotReady("The lab's own server is not ready.", "Start it, or name another server with --url.")
    return running.endpoint


def _text(answer: dict[str, Any]) -> str:
    note = answer["note"]
    hidden = ("note", "engine_name", "evidence", "itl_kind")
    lines = [f"{name:24} {_word(value)}" for name, value in answer.items() if name not in hidden]
    return "\n".join([*lines, *([note] if note else [])])


def _word(value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
