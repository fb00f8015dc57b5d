"""What vLLM says about itself at ``/metrics``.

Names differ between versions: the newer one is asked first. Every field of a server that doesn't
have it is None, so an attached server without metrics is no error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from engine.config import Endpoint
from engine.fetch import fetch

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
PREFIX_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
PREFIX_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
PROMPT_TOKENS = ("vllm:prompt_tokens_total",)
GENERATION_TOKENS = ("vllm:generation_tokens_total",)
PREEMPTIONS = ("vllm:num_preemptions_total",)
ITERATIONS = ("vllm:iteration_tokens_total_count",)
CACHE_CONFIG = "vllm:cache_config_info"
# Beyond it a float no longer counts in ones: no server has counted that far. Nor is it true of nan.
LARGEST = 2**53
NAME_END = re.compile(r"[{\s]")
WANTED = frozenset(
    {
        *RUNNING,
        *WAITING,
        *KV_USAGE,
        *PREFIX_QUERIES,
        *PREFIX_HITS,
        *PROMPT_TOKENS,
        *GENERATION_TOKENS,
        *PREEMPTIONS,
        *ITERATIONS,
        CACHE_CONFIG,
    }
)


@dataclass(frozen=True)
class ServerMetrics:
    """Gauges of now and counters since the server's start; None where it doesn't say.

    ``kv_cache_usage`` is 0 to 1. Prefix numbers are tokens asked for and found in the cache.
    With several engines (data parallel) counts are sums, usage is the mean, and the cache's
    size is that of one engine.
    """

    running: int | None = None
    waiting: int | None = None
    kv_cache_usage: float | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    preemptions: int | None = None
    iterations: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None

    def prefix_hit_rate_since(self, before: ServerMetrics) -> float | None:
        """Share 0 to 1 of prompt tokens found in the cache between two scrapes; None without any."""
        if None in (self.prefix_queries, self.prefix_hits, before.prefix_queries, before.prefix_hits):
            return None
        asked = (self.prefix_queries or 0) - (before.prefix_queries or 0)
        found = (self.prefix_hits or 0) - (before.prefix_hits or 0)
        return found / asked if asked > 0 and found >= 0 else None


@dataclass
class _Samples:
    values: dict[str, list[float]] = field(default_factory=dict)
    cache_config: dict[str, str] = field(default_factory=dict)


def scrape(endpoint: Endpoint, timeout_s: float = 2.0) -> ServerMetrics:
    """Read ``/metrics`` once. Raises ServerNotReady when nothing answers within ``timeout_s``."""
    reply = fetch("GET", f"{endpoint.root_url}/metrics", headers=endpoint.headers, timeout_s=timeout_s)
    if reply.status != 200 or not reply.complete:
        return ServerMetrics()
    return parse(reply.body.decode(errors="replace"))


def parse(text: str) -> ServerMetrics:
    """Metrics from the Prometheus text format; text that is something else has none."""
    samples = _collect(text)
    return ServerMetrics(
        running=_whole(samples, RUNNING),
        waiting=_whole(samples, WAITING),
        kv_cache_usage=_share(_first(samples, KV_USAGE, _mean)),
        prefix_queries=_whole(samples, PREFIX_QUERIES),
        prefix_hits=_whole(samples, PREFIX_HITS),
        prompt_tokens=_whole(samples, PROMPT_TOKENS),
        generation_tokens=_whole(samples, GENERATION_TOKENS),
        preemptions=_whole(samples, PREEMPTIONS),
        iterations=_whole(samples, ITERATIONS),
        block_size=_label(samples, "block_size"),
        num_blocks=_label(samples, "num_gpu_blocks"),
        kv_tokens=_label(samples, "kv_cache_size_tokens"),
        max_concurrency=_label_number(samples, "kv_cache_max_concurrency"),
    )


def _collect(text: str) -> _Samples:
    """Only the wanted lines are parsed: vLLM sends hundreds, most of them histogram buckets."""
    collected = _Samples()
    for line in text.split("\n"):
        if NAME_END.split(line, maxsplit=1)[0] in WANTED:
            for sample in _parse_line(line):
                _add(collected, sample)
    return collected


def _parse_line(line: str) -> list[Sample]:
    """Nothing for a line that is broken: the others may still be good."""
    try:
        return [sample for family in text_string_to_metric_families(line + "\n") for sample in family.samples]
    except ValueError:
        return []


def _add(collected: _Samples, sample: Sample) -> None:
    if sample.name == CACHE_CONFIG:
        collected.cache_config = collected.cache_config or dict(sample.labels)
    elif abs(sample.value) <= LARGEST:
        collected.values.setdefault(sample.name, []).append(sample.value)


def _first(samples: _Samples, names: Iterable[str], combine: Callable[[list[float]], float]) -> float | None:
    for name in names:
        if name in samples.values:
            return combine(samples.values[name])
    return None


def _whole(samples: _Samples, names: Iterable[str]) -> int | None:
    value = _first(samples, names, math.fsum)
    return None if value is None else round(value)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _label_number(samples: _Samples, name: str) -> float | None:
    """A label's number; vLLM writes the word None for what it doesn't know."""
    try:
        value = float(samples.cache_config.get(name, ""))
    except ValueError:
        return None
    return value if abs(value) <= LARGEST else None


def _share(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= 1 else None


def _label(samples: _Samples, name: str) -> int | None:
    value = _label_number(samples, name)
    return None if value is None else int(value)
