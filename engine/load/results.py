"""What a load test found, and what is seen of it while it runs: frozen values.

Units are in the names. What is unknown is None. Failed and cancelled requests are counted and are in no other number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple, Self

from engine.config import LoadTestConfig
from engine.metrics import Distribution, Slo

PARTS = ("mean", "p50", "p90", "p95", "p99")
MEASURES = ("ttft", "tpot", "itl", "e2e", "client_queue", "server_queue")


class LoadState(StrEnum):
    """Compare with ``==``: a reloaded module makes a second class."""

    IDLE = "idle"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class RequestState(StrEnum):
    """Where one request is. ``QUEUED``: it waits for its turn, in the server or (open loop, late) in the client."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"
    FAILED = "failed"


class LaneRequest(NamedTuple):
    """One bar of a swim-lane; seconds since the level began.

    ``start_s``: its intended start, else when it was sent. ``prefill_s``: when the server took it up; until it is done
    that is not known and None, and QUEUED then says that it is among the newest as many as the server says wait.
    """

    request: int
    state: RequestState
    start_s: float
    prefill_s: float | None = None
    first_token_s: float | None = None
    end_s: float | None = None


class Lane(NamedTuple):
    """One user (closed loop), or one place among the requests in flight (open loop), oldest request first."""

    user: int
    requests: tuple[LaneRequest, ...]


class LivePoint(NamedTuple):
    """Half a second: ``tokens_s`` counts chunks with text (tokens are known when answers end). ``queued`` is the
    server's own word, None where it has no metrics; ``running`` are requests that the client waits for, less those."""

    at_s: float
    tokens_s: float
    running: int
    queued: int | None


class Badge(NamedTuple):
    """Why a number may not mean what it seems to. ``severity`` is note or warning, ``why`` has the measured values."""

    code: str
    label: str
    why: str
    severity: str = "warning"


class Sample(NamedTuple):
    """One request, for distributions. Seconds since the level began; ms."""

    start_s: float
    ok: bool
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None
    prompt_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True)
