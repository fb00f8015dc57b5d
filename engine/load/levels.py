"""From the traces of a level to its numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from engine.load.badges import badges_of
from engine.load.conventions import in_conventions
from engine.load.order import CANCELLED, LevelOutcome
from engine.load.profiles import Level
from engine.load.results import LevelResult, Sample
from engine.load.watch import MetricsWatch
from engine.metrics import RequestTrace, Slo, Summary, distribution, goodput, summarize
from engine.telemetry.host import OtherWork

MOST_SAMPLES = 2000
MOST_REASONS = 10
OTHER_REASONS = "other reasons"
# "given up after 1.2 s" and "after 1.3 s" are one reason.
DECIMALS = re.compile(r"(?<=\d)\.\d+")


def level_result(
    level: Level,
    outcome: LevelOutcome,
    watch: MetricsWatch,
    slo: Slo,
    *,
    warmed: Sequence[RequestTrace] | None = None,
    lengths_forced: bool | None = None,
    others: OtherWork | None = None,
) -> LevelResult:
    """Requests that were called off are counted as cancelled, neither as failed nor in any number."""
    cancelled = [trace for trace in outcome.traces if trace.error == CANCELLED]
    traces = [trace for trace in outcome.traces if trace.error != CANCELLED]
    summary, good = summarize(traces), goodput(traces, slo)
    ok = [trace for trace in traces if trace.ok]
    prompt_tokens = _total(ok)
    result = LevelResult(
        label=level.label,
        users=level.users,
        rate_req_s=level.rate_req_s,
        requests_ok=summary.requests_ok,
        requests_failed=summary.requests_failed,
        requests_cancelled=len(cancelled),
        failures=_reasons(traces),
        wall_s=summary.wall_s,
        prompt_tokens=prompt_tokens,
        output_tokens=summary.output_tokens,
        throughput_req_s=summary.requests_ok / summary.wall_s if summary.wall_s else None,
        throughput_tok_s=summary.throughput_tok_s,
        total_tok_s=_total_tok_s(prompt_tokens, summary),
        ttft_ms=summary.ttft_ms,
        tpot_ms=summary.tpot_ms,
        itl_ms=summary.itl_ms,
        e2e_ms=summary.e2e_ms,
        client_queue_ms=distribution(trace.client_queue_ms for trace in ok),
        server_queue_ms=distribution(trace.server.queue_ms if trace.server else None for trace in ok),
        goodput_req_s=good.req_s if good else None,
        goodput_pct=good.pct if good else None,
        preemptions=watch.grown("preemptions"),
        kv_cache_peak_pct=watch.kv_cache_peak_pct,
        server_waiting_peak=watch.waiting_peak,
        prefix_queries=watch.grown("prefix_queries"),
        prefix_hits=watch.grown("prefix_hits"),
        client_cpu_s=outcome.cpu_s,
        loop_lag_p99_ms=outcome.loop_lag_p99_ms,
        others_busy_cores=others.busy_cores if others else None,
        lengths_forced=lengths_forced,
        partial=_partial(outcome),
        samples=_samples(traces, outcome.began_s),
        conventions=in_conventions(traces),
    )
    return replace(result, badges=badges_of(result, traces, warmed, others))


def _partial(outcome: LevelOutcome) -> str:
    if outcome.stopped == CANCELLED:
        return "Cancelled before its end: only requests that had finished are counted."
    return outcome.stopped


def _reasons(traces: Sequence[RequestTrace]) -> tuple[tuple[str, int], ...]:
    """Most frequent first."""
    causes = (DECIMALS.sub("", failure.cause) for trace in traces if (failure := trace.failure()) is not None)
    counted = Counter(causes).most_common()
    rest = sum(count for _, count in counted[MOST_REASONS:])
    return (*counted[:MOST_REASONS], *([(OTHER_REASONS, rest)] if rest else []))


def _total(ok: Sequence[RequestTrace]) -> int | None:
    counts = [trace.prompt_tokens for trace in ok]
    return sum(count or 0 for count in counts) if counts and None not in counts else None


def _total_tok_s(prompt_tokens: int | None, summary: Summary) -> float | None:
    if prompt_tokens is None or summary.output_tokens is None or not summary.wall_s:
        return None
    return (prompt_tokens + summary.output_tokens) / summary.wall_s


def _samples(traces: Sequence[RequestTrace], began_s: float) -> tuple[Sample, ...]:
    step = max(1, -(-len(traces) // MOST_SAMPLES))
    return tuple(
        Sample(
            round(trace.began_s - began_s, 4),
            trace.ok,
            trace.ttft_ms,
            trace.tpot_ms,
            trace.e2e_ms,
            trace.prompt_tokens,
            trace.output_tokens,
        )
        for trace in traces[::step]
    )
