"""Samples → what a chart draws over the last minutes: points on one time axis, and percentiles of the whole window.

Rates and percentiles are of differences between two readings of the same server process: never since its start, never
across a restart or a gap. Where that isn't possible a point has None, and the line a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.telemetry.latencies import quantile
from engine.telemetry.panels import QUANTILES
from engine.telemetry.points import Point
from engine.telemetry.prometheus import HISTOGRAMS
from engine.telemetry.readings import Histogram
from engine.telemetry.series import GAUGES, Sample, highest

# Seconds of the window → seconds between two points.
STEPS_S = {60: 1, 300: 2, 900: 5, 3600: 30, 21600: 180}
RATE_LOOKBACK_S = 5
LATENCY_LOOKBACK_S = 15
# Two samples further apart than this have a gap between them; coarse ones are ten seconds apart.
FINE_GAP_S, COARSE_GAP_S = 8.0, 21.0
RATES = {
    "prompt_tok_s": "prompt_tokens",
    "generation_tok_s": "generation_tokens",
    "preemptions_per_s": "preemptions",
}


@dataclass(frozen=True)
class Window:
    """``latencies_ms`` are percentiles of the whole window (``ttft_p95_ms``…), ``requests`` how many they are of.

    None: not known, or none came.
    """

    seconds: int
    from_s: float
    to_s: float
    step_s: int
    points: tuple[Point, ...] = ()
    latencies_ms: Mapping[str, float | None] = field(default_factory=dict)
    requests: int | None = None
    prefix_hit_percent: float | None = None

    @property
    def now(self) -> Point | None:
        """The newest point, if it is of now."""
        last = self.points[-1] if self.points else None
        return last if last is not None and self.to_s - last.at_s <= max(FINE_GAP_S, self.step_s) else None

    @property
    def latency_lookback_s(self) -> int:
        return max(LATENCY_LOOKBACK_S, self.step_s)


def step_of(window_s: int) -> int:
    return STEPS_S.get(window_s, max(1, window_s // 120))


def look(samples: Sequence[Sample], window_s: int, now_s: float) -> Window:
    """``samples`` in order of time, from one before the window on."""
    step_s, from_s = step_of(window_s), now_s - window_s
    groups = [group for group in _bins(samples, step_s) if samples[group[-1]].at_s >= from_s]
    points = _with_gaps([(_point(samples, group, step_s), samples[group[-1]].thinned) for group in groups], step_s)
    increases = _increases(samples)
    latencies = {name: value for ours in HISTOGRAMS for name, value in _latencies(ours, increases.get(ours)).items()}
    done = increases.get("e2e")
    return Window(
        window_s,
        from_s,
        now_s,
        step_s,
        points,
        latencies,
        round(done.counts[-1]) if done else None,
        _hit_percent(_counted(samples, "prefix_hits"), _counted(samples, "prefix_queries")),
    )


def rate(samples: Sequence[Sample], name: str) -> float | None:
    """Per second between the first and the last of them; None where one of them doesn't say."""
    first, last = samples[0].reading, samples[-1].reading
    passed_s = samples[-1].at_s - samples[0].at_s
    if first is None or last is None or passed_s <= 0 or name not in first.values or name not in last.values:
        return None
    added = last.values[name] - first.values[name]
    return added / passed_s if added >= 0 else None


def _bins(samples: Sequence[Sample], step_s: int) -> list[list[int]]:
    """Indices of samples by step of the clock, so that points stay where they are while time goes on."""
    groups: list[list[int]] = []
    slot: float | None = None
    for index, sample in enumerate(samples):
        if sample.at_s // step_s != slot:
            slot = sample.at_s // step_s
            groups.append([])
        groups[-1].append(index)
    return groups


def _point(samples: Sequence[Sample], group: Sequence[int], step_s: int) -> Point:
    last = group[-1]
    values: dict[str, float | None] = {}
    for index in group:
        for key, value in samples[index].machine.items():
            values[key] = highest(values.get(key), value)
    values |= _gauges(samples, group)
    short = _run(samples, last, max(RATE_LOOKBACK_S, step_s))
    for key, name in RATES.items():
        values[key] = rate(short, name)
    long = _run(samples, last, max(LATENCY_LOOKBACK_S, step_s))
    values["prefix_hit_percent"] = _hit_percent(_counted(long, "prefix_hits"), _counted(long, "prefix_queries"))
    increases = _increases(long)
    for ours in HISTOGRAMS:
        values |= _latencies(ours, increases.get(ours))
    return Point(samples[last].at_s, values)


