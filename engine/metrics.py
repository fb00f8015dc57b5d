"""From timestamps to numbers: the one place that defines what is measured.

A ``RequestTrace`` stores when things happened; everything else is derived from it here.
Times are seconds of one monotonic clock, durations are milliseconds, unknown is None.
``METRIC_HELP`` holds the wording that ``docs/metrics.md`` and every help text share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from engine.errors import RequestError, RequestInterrupted, RequestRejected
from engine.sse import joined

METRIC_HELP: dict[str, str] = {
    "TTFT": "request sent → first chunk with non-empty content, reasoning or tool text "
    "(a role-only chunk does not count)",
    "TPOT": "(E2E − TTFT) / (output tokens − 1); none for one-token replies",
    "ITL": "gaps between consecutive chunks, pooled; several tokens may share a chunk",
    "E2E": "request sent → last chunk with text (not the usage chunk)",
    "output tokens": "`usage.completion_tokens`, never the number of chunks",
    "throughput": "Σ output tokens of finished requests / wall time from first send to last finish",
    "decode speed": "(n − 1) / (last − first token) of one request",
    "goodput": "requests per second that met *every* limit of the SLO; also as a share of requests",
    "client queueing": "request sent − its intended start, where a schedule gives one; TTFT and E2E then count from "
    "the intended start",
    "percentile": "linear interpolation over finished requests; failures are counted and shown, never mixed in",
    "KV utilisation": "token states / allocated KV slots",
    "reserved / internal / external fragmentation": "as in the PagedAttention paper (arXiv 2309.06180)",
}
METRIC_UNITS: dict[str, str] = {
    "TTFT": "ms",
    "TPOT": "ms/token",
    "ITL": "ms",
    "E2E": "ms",
    "output tokens": "tokens",
    "throughput": "tok/s",
    "decode speed": "tok/s",
    "goodput": "req/s, %",
    "client queueing": "ms",
    "percentile": "",
    "KV utilisation": "%",
    "reserved / internal / external fragmentation": "%",
}
ENDED_BY_SERVER = frozenset({"abort", "error"})


@dataclass(frozen=True)
class ServerTimings:
    """What the server itself says about one request (vLLM's ``--enable-per-request-metrics``), in ms.

    Its TTFT starts when the request is scheduled, so it leaves out queue and network.
    """

    ttft_ms: float | None = None
    queue_ms: float | None = None
    mean_itl_ms: float | None = None


@dataclass(frozen=True)
class RequestTrace:
    """One streamed request: when it was sent, and when which text arrived.

    ``chunk_times_s`` and ``chunk_texts`` run in parallel and hold only chunks with text.
    Tokens are the server's own count (None when it sends none). ``expected_tokens`` is set where
    the length was forced (``ignore_eos``). ``error`` says what went wrong, ``remedy`` what to do;
    ``rejected`` means that no answer began: the server refused (``status``) or wasn't reached.
    ``finish_s`` is when the finish reason arrived. A forced length may end in tokens without text
    (end marks): there it stands for the last token, else the speed would be flattered.
    ``intended_s`` is when a schedule wanted the request sent (an open loop): TTFT and E2E count from there, so that a
    client or server that falls behind doesn't hide it. ``first_choice_s`` is the first chunk even without text.
    ``chunk_texts`` is empty where a load test dropped the words.
    """

    sent_s: float
    chunk_times_s: tuple[float, ...] = ()
    chunk_texts: tuple[str, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    expected_tokens: int | None = None
    server: ServerTimings | None = None
    remedy: str = ""
    rejected: bool = False
    status: int | None = None
    ended_s: float | None = None
    finish_s: float | None = None
    intended_s: float | None = None
    first_choice_s: float | None = None

    @property
    def text(self) -> str:
        return joined(self.chunk_texts)

    @property
    def ok(self) -> bool:
        """The whole answer arrived."""
        return self.error is None and not self.interrupted

    @property
    def interrupted(self) -> bool:
        """The request was taken, but its answer didn't arrive whole."""
        if self.rejected:
            return False
        return self.error is not None or self._cut_short

    @property
    def _cut_short(self) -> bool:
        if self.finish_reason is None or self.finish_reason in ENDED_BY_SERVER:
            return True
        expected, got = self.expected_tokens, self.output_tokens
        return expected is not None and got is not None and got < expected

    @property
    def began_s(self) -> float:
        """When its time starts to count: the intended start, else when it was sent."""
        return self.sent_s if self.intended_s is None else self.intended_s

    @property
    def client_queue_ms(self) -> float | None:
        """How much later than intended it was sent; None without a schedule."""
        return None if self.intended_s is None else (self.sent_s - self.intended_s) * 1000

    @property
    def ttft_ms(self) -> float | None:
        """Request sent (or intended) to first text; None when no text came."""
        return (self.chunk_times_s[0] - self.began_s) * 1000 if self.chunk_times_s else None

    @property
    def e2e_ms(self) -> float | None:
        """Request sent (or intended) to last text; None when no text came."""
        return (self._last_s - self.began_s) * 1000 if self.chunk_times_s else None

    @property
    def tpot_ms(self) -> float | None:
        """Time per token after the first; None for one token, or when all text came in one chunk."""
        if self.output_tokens is None or self.output_tokens < 2 or len(self.chunk_times_s) < 2:
            return None
        return self._decode_s * 1000 / (self.output_tokens - 1)

    @property
    def itl_ms(self) -> tuple[float, ...]:
        """Gaps between consecutive chunks with text; the wait for the first isn't one of them."""
        return tuple((after - before) * 1000 for before, after in pairwise(self.chunk_times_s))

    @property
    def decode_speed_tok_s(self) -> float | None:
        """Tokens per second after the first token; None where TPOT is."""
        tpot_ms = self.tpot_ms
        return 1000 / tpot_ms if tpot_ms else None

    @property
    def finished_s(self) -> float | None:
        """When the last text arrived, else when the stream ended."""
        return self._last_s if self.chunk_times_s else self.ended_s

    @property
    def _decode_s(self) -> float:
        return self._last_s - self.chunk_times_s[0]

    @property
    def _last_s(self) -> float:
        last_text_s = self.chunk_times_s[-1]
        if self.expected_tokens is None or self.finish_s is None:
            return last_text_s
        return max(last_text_s, self.finish_s)

    def failure(self) -> RequestError | None:
        """The error to raise or show; None when the whole answer arrived."""
        if self.ok:
            return None
        if self.rejected:
            return RequestRejected(self.error or "The request was refused.", self.remedy, self.status)
        return RequestInterrupted(self.error or self._cut_short_reason(), self.remedy)

    def _cut_short_reason(self) -> str:
        if self.finish_reason is None:
            return "The answer ended without a finish reason."
        if self.finish_reason in ENDED_BY_SERVER:
            return f"The server ended the answer (finish reason {self.finish_reason})."
        return f"The answer has {self.output_tokens} tokens of the {self.expected_tokens} asked for."


@dataclass(frozen=True)
class Slo:
    """Limits in ms that a request has to meet, all of them; None: no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def __bool__(self) -> bool:
        return self != Slo()

    def met_by(self, trace: RequestTrace) -> bool | None:
        """False for a request that failed; None where the server's token count is needed and missing.

        A reply without a TPOT (one token, or all in one chunk) took no time between tokens and meets that limit.
        """
        if not trace.ok:
            return False
        if self.tpot_ms is not None and trace.output_tokens is None:
            return None
        pairs = ((self.ttft_ms, trace.ttft_ms), (self.tpot_ms, trace.tpot_ms), (self.e2e_ms, trace.e2e_ms))
        return all(limit is None or value is None or value <= limit for limit, value in pairs)


class Goodput(NamedTuple):
    """``req_s``: requests per second that met every limit; ``pct``: their share of all requests, failed ones too."""

    req_s: float
    pct: float


@dataclass(frozen=True)
class Distribution:
    """Mean and percentiles of one measure over finished requests, in its own unit."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True)
class Summary:
    """Several requests together. Failed and interrupted ones are counted, and are in no other number.

    ``wall_s`` runs from the first send to the last finish; a distribution is None without values.
    """

    requests_ok: int
    requests_failed: int
    output_tokens: int | None
    wall_s: float | None
    throughput_tok_s: float | None
    ttft_ms: Distribution | None
    tpot_ms: Distribution | None
    itl_ms: Distribution | None
    e2e_ms: Distribution | None

    def to_dict(self) -> dict[str, float | int | None]:
        """Flat, with units in the names: ``ttft_p95_ms``, ``e2e_mean_ms``."""
        flat: dict[str, float | int | None] = {
            "requests_ok": self.requests_ok,
            "requests_failed": self.requests_failed,
            "output_tokens": self.output_tokens,
            "wall_s": self.wall_s,
            "throughput_tok_s": self.throughput_tok_s,
        }
        for name in ("ttft", "tpot", "itl", "e2e"):
            values: Distribution | None = getattr(self, f"{name}_ms")
            for part in ("mean", "p50", "p90", "p95", "p99"):
                flat[f"{name}_{part}_ms"] = getattr(values, part) if values else None
        return flat


class Spread(NamedTuple):
    """The middle of repeated measurements, and the lowest and the highest of them."""

    median: float
    low: float
    high: float


def summarize(traces: Iterable[RequestTrace]) -> Summary:
    """All numbers of a group of requests that shared one clock."""
    every = list(traces)
    finished = [trace for trace in every if trace.ok]
    tokens = _total([trace.output_tokens for trace in finished])
    wall_s = _wall_s(finished)
    return Summary(
        requests_ok=len(finished),
        requests_failed=len(every) - len(finished),
        output_tokens=tokens,
        wall_s=wall_s,
        throughput_tok_s=tokens / wall_s if tokens is not None and wall_s else None,
        ttft_ms=distribution(trace.ttft_ms for trace in finished),
        tpot_ms=distribution(trace.tpot_ms for trace in finished),
        itl_ms=distribution(gap for trace in finished for gap in trace.itl_ms),
        e2e_ms=distribution(trace.e2e_ms for trace in finished),
    )


def goodput(traces: Sequence[RequestTrace], slo: Slo) -> Goodput | None:
    """None without a limit, without requests, or where one can't be judged. The wall time is that of the throughput."""
    met = [slo.met_by(trace) for trace in traces]
    if not slo or not met or None in met:
        return None
    wall_s = _wall_s([trace for trace in traces if trace.ok])
    return Goodput(sum(map(bool, met)) / wall_s if wall_s else 0.0, 100 * sum(map(bool, met)) / len(met))


def distribution(values: Iterable[float | None]) -> Distribution | None:
    """Mean and percentiles of the values that are known; None when there are none."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    p50, p90, p95, p99 = (_interpolate(known, share) for share in (0.5, 0.9, 0.95, 0.99))
    return Distribution(len(known), fmean(known), p50, p90, p95, p99)


def percentile(values: Iterable[float], percent: float) -> float | None:
    """Linear interpolation between the two nearest ranks; ``percent`` is 0 to 100. None without values.

    The same as numpy's default method.
    """
    if not 0 <= percent <= 100:
        raise ValueError(f"percent is {percent}, not 0 to 100")
    ordered = sorted(values)
    return _interpolate(ordered, percent / 100) if ordered else None


def median_and_spread(values: Iterable[float | None]) -> Spread | None:
    """Median, lowest and highest of the values that are known; None when there are none."""
    known = [value for value in values if value is not None]
    return Spread(median(known), min(known), max(known)) if known else None


def _interpolate(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _total(counts: Sequence[int | None]) -> int | None:
    """None if there is nothing to add, or if one count is unknown: a part isn't the sum."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _wall_s(finished: Sequence[RequestTrace]) -> float | None:
    ends = [trace.finished_s for trace in finished if trace.finished_s is not None]
    if not ends:
        return None
    return max(ends) - min(trace.began_s for trace in finished)
