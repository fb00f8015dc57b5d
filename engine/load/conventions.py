"""The same requests in other tools' conventions, so that their numbers can be put beside ours.

vLLM 0.32's ``bench serve`` (``vllm/benchmarks/serve.py``, ``calculate_metrics``): a request begins when it is sent, its
first token is the first chunk with a choice (even without text), its end the last one; TPOT is a mean over requests,
ITL pools the gaps between chunks; the duration runs until the last stream has closed.

guidellm 0.8 (``schemas/base/request_stats.py``, ``benchmark/schemas/metrics.py``): its "time per output token" divides
the whole time, the wait for the first token in it, by all tokens; its "inter-token latency" is what we call TPOT. Both
weigh a request by its tokens. A percentile is the smallest value that reaches the share; nothing is interpolated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from statistics import fmean, pstdev

from engine.metrics import Distribution, RequestTrace, distribution

Values = dict[str, float | int | None]
PARTS = ("mean", "p50", "p90", "p95", "p99")
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def in_conventions(traces: Sequence[RequestTrace]) -> dict[str, Values]:
    """By tool: ``throughput_tok_s``, ``throughput_req_s``, ``ttft_p50_ms`` and so on."""
    finished = [trace for trace in traces if trace.ok and trace.chunk_times_s]
    return {"vllm_bench": vllm_bench(finished), "guidellm": guidellm(finished)} if finished else {}


def vllm_bench(finished: Sequence[RequestTrace]) -> Values:
    ends = [trace.ended_s for trace in finished if trace.ended_s is not None]
    seconds = max(ends) - min(trace.sent_s for trace in finished) if ends else None
    values = _rates(finished, seconds) | _peaks(finished)
    for measure, found in (
        ("ttft", [_vllm_ttft_ms(trace) for trace in finished]),
        ("tpot", [tpot for trace in finished if (tpot := _vllm_tpot_ms(trace)) is not None]),
        ("itl", [gap for trace in finished for gap in _vllm_gaps_ms(trace)]),
        ("e2e", [(_vllm_last_s(trace) - trace.sent_s) * 1000 for trace in finished]),
    ):
        values |= _named(measure, distribution(found)) | {f"{measure}_std_ms": pstdev(found) if found else None}
    return values


def guidellm(finished: Sequence[RequestTrace]) -> Values:
    last_s = max(trace.ended_s or trace.chunk_times_s[-1] for trace in finished)
    seconds = last_s - min(trace.sent_s for trace in finished)
    return _rates(finished, seconds) | {
        **_weighted("ttft", finished, lambda t: (t.chunk_times_s[0] - t.sent_s) * 1000, lambda t: 1),
        **_weighted(
            "tpot", finished, lambda t: (t.chunk_times_s[-1] - t.sent_s) * 1000 / (t.output_tokens or 1), _tokens
        ),
        **_weighted("itl", finished, _guidellm_itl_ms, lambda t: _tokens(t) - 1),
        **_weighted("e2e", finished, lambda t: ((t.ended_s or t.chunk_times_s[-1]) - t.sent_s) * 1000, lambda t: 1),
    }


def _rates(finished: Sequence[RequestTrace], seconds: float | None) -> Values:
    tokens = [trace.output_tokens for trace in finished]
    known = None if None in tokens else sum(count for count in tokens if count is not None)
    return {
        "duration_s": seconds,
        "throughput_tok_s": known / seconds if known is not None and seconds else None,
        "throughput_req_s": len(finished) / seconds if seconds else None,
    }


def _peaks(finished: Sequence[RequestTrace]) -> Values:
    """The most chunks, and the most requests at work, in one second counted from the first request."""
    began_s = min(trace.sent_s for trace in finished)
    chunks: Counter[int] = Counter()
    at_work: Counter[int] = Counter()
    for trace in finished:
        times = sorted({_first_s(trace), *trace.chunk_times_s, _vllm_last_s(trace)})
        chunks.update(int(time_s - began_s) for time_s in times)
        at_work.update(range(int(trace.sent_s - began_s), int(times[-1] - began_s) + 1))
    return {
        "max_output_tokens_per_s": float(max(chunks.values())),
        "max_concurrent_requests": max(at_work.values()),
    }


def _first_s(trace: RequestTrace) -> float:
    return trace.chunk_times_s[0] if trace.first_choice_s is None else trace.first_choice_s


def _vllm_last_s(trace: RequestTrace) -> float:
    return max(trace.chunk_times_s[-1], trace.finish_s or 0.0)


def _vllm_ttft_ms(trace: RequestTrace) -> float:
    return (_first_s(trace) - trace.sent_s) * 1000


def _vllm_tpot_ms(trace: RequestTrace) -> float | None:
    if trace.output_tokens is None or trace.output_tokens < 2:
        return None
    return (_vllm_last_s(trace) - _first_s(trace)) * 1000 / (trace.output_tokens - 1)


def _vllm_gaps_ms(trace: RequestTrace) -> list[float]:
    times = sorted({_first_s(trace), *trace.chunk_times_s, _vllm_last_s(trace)})
    return [(after - before) * 1000 for before, after in pairwise(times)]


def _guidellm_itl_ms(trace: RequestTrace) -> float | None:
    if _tokens(trace) < 2:
        return None
    return (trace.chunk_times_s[-1] - trace.chunk_times_s[0]) * 1000 / (_tokens(trace) - 1)


def _tokens(trace: RequestTrace) -> int:
    """The server's count, else the chunks."""
    return len(trace.chunk_times_s) if trace.output_tokens is None else trace.output_tokens


def _named(measure: str, values: Distribution | None) -> Values:
    return {f"{measure}_{part}_ms": getattr(values, part) if values else None for part in PARTS}


def _weighted(
    measure: str,
    traces: Iterable[RequestTrace],
    value_ms: Callable[[RequestTrace], float | None],
    weight: Callable[[RequestTrace], int],
) -> Values:
    pairs = sorted((value, weight(trace)) for trace in traces if (value := value_ms(trace)) is not None)
    total = sum(count for _, count in pairs)
    if not total:
        return _named(measure, None)
    reached = list(accumulate(count for _, count in pairs))
    values: Values = {f"{measure}_mean_ms": fmean((value for value, _ in pairs), (count for _, count in pairs))}
    for name, share in SHARES.items():
        place = next(i for i, count in enumerate(reached) if count >= share * total)
        values[f"{measure}_{name}_ms"] = pairs[place][0]
    return values
