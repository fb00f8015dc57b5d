"""One reading of a server's metrics, made for reading them every second: counters, gauges and whole histograms.

Names are those of the engine's dialect. A line's name and labels are parsed once, by prometheus_client; from then on
only its number is read, so that a text of 700 lines costs well under a millisecond.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from engine.dialects.table import dialects
from engine.telemetry.prometheus import HISTOGRAMS, LARGEST, dialect_of, parse_line

BUCKET, SUM = "_bucket", "_sum"
PROCESS_START = "process_start_time_seconds"
COUNTERS = {"prompt_tokens", "generation_tokens", "preemptions", "prefix_queries", "prefix_hits", "iterations"}
SHARES = ("kv_cache_usage", "prefix_hit_rate")  # 0 to 1; the mean of several engines
# Far more than any engine sends: a text of endless new names must not fill the memory.
MOST_LINES_KNOWN = 20_000


@dataclass(frozen=True)
class Histogram:
    """Cumulative counts by upper bound (in the metric's own unit, seconds); the last bound is infinity.

    ``total`` is the sum of everything observed, None where it isn't told.
    """

    bounds: tuple[float, ...]
    counts: array[float]
    total: float | None = None

    @property
    def mean(self) -> float | None:
        """None where nothing was observed."""
        count = self.counts[-1]
        return self.total / count if self.total is not None and count else None

    def since(self, before: Histogram) -> Histogram | None:
        """What came since; None where the two don't belong together (a restart, other buckets)."""
        if self.bounds != before.bounds:
            return None
        added = array("d", (now - then for now, then in zip(self.counts, before.counts, strict=True)))
        if any(one < 0 for one in added):
            return None
        known = self.total is not None and before.total is not None and self.total >= before.total
        return Histogram(self.bounds, added, (self.total or 0.0) - (before.total or 0.0) if known else None)

    def plus(self, other: Histogram) -> Histogram:
        """Both together; itself where the buckets differ."""
        if self.bounds != other.bounds:
            return self
        added = array("d", (one + more for one, more in zip(self.counts, other.counts, strict=True)))
        known = self.total is not None and other.total is not None
        return Histogram(self.bounds, added, (self.total or 0.0) + (other.total or 0.0) if known else None)


@dataclass(frozen=True)
class Reading:
    """``values`` by our own names: gauges of now and counters since the start of the server's process.

    ``start_s`` is when that process started (Unix time), None where it doesn't say.
    """

    values: Mapping[str, float]
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    start_s: float | None = None

    def follows(self, before: Reading) -> bool:
        """False when a counter went back or the process is another one: the server started anew in between."""
        if self.start_s != before.start_s:
            return False
        shared = self.values.keys() & before.values.keys() & COUNTERS
        return all(self.values[name] >= before.values[name] for name in shared)


Place = tuple[str, float | None]  # sample name, and the bucket's bound


class MetricsReader:
    """Keeps what it knows of the lines between two readings; for one thread."""

    def __init__(self) -> None:
        self._places: dict[str, Place | None] = {}

    def read(self, text: str, engine: str | None = None) -> Reading | None:
        """None for a text that is cut off (its last line has no end) or in which no engine's metrics are."""
        if not text.endswith("\n"):
            return None
        sums: dict[str, float] = defaultdict(float)
        numbers: dict[str, int] = defaultdict(int)
        buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
        for line in text.split("\n"):
            if line and line[0] != "#":
                self._add(line, sums, numbers, buckets)
        dialect = dialect_of([*sums, *(name.removesuffix(BUCKET) for name in buckets)], engine)
        if dialect is None:
            return None
        values = {}
        for ours, names in dialect.metrics.items():
            found = next((name for name in names if name in sums), None)
            if found is not None:
                value = sums[found] / numbers[found] if ours in SHARES else sums[found]
                if ours not in SHARES or 0 <= value <= 1:
                    values[ours] = value
        histograms = {}
        for ours in HISTOGRAMS:
            name = next((name for name in dialect.metrics.get(ours, ()) if name + BUCKET in buckets), None)
            histogram = _histogram(buckets[name + BUCKET], sums.get(name + SUM)) if name else None
            if histogram:
                histograms[ours] = histogram
        start = sums.get(PROCESS_START)
        return Reading(values, histograms, start) if values or histograms else None

    def _add(
        self,
        line: str,
        sums: dict[str, float],
        numbers: dict[str, int],
        buckets: dict[str, dict[float, float]],
    ) -> None:
        head, _, tail = line.rpartition(" ")
        try:
            place = self._places[head]
            value = float(tail) if place else math.nan
        except KeyError:
            place, value = self._parse(head, line)
        except ValueError:
            return
        if place is None or not abs(value) <= LARGEST:
            return
        name, bound = place
        if bound is None:
            sums[name] += value
            numbers[name] += 1
        else:
            buckets[name][bound] += value

    def _parse(self, head: str, line: str) -> tuple[Place | None, float]:
        """A line that is seen for the first time."""
        if len(self._places) >= MOST_LINES_KNOWN:
            self._places.clear()
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name not in _wanted():
            self._places[head] = None
            return None, math.nan
        samples = parse_line(line)
        if len(samples) != 1:
            return None, math.nan
        sample = samples[0]
        try:
            place = (name, float(sample.labels["le"])) if name.endswith(BUCKET) else (name, None)
        except (KeyError, ValueError):
            return None, math.nan
        if sample.timestamp is None:  # with one, the last word of the line isn't the value
            self._places[head] = place
        return place, sample.value


def _histogram(buckets: Mapping[float, float], total: float | None) -> Histogram | None:
    """None where the counts contradict themselves."""
    bounds = tuple(sorted(buckets))
    counts = array("d", (buckets[bound] for bound in bounds))
    if bounds[-1] != math.inf or any(b < a for a, b in zip(counts, counts[1:], strict=False)):
        return None
    return Histogram(bounds, counts, total)


@cache
def _wanted() -> frozenset[str]:
    names = {PROCESS_START}
    for dialect in dialects():
        for ours, theirs in dialect.metrics.items():
            ends = (BUCKET, SUM) if ours in HISTOGRAMS else ("",)
            names |= {name + end for name in theirs for end in ends}
    return frozenset(names)
