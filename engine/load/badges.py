"""What speaks against a level's numbers: computed from the level itself, never from a hunch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from engine.load.results import Badge, LevelResult
from engine.metrics import RequestTrace
from engine.telemetry.host import OtherWork
from engine.units import counted

# Values that a percentile needs so that one of them lies beyond it: 1 / (1 - p).
NEEDED = {"p90": 10, "p95": 20, "p99": 100}
CACHED_PCT = 10.0
# The sending process has one core; with more than this of it in use, chunks begin to wait for their time stamp.
CLIENT_BUSY_PCT = 80.0
LAG_OVER_TTFT, LAG_OVER_ITL = 0.1, 0.5
LATE_OVER_TTFT = 0.1
FIRST_OVER_REST = 3.0


def badges_of(
    level: LevelResult,
    traces: Sequence[RequestTrace],
    warmed: Sequence[RequestTrace] | None,
    others: OtherWork | None,
) -> tuple[Badge, ...]:
    """``warmed``: the warm-up before it, if that was as large as its first wave, else empty; None: there was none."""
    found = (
        *_failures(level),
        *_few_samples(level),
        *_cache_warm(level),
        *_client_bound(level),
        *_others_busy(others),
        *_late(level),
        *_first_slow(traces, warmed),
        *_preempted(level),
        *_unequal(traces),
    )
    return tuple(found)


def _failures(level: LevelResult) -> Iterator[Badge]:
    if level.requests_failed:
        why = f"{level.requests_failed} of {counted(level.requests, 'request')} failed; they are in no other number."
        yield Badge("failed", "Requests failed", why)
    if level.partial:
        yield Badge("partial", "Not whole", level.partial)


def _few_samples(level: LevelResult) -> Iterator[Badge]:
    names = [name for name, needed in NEEDED.items() if level.requests_ok < needed]
    if names and level.requests_ok:
        requests = counted(level.requests_ok, "request")
        why = f"{requests}: {_list(names)} {_is(names)} hardly more than the slowest of them."
        yield Badge("few_samples", f"Few samples for {_list(names)}", why, "note" if names == ["p99"] else "warning")


def _cache_warm(level: LevelResult) -> Iterator[Badge]:
    share = level.prefix_hit_pct
    if share is not None and share > CACHED_PCT:
        why = f"{share:.0f}% of the prompt tokens were found in the prefix cache and not computed: TTFT looks better."
        yield Badge("cache_warm", "Cache-warm", why)


def _client_bound(level: LevelResult) -> Iterator[Badge]:
    busy, lag_ms = level.client_cpu_pct, level.loop_lag_p99_ms
    if busy is not None and busy > CLIENT_BUSY_PCT:
        yield Badge("client_bound", "Client-bound", f"The sending process used {busy:.0f}% of the one core it can use.")
    elif lag_ms is not None and _blurs(lag_ms, level):
        why = f"One time in a hundred the client came {lag_ms:.1f} ms late to what had arrived."
        yield Badge("client_late", "Client late", f"{why} TTFT and single gaps are that uncertain.", "note")


def _blurs(lag_ms: float, level: LevelResult) -> bool:
    too_much = ((level.ttft_ms, LAG_OVER_TTFT), (level.itl_ms, LAG_OVER_ITL))
    return any(values is not None and lag_ms > share * values.p50 for values, share in too_much)


def _others_busy(others: OtherWork | None) -> Iterator[Badge]:
    if others is not None and others.disturbs:
        yield Badge("others_busy", "Other programs", f"{str(others).capitalize()} beside server and client.")


def _late(level: LevelResult) -> Iterator[Badge]:
    queue, ttft = level.client_queue_ms, level.ttft_ms
    if queue and ttft and queue.p95 > LATE_OVER_TTFT * ttft.p50:
        why = f"Requests left up to {queue.p95:.0f} ms (p95) after their time; that is in their TTFT and E2E."
        yield Badge("sent_late", "Sent late", why)


def _first_slow(traces: Sequence[RequestTrace], warmed: Sequence[RequestTrace] | None) -> Iterator[Badge]:
    """The first wave against as large a one of the warm-up; without a warm-up against what came later."""
    first_token_s = min((trace.chunk_times_s[0] for trace in traces if trace.chunk_times_s), default=None)
    if first_token_s is None:
        return
    wave = [trace.ttft_ms for trace in traces if trace.began_s < first_token_s and trace.ttft_ms is not None]
    later = [trace.ttft_ms for trace in traces if trace.began_s >= first_token_s and trace.ttft_ms is not None]
    reference = later if warmed is None else [trace.ttft_ms for trace in warmed if trace.ttft_ms is not None]
    if not wave or not reference or median(wave) <= FIRST_OVER_REST * median(reference):
        return
    why = f"The first requests waited {median(wave):.0f} ms for a token"
    if warmed is None:
        yield Badge("not_warmed", "Not warmed up", f"{why}, later ones {median(reference):.0f} ms.")
    else:
        why = f"{why}, as many in the warm-up {median(reference):.0f} ms: something was compiled or loaded meanwhile."
        yield Badge("first_slow", "First-request compile", why)


def _preempted(level: LevelResult) -> Iterator[Badge]:
    if level.preemptions:
        why = f"{level.preemptions} times the KV cache was full and a request was put back and computed again."
        yield Badge("preempted", "Preempted", why)


def _unequal(traces: Sequence[RequestTrace]) -> Iterator[Badge]:
    lengths = [trace.output_tokens for trace in traces if trace.ok and trace.output_tokens is not None]
    if lengths and any(trace.expected_tokens is None for trace in traces) and max(lengths) > min(lengths):
        why = f"Answers have {min(lengths)} to {max(lengths)} tokens; engines can only be compared at equal lengths."
        yield Badge("unequal_lengths", "Lengths not forced", why, "note")


def _list(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
