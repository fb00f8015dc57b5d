"""``python -m tests.vllm_bench_metrics``: what vLLM's own benchmark makes of requests (JSON lists on standard input).

A request is [sent, [times of chunks with a choice], end of the stream, prompt tokens, output tokens], in seconds. The
answer is one JSON object with the names that the benchmark saves.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from typing import Any

from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import calculate_metrics

PERCENTILES = [90.0, 95.0, 99.0]


def output_of(sent_s: float, chunks_s: list[float], prompt_tokens: int, output_tokens: int) -> RequestFuncOutput:
    return RequestFuncOutput(
        success=True,
        latency=chunks_s[-1] - sent_s,
        output_tokens=output_tokens,
        ttft=chunks_s[0] - sent_s,
        itl=[after - before for before, after in pairwise(chunks_s)],
        prompt_len=prompt_tokens,
        start_time=sent_s,
    )


def main() -> None:
    requests = json.load(sys.stdin)
    sys.stdout, answers = sys.stderr, sys.stdout  # it prints
    outputs = [output_of(sent, chunks, prompt, tokens) for sent, chunks, _, prompt, tokens in requests]
    seconds = max(end for _, _, end, _, _ in requests) - min(sent for sent, *_ in requests)
    found, _ = calculate_metrics([], outputs, seconds, None, PERCENTILES, {})
    values: dict[str, Any] = {
        "duration": seconds,
        "completed": found.completed,
        "total_input_tokens": found.total_input,
        "total_output_tokens": found.total_output,
        "request_throughput": found.request_throughput,
        "output_throughput": found.output_throughput,
        "total_token_throughput": found.total_token_throughput,
        "max_output_tokens_per_s": found.max_output_tokens_per_s,
        "max_concurrent_requests": found.max_concurrent_requests,
    }
    for name in ("ttft", "tpot", "itl", "e2el"):
        values |= {f"{part}_{name}_ms": getattr(found, f"{part}_{name}_ms") for part in ("mean", "median", "std")}
        values |= {f"p{percent:g}_{name}_ms": value for percent, value in getattr(found, f"percentiles_{name}_ms")}
    print(json.dumps({name: float(value) for name, value in values.items()}), file=answers)


if __name__ == "__main__":
    main()
