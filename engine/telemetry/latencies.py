"""Percentiles since the server's start, from the histograms of one reading of its metrics.

Linear inside a bucket, as Prometheus' ``histogram_quantile`` reckons. What a dashboard wants instead are percentiles of
the last minutes: those need two readings.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from engine.telemetry.prometheus import HISTOGRAMS, NAME_END, dialect_of, parse_line

BUCKET = "_bucket"
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def latencies_ms(text: str, engine: str | None = None) -> dict[str, float | None]:
    """``ttft_p50_ms`` … ``queue_p99_ms`` since the server's start; None without such a histogram, or without a request.

    ``itl`` is what the engine's dialect says it is: each gap, or one mean for each request.
    """
    names = [name for line in text.split("\n") if (name := NAME_END.split(line, maxsplit=1)[0])]
    dialect = dialect_of([name.removesuffix(BUCKET) for name in names], engine)
    found: dict[str, float | None] = {}
    for ours in HISTOGRAMS:
        buckets = _first_with_buckets(text, dialect.metrics.get(ours, ()) if dialect else ())
        for word, share in QUANTILES.items():
            value = quantile(buckets, share)
            found[f"{ours}_{word}_ms"] = None if value is None else value * 1000
    return found


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """The value below which ``share`` (0 to 1) of the observations lie, in the unit of the bounds.

    ``buckets`` are cumulative counts by upper bound, +Inf among them. None where nothing was observed, or where they
    contradict themselves. Beyond the last finite bound that bound is given, as Prometheus does.
    """
    bounds = sorted(buckets)
    if not bounds or bounds[-1] != math.inf or not _rising([buckets[bound] for bound in bounds]):
        return None
    rank = share * buckets[math.inf]
    if not rank:
        return None
    lower, below = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= rank:
            if bound == math.inf:
                return lower if len(bounds) > 1 else None
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return None


def _rising(counts: Sequence[float]) -> bool:
    return all(math.isfinite(count) and count >= 0 for count in counts) and list(counts) == sorted(counts)


def _first_with_buckets(text: str, names: Sequence[str]) -> dict[float, float]:
    for name in names:
        if buckets := _buckets(text, name + BUCKET):
            return buckets
    return {}


def _buckets(text: str, name: str) -> dict[float, float]:
    """Counts by upper bound, summed over every label but the bound."""
    counts: dict[float, float] = defaultdict(float)
    for line in text.split("\n"):
        if NAME_END.split(line, maxsplit=1)[0] == name:
            for sample in parse_line(line):
                try:
                    counts[float(sample.labels["le"])] += sample.value
                except (KeyError, ValueError):
                    return {}
    return dict(counts)
