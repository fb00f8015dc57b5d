"""``/metrics`` texts of a vLLM whose numbers a test chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

BOUNDS = (0.1, 0.2, 0.4, 0.8, math.inf)
NAMES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv": "vllm:kv_cache_usage_perc",
    "prompt": "vllm:prompt_tokens_total",
    "generation": "vllm:generation_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "queries": "vllm:prefix_cache_queries_total",
    "hits": "vllm:prefix_cache_hits_total",
}
HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
    "queue": "vllm:request_queue_time_seconds",
}


def metrics_text(
    engines: int = 1,
    start_s: float | None = 1000.0,
    observed: Mapping[str, Sequence[float]] | None = None,
    **values: float,
) -> str:
    """``observed`` are seconds by histogram; every engine of ``engines`` says the same of itself."""
    lines = [] if start_s is None else [f"process_start_time_seconds {start_s!r}"]
    for engine in range(engines):
        label = f'engine="{engine}",model_name="m"'
        lines += [f"{NAMES[name]}{{{label}}} {float(value)}" for name, value in values.items()]
        for name, seconds in (observed or {}).items():
            for bound in BOUNDS:
                word = "+Inf" if bound == math.inf else str(bound)
                count = float(sum(one <= bound for one in seconds))
                lines.append(f'{HISTOGRAMS[name]}_bucket{{{label},le="{word}"}} {count}')
            lines.append(f"{HISTOGRAMS[name]}_sum{{{label}}} {sum(seconds)!r}")
    return "\n".join(["# HELP some words", *lines]) + "\n"
