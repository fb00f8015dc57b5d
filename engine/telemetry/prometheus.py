"""What a server says about itself at ``/metrics``, by the names of its engine (``engine.dialects``).

Names differ between engines and their versions: the newer one is looked at first. Every field of a server that
doesn't have it is None, so an attached server without metrics is no error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from engine.config import Endpoint
from engine.dialects.table import Dialect, by_key, dialects
from engine.dialects.text import unquoted
from engine.fetch import fetch

CACHE_CONFIG = "vllm:cache_config_info"
# Beyond it a float no longer counts in ones: no server has counted that far. Nor is it true of nan.
LARGEST = 2**53
NAME_END = re.compile(r"[{\s]")
HISTOGRAMS = ("ttft", "itl", "e2e", "queue")


@dataclass(frozen=True)
class ServerMetrics:
    """Gauges of now and counters since the server's start; None where it doesn't say.

    ``engine`` is the key of the dialect whose names were found. ``kv_cache_usage`` is 0 to 1. Prefix numbers are
    tokens asked for and found in the cache; ``prefix_hit_rate`` (0 to 1) is of engines that tell only that.
    With several engines (data parallel) counts are sums, usage and rate are means, and the cache's size is that of
    one engine.
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
    prefix_hit_rate: float | None = None
    engine: str | None = None

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
    """Read the metrics once. Raises ServerNotReady when nothing answers within ``timeout_s``."""
    return parse(read(endpoint, timeout_s), endpoint.engine)


def read(endpoint: Endpoint, timeout_s: float = 2.0) -> str:
    """The metrics as text; empty where the server has none, or far too many.

    Raises ServerNotReady when nothing answers within ``timeout_s``.
    """
    path = by_key(endpoint.engine).metrics_path
    if path is None:
        return ""
    reply = fetch("GET", f"{endpoint.root_url}{path}", headers=endpoint.headers, timeout_s=timeout_s)
    if reply.status != 200 or not reply.complete:
        return ""
    return unquoted(reply.body.decode(errors="replace"))


def parse(text: str, engine: str | None = None) -> ServerMetrics:
    """Metrics from the Prometheus text format; text that is something else has none.

    ``engine`` is a dialect's key; without one the names themselves tell.
    """
    samples = _collect(text)
    dialect = dialect_of(samples.values, engine)
    if dialect is None:
        return _with_cache(ServerMetrics(), samples)
    found = _Reader(samples, dialect)
    return _with_cache(
        ServerMetrics(
            running=found.whole("running"),
            waiting=found.whole("waiting"),
            kv_cache_usage=found.share("kv_cache_usage"),
            prefix_queries=found.whole("prefix_queries"),
            prefix_hits=found.whole("prefix_hits"),
            prompt_tokens=found.whole("prompt_tokens"),
            generation_tokens=found.whole("generation_tokens"),
            preemptions=found.whole("preemptions"),
            iterations=found.whole("iterations"),
            prefix_hit_rate=found.share("prefix_hit_rate"),
            engine=dialect.key,
        ),
        samples,
    )


def dialect_of(names: Iterable[str], engine: str | None = None) -> Dialect | None:
    """The engine that was named, else the one whose names these are; None where they are nobody's."""
    if engine is not None:
        return by_key(engine)
    present = set(names)
    for dialect in dialects():
        if any(name in present for names in dialect.metrics.values() for name in names):
            return dialect
    return None


@cache
def _wanted() -> frozenset[str]:
    return frozenset(
        name
        for dialect in dialects()
        for ours, names in dialect.metrics.items()
        if ours not in HISTOGRAMS
        for name in names
    ) | {CACHE_CONFIG}


def _collect(text: str) -> _Samples:
    """Only the wanted lines are parsed: vLLM sends hundreds, most of them histogram buckets."""
    collected, wanted = _Samples(), _wanted()
    for line in text.split("\n"):
        if NAME_END.split(line, maxsplit=1)[0] in wanted:
            for sample in parse_line(line):
                _add(collected, sample)
    return collected


def parse_line(line: str) -> list[Sample]:
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


class _Reader:
    """One text's numbers, by our own names."""

    def __init__(self, samples: _Samples, dialect: Dialect) -> None:
        self._values, self._names = samples.values, dialect.metrics

    def whole(self, ours: str) -> int | None:
        value = self._first(ours, math.fsum)
        return None if value is None else round(value)

    def share(self, ours: str) -> float | None:
        value = self._first(ours, _mean)
        return value if value is not None and 0 <= value <= 1 else None

    def _first(self, ours: str, combine: Callable[[list[float]], float]) -> float | None:
        for name in self._names.get(ours, ()):
            if name in self._values:
                return combine(self._values[name])
        return None


def _with_cache(metrics: ServerMetrics, samples: _Samples) -> ServerMetrics:
    """The cache's size, which vLLM tells as labels."""
    return replace(
        metrics,
        block_size=_label(samples, "block_size"),
        num_blocks=_label(samples, "num_gpu_blocks"),
        kv_tokens=_label(samples, "kv_cache_size_tokens"),
        max_concurrency=_label_number(samples, "kv_cache_max_concurrency"),
    )


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _label_number(samples: _Samples, name: str) -> float | None:
    """A label's number; vLLM writes the word None for what it doesn't know."""
    try:
        value = float(samples.cache_config.get(name, ""))
    except ValueError:
        return None
    return value if abs(value) <= LARGEST else None


def _label(samples: _Samples, name: str) -> int | None:
    value = _label_number(samples, name)
    return None if value is None else int(value)