def _with_gaps(points: Sequence[tuple[Point, bool]], step_s: int) -> tuple[Point, ...]:
    """Where the collector itself was away an empty point, so that no line is drawn across."""
    found: list[Point] = []
    for point, thinned in points:
        longest_s = max(COARSE_GAP_S if thinned else FINE_GAP_S, 2.0 * step_s)
        if found and point.at_s - found[-1].at_s > longest_s:
            found.append(Point(found[-1].at_s + step_s))
        found.append(point)
    return tuple(found)


def _gauges(samples: Sequence[Sample], group: Sequence[int]) -> dict[str, float | None]:
    """The highest of the step; nothing where the server has gone silent by its end."""
    peaks: dict[str, float | None] = dict.fromkeys(GAUGES)
    if samples[group[-1]].reading is not None:
        for index in group:
            reading = samples[index].reading
            for name in GAUGES if reading else ():
                peaks[name] = highest(peaks[name], reading.values.get(name) if reading else None)
    usage = peaks.pop("kv_cache_usage")
    return peaks | {"kv_usage_percent": None if usage is None else 100 * usage}


def _run(samples: Sequence[Sample], last: int, seconds: float) -> Sequence[Sample]:
    """The samples up to ``last`` that belong together: one era, no gap, at most so many seconds."""
    first = last
    while (
        first > 0
        and _joined(samples[first - 1], samples[first])
        and samples[last].at_s - samples[first - 1].at_s <= seconds + 0.5
    ):
        first -= 1
    return samples[first : last + 1]


def _joined(older: Sample, newer: Sample) -> bool:
    if older.reading is None or newer.reading is None or older.era != newer.era:
        return False
    return newer.at_s - older.at_s <= (COARSE_GAP_S if older.thinned else FINE_GAP_S)


def _increases(samples: Sequence[Sample]) -> dict[str, Histogram]:
    """What each histogram gained, restart after restart; over a gap too, if it is still the same server."""
    gained: dict[str, Histogram] = {}
    before: Sample | None = None
    first: Sample | None = None
    for sample in [*(one for one in samples if one.reading), None]:
        if sample is not None and before is not None and sample.era == before.era:
            before = sample
            continue
        if first is not None and before is not None:
            _add_gain(gained, first, before)
        first = before = sample
    return gained


def _add_gain(gained: dict[str, Histogram], first: Sample, last: Sample) -> None:
    assert first.reading is not None and last.reading is not None
    for ours, histogram in last.reading.histograms.items():
        earlier = first.reading.histograms.get(ours)
        added = histogram.since(earlier) if earlier else None
        if added is None:
            continue
        known = gained.get(ours)
        gained[ours] = added.plus(known) if known else added


def _counted(samples: Sequence[Sample], name: str) -> float | None:
    """How far a counter rose, restarts and what they reset left out."""
    total: float | None = None
    before: Sample | None = None
    for sample in samples:
        if sample.reading is None or name not in sample.reading.values:
            continue
        if before is not None and before.era == sample.era and before.reading is not None:
            total = (total or 0.0) + max(0.0, sample.reading.values[name] - before.reading.values[name])
        before = sample
    return total


def _hit_percent(hits: float | None, queries: float | None) -> float | None:
    return 100 * hits / queries if hits is not None and queries else None


def _latencies(ours: str, gained: Histogram | None) -> dict[str, float | None]:
    buckets = dict(zip(gained.bounds, gained.counts, strict=True)) if gained else {}
    found: dict[str, float | None] = {}
    for name, share in QUANTILES.items():
        value = quantile(buckets, share) if buckets else None
        found[f"{ours}_{name}_ms"] = None if value is None else 1000 * value
    mean = gained.mean if gained else None
    return found | {f"{ours}_mean_ms": None if mean is None else 1000 * mean}
