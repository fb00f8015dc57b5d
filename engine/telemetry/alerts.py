"""What deserves a look, as data: a plain rule over the lab's own points, the same as PromQL, and what to do about it.

Pure functions: no clock, no thread. ``spans`` says when each held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.telemetry.panels import TRAFFIC, WINDOW, histogram_quantile
from engine.telemetry.points import Point

QUEUE_LOOKBACK_S = 30
KV_NEARLY_FULL_PERCENT = 90.0
GPU_NEARLY_FULL_PERCENT = 98.0
CLIENT_BUSY_CORES = 0.9
DEFAULT_SLO_TTFT_MS = 1000.0


@dataclass(frozen=True)
class Limits:
    """What a person may choose; the others are the constants above."""

    slo_ttft_ms: float = DEFAULT_SLO_TTFT_MS


Rule = Callable[[Point, Point | None, Limits], bool]


@dataclass(frozen=True)
class Alert:
    """One thing to watch.

    ``holds(now, before, limits)``: ``before`` is the point of ``QUEUE_LOOKBACK_S`` seconds ago, None where there is
    none. ``panel`` is the key of the panel it is marked on. ``for_s``: Prometheus waits so long before it says it.
    ``reason``: why the query may have nothing to look at; ``promql`` is empty where Prometheus can't know.
    """

    key: str
    title: str
    advice: str
    threshold: str
    panel: str
    promql: str
    holds: Rule
    for_s: int = 0
    reason: str = ""

    def query(self, window: str = "1m") -> str:
        return self.promql.replace(WINDOW, window)


@dataclass(frozen=True)
class Span:
    """When an alert held: Unix seconds, first and last point."""

    alert: Alert
    from_s: float
    to_s: float


def _queue_grows(now: Point, before: Point | None, _: Limits) -> bool:
    waiting, earlier = now.get("waiting"), before.get("waiting") if before else None
    return waiting is not None and earlier is not None and waiting > earlier


def _above(key: str, limit: float) -> Rule:
    """Also for keys of which there are several: the highest decides."""

    def holds(now: Point, before: Point | None, limits: Limits) -> bool:
        value = now.highest(key)
        return value is not None and value > limit

    return holds


def _ttft_too_long(now: Point, _: Point | None, limits: Limits) -> bool:
    value = now.get("ttft_p95_ms")
    return value is not None and value > limits.slo_ttft_ms


ALERTS = (
    Alert(
        "queue_growing",
        "Queue is growing",
        "More requests come than are answered. Send fewer, raise max_num_seqs where the KV cache has room, or add a "
        "server.",
        f"more waiting than {QUEUE_LOOKBACK_S} s before",
        "requests",
        f"sum(vllm:num_requests_waiting) > sum(vllm:num_requests_waiting offset {QUEUE_LOOKBACK_S}s)",
        _queue_grows,
        for_s=30,
    ),
    Alert(
        "kv_nearly_full",
        "KV cache nearly full",
        "Soon requests wait or are preempted. Give the KV cache more memory, or lower max_model_len or max_num_seqs.",
        f"above {KV_NEARLY_FULL_PERCENT:g}%",
        "kv",
        f"100 * avg(vllm:kv_cache_usage_perc) > {KV_NEARLY_FULL_PERCENT:g}",
        _above("kv_usage_percent", KV_NEARLY_FULL_PERCENT),
        for_s=10,
    ),
    Alert(
        "preemptions",
        "Requests are preempted",
        "Work is thrown away and done again. Lower max_num_seqs, or give the KV cache more memory.",
        "any",
        "preemptions",
        f"sum(rate(vllm:num_preemptions_total[{WINDOW}])) > 0",
        _above("preemptions_per_s", 0.0),
    ),
    Alert(
        "ttft_above_slo",
        "TTFT above the limit",
        "The first token comes too late for one in twenty. Look at the queue first; then lower the load or "
        "max_num_batched_tokens.",
        f"p95 above {DEFAULT_SLO_TTFT_MS:g} ms, or the limit that you set",
        "ttft",
        f"{histogram_quantile(0.95, 'vllm:time_to_first_token_seconds')} > {DEFAULT_SLO_TTFT_MS:g}",
        _ttft_too_long,
        for_s=30,
        reason=TRAFFIC,
    ),
    Alert(
        "gpu_memory_nearly_full",
        "GPU memory nearly full",
        "The next large request may end in an out-of-memory error. Lower gpu_memory_utilization, or free the GPU of "
        "other programs.",
        f"above {GPU_NEARLY_FULL_PERCENT:g}%",
        "gpu_memory",
        f"100 * max(DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)) > {GPU_NEARLY_FULL_PERCENT:g}",
        _above("gpu_memory_percent", GPU_NEARLY_FULL_PERCENT),
        for_s=30,
        reason="Needs NVIDIA's DCGM exporter.",
    ),
    Alert(
        "client_bound",
        "The load generator is the limit",
        "It keeps a whole core busy, so it measures itself. Send less, or run it on another machine.",
        f"above {CLIENT_BUSY_CORES:g} of a core",
        "cpu",
        "",
        _above("client_busy_cores", CLIENT_BUSY_CORES),
        reason="Only the lab knows its own load generator.",
    ),
)


def spans(points: Sequence[Point], limits: Limits | None = None, alerts: Sequence[Alert] = ALERTS) -> tuple[Span, ...]:
    """When each alert held, by points in order of time. One point in which it didn't hold ends a span."""
    limits = limits or Limits()
    found = [span for alert in alerts for span in _spans_of(alert, points, limits)]
    return tuple(sorted(found, key=lambda span: span.from_s))


def _spans_of(alert: Alert, points: Sequence[Point], limits: Limits) -> list[Span]:
    found: list[Span] = []
    open_from: float | None = None
    last = behind = 0
    for number, point in enumerate(points):
        while behind < number and points[behind + 1].at_s <= point.at_s - QUEUE_LOOKBACK_S:
            behind += 1
        before = points[behind] if points[behind].at_s <= point.at_s - QUEUE_LOOKBACK_S else None
        if alert.holds(point, before, limits):
            open_from = point.at_s if open_from is None else open_from
            last = number
        elif open_from is not None:
            found.append(Span(alert, open_from, points[last].at_s))
            open_from = None
    if open_from is not None:
        found.append(Span(alert, open_from, points[last].at_s))
    return found