class LevelResult:
    """One level. ``users`` or ``rate_req_s`` is what it was set to, the other None; a trace has neither.

    ``wall_s`` runs from the first start to the last finish of requests that finished. ``partial`` says why a level is
    not whole (empty: it is). ``lengths_forced``: every answer had to reach its ``max_tokens``. ``samples`` are at most
    ``MOST_SAMPLES``, evenly chosen. ``conventions`` hold the same requests by other tools' definitions.
    Server numbers are differences of its own counters over the level; ``kv_cache_peak_pct`` is the highest of its
    readings once a second. ``client_cpu_s`` is CPU time of the sending process, ``loop_lag_p99_ms`` how late that
    process came to handle what was due.
    """

    label: str
    users: int | None = None
    rate_req_s: float | None = None
    requests_ok: int = 0
    requests_failed: int = 0
    requests_cancelled: int = 0
    failures: tuple[tuple[str, int], ...] = ()
    wall_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    throughput_req_s: float | None = None
    throughput_tok_s: float | None = None
    total_tok_s: float | None = None
    ttft_ms: Distribution | None = None
    tpot_ms: Distribution | None = None
    itl_ms: Distribution | None = None
    e2e_ms: Distribution | None = None
    client_queue_ms: Distribution | None = None
    server_queue_ms: Distribution | None = None
    goodput_req_s: float | None = None
    goodput_pct: float | None = None
    preemptions: int | None = None
    kv_cache_peak_pct: float | None = None
    server_waiting_peak: int | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    client_cpu_s: float | None = None
    loop_lag_p99_ms: float | None = None
    others_busy_cores: float | None = None
    lengths_forced: bool | None = None
    partial: str = ""
    badges: tuple[Badge, ...] = ()
    samples: tuple[Sample, ...] = ()
    conventions: Mapping[str, Mapping[str, float | int | None]] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        """All that were sent."""
        return self.requests_ok + self.requests_failed + self.requests_cancelled

    @property
    def prefix_hit_pct(self) -> float | None:
        """Share of prompt tokens found in the prefix cache."""
        if self.prefix_hits is None or not self.prefix_queries:
            return None
        return 100 * self.prefix_hits / self.prefix_queries

    @property
    def client_cpu_ms_per_token(self) -> float | None:
        if self.client_cpu_s is None or not self.output_tokens:
            return None
        return self.client_cpu_s * 1000 / self.output_tokens

    @property
    def client_cpu_pct(self) -> float | None:
        """Of one core, which is all that the sending process can use."""
        return 100 * self.client_cpu_s / self.wall_s if self.client_cpu_s is not None and self.wall_s else None

    def to_dict(self) -> dict[str, Any]:
        """Flat, units in the names (``ttft_p95_ms``); lists only for ``failures``, ``badges`` and ``samples``."""
        flat: dict[str, Any] = {
            "label": self.label,
            "users": self.users,
            "rate_req_s": self.rate_req_s,
            "requests": self.requests,
            "requests_ok": self.requests_ok,
            "failed": self.requests_failed,
            "cancelled": self.requests_cancelled,
            "failures": [{"reason": reason, "count": count} for reason, count in self.failures],
        }
        flat |= {name: getattr(self, name) for name in PLAIN}
        for measure in MEASURES:
            flat |= _flat(measure, getattr(self, f"{measure}_ms"))
        flat |= {name: getattr(self, name) for name in ("prefix_hit_pct", "client_cpu_ms_per_token", "client_cpu_pct")}
        return flat | {
            "badges": [badge._asdict() for badge in self.badges],
            "samples": [list(sample) for sample in self.samples],
            "conventions": {name: dict(values) for name, values in self.conventions.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from ``to_dict``, also after JSON; unknown names (a newer version's) are ignored."""
        known: dict[str, Any] = {name: values.get(name) for name in ("users", "rate_req_s", *PLAIN) if name in values}
        distributions: dict[str, Any] = {f"{measure}_ms": _distribution(measure, values) for measure in MEASURES}
        return cls(
            label=str(values.get("label", "")),
            requests_ok=values.get("requests_ok") or 0,
            requests_failed=values.get("failed") or 0,
            requests_cancelled=values.get("cancelled") or 0,
            failures=tuple((str(one["reason"]), int(one["count"])) for one in values.get("failures") or ()),
            badges=tuple(Badge(**_known(Badge, badge)) for badge in values.get("badges") or ()),
            samples=tuple(Sample(*sample[: len(Sample._fields)]) for sample in values.get("samples") or ()),
            conventions=values.get("conventions") or {},
            **known,
            **distributions,
        )


PLAIN = (
    "wall_s",
    "prompt_tokens",
    "output_tokens",
    "throughput_req_s",
    "throughput_tok_s",
    "total_tok_s",
    "goodput_req_s",
    "goodput_pct",
    "preemptions",
    "kv_cache_peak_pct",
    "server_waiting_peak",
    "prefix_queries",
    "prefix_hits",
    "client_cpu_s",
    "loop_lag_p99_ms",
    "others_busy_cores",
    "lengths_forced",
    "partial",
)


@dataclass(frozen=True)
class LoadResults:
    """All levels, in the order they were measured. ``notes`` are needed to judge the numbers.

    ``knee`` is the index of the level after which more load gave no more throughput worth its latency; None where
    there are too few levels to tell. ``saturated``: a ramp stopped because the server was full.
    """

    levels: tuple[LevelResult, ...] = ()
    notes: tuple[str, ...] = ()
    slo: Slo = field(default_factory=Slo)
    knee: int | None = None
    saturated: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            "levels": [level.to_dict() for level in self.levels],
            "notes": list(self.notes),
            "slo": {"ttft_ms": self.slo.ttft_ms, "tpot_ms": self.slo.tpot_ms, "e2e_ms": self.slo.e2e_ms},
            "knee": self.knee,
            "saturated": self.saturated,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from ``to_dict``, also after JSON."""
        slo = values.get("slo") or {}
        return cls(
            levels=tuple(LevelResult.from_dict(level) for level in values.get("levels") or ()),
            notes=tuple(values.get("notes") or ()),
            slo=Slo(**{one.name: slo.get(one.name) for one in fields(Slo)}),
            knee=values.get("knee"),
            saturated=bool(values.get("saturated")),
        )


@dataclass(frozen=True)
class LoadSnapshot:
    """The load test at one moment.

    ``progress`` is 0 to 1. ``left_s`` is the time it still takes, None while nothing tells. ``level`` is the index of
    the level that is being measured (None before the first), ``labels`` are all levels that are known to come (a ramp
    may stop earlier). ``warming_up``: what runs now is not counted. ``lanes`` and ``live`` are those of this level,
    at most 200 lanes with the newest requests of each, and the newest points; ``level_s`` is how long it has run.
    ``requests_done`` of ``requests_planned`` (None: by duration) are this level's.
    """

    state: LoadState = LoadState.IDLE
    config: LoadTestConfig | None = None
    message: str = ""
    progress: float = 0.0
    elapsed_s: float | None = None
    left_s: float | None = None
    level: int | None = None
    labels: tuple[str, ...] = ()
    warming_up: bool = False
    level_s: float | None = None
    requests_planned: int | None = None
    requests_done: int = 0
    requests_failed: int = 0
    requests_running: int = 0
    lanes: tuple[Lane, ...] = ()
    live: tuple[LivePoint, ...] = ()
    results: LoadResults = field(default_factory=LoadResults)
    error: str | None = None
    remedy: str = ""
    run_id: str | None = None

    @property
    def running(self) -> bool:
        return self.state == LoadState.RUNNING

    @property
    def levels(self) -> tuple[LevelResult, ...]:
        """Those that are finished so far."""
        return self.results.levels


def _flat(measure: str, values: Distribution | None) -> dict[str, Any]:
    flat: dict[str, Any] = {f"{measure}_{part}_ms": getattr(values, part) if values else None for part in PARTS}
    return flat | {f"{measure}_count": values.count if values else 0}


def _distribution(measure: str, values: Mapping[str, Any]) -> Distribution | None:
    count = values.get(f"{measure}_count")
    return Distribution(count, *(values[f"{measure}_{part}_ms"] for part in PARTS)) if count else None


def _known(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in cls._fields}
