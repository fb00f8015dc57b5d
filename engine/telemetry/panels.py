"""The dashboard as data: every panel, its lines, and the same line as a PromQL query over vLLM's own metrics.

The page draws ``key``; Grafana and Prometheus are given ``promql``. Both mean the same number: a rate, a share or a
percentile of the last moments, never one since the start of the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WINDOW = "$window"  # stands for a range such as 1m in every query
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
NO_NVML = "vLLM's /metrics says nothing of the GPU: NVIDIA's DCGM exporter does."
NO_HOST = "vLLM's /metrics says nothing of the machine: Prometheus' node exporter does."
NO_CLIENT = "Only the lab knows its own load generator."
TRAFFIC = "Is empty until requests came within the window."
MEASURED_SO = (
    "Of the requests within the last moments only. Interpolated linearly inside the histogram's bucket, as Prometheus' "
    "histogram_quantile does."
)


class Source(StrEnum):
    """Who says it. Only ``SERVER`` is in vLLM's ``/metrics``; ``GPU`` and ``HOST`` need exporters of their own."""

    SERVER = "server"
    GPU = "gpu"
    HOST = "host"
    CLIENT = "client"


@dataclass(frozen=True)
class Line:
    """One line of a panel.

    ``key`` names the values of the lab's own points. ``each`` is what there is one line of (``gpu``, ``process``):
    then a value's key is ``key:which``. ``legend`` is the label in Prometheus that tells them apart.
    """

    key: str
    label: str
    promql: str = ""
    each: str = ""
    legend: str = ""

    def query(self, window: str) -> str:
        """PromQL over ``window`` (such as ``1m``); empty where Prometheus has no such metric."""
        return self.promql.replace(WINDOW, window)


@dataclass(frozen=True)
class Panel:
    """One chart. ``reason``: why its queries may return nothing (no traffic, another exporter); mostly empty."""

    key: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    help: str = ""
    source: Source = Source.SERVER
    reason: str = ""


def histogram_quantile(quantile: float, metric: str) -> str:
    """Milliseconds, all engines together."""
    return f"1000 * histogram_quantile({quantile:g}, sum by (le) (rate({metric}_bucket[{WINDOW}])))"


def _latency(key: str, title: str, metric: str, meaning: str) -> Panel:
    lines = tuple(
        Line(f"{key}_{name}_ms", name, histogram_quantile(quantile, metric)) for name, quantile in QUANTILES.items()
    )
    return Panel(key, title, "ms", lines, f"{meaning} {MEASURED_SO}", reason=TRAFFIC)


def _mean(metric: str) -> str:
    """Milliseconds; nothing where no request came."""
    return f"1000 * {_rate(metric + '_sum')} / ({_rate(metric + '_count')} > 0)"


def _rate(metric: str) -> str:
    return f"sum(rate({metric}[{WINDOW}]))"


PANELS = (
    Panel(
        "tokens",
        "Tokens per second",
        "tok/s",
        (
            Line("generation_tok_s", "Generated", _rate("vllm:generation_tokens_total")),
            Line("prompt_tok_s", "Prompt", _rate("vllm:prompt_tokens_total")),
        ),
        "Tokens that the server read (prompt) and wrote (generated), as it counts them itself.",
    ),
    Panel(
        "requests",
        "Requests",
        "requests",
        (
            Line("running", "Running", "sum(vllm:num_requests_running)"),
            Line("waiting", "Waiting", "sum(vllm:num_requests_waiting)"),
        ),
        "Running: in the batch that is computed. Waiting: sent, and not in the batch yet.",
    ),
    _latency("ttft", "Time to first token", "vllm:time_to_first_token_seconds", "Request arrived → first token."),
    _latency("itl", "Inter-token latency", "vllm:inter_token_latency_seconds", "Gaps between two tokens of an answer."),
    _latency("e2e", "End-to-end latency", "vllm:e2e_request_latency_seconds", "Request arrived → last token."),
    Panel(
        "queue",
        "Queue time",
        "ms",
        (Line("queue_mean_ms", "Mean", _mean("vllm:request_queue_time_seconds")),),
        "Request arrived → first time in the batch. The mean, which is exact: vLLM's first bucket ends at 300 ms, so "
        "every percentile of a short queue would be a guess.",
        reason=TRAFFIC,
    ),
    Panel(
        "kv",
        "KV cache",
        "%",
        (
            Line("kv_usage_percent", "In use", "100 * avg(vllm:kv_cache_usage_perc)"),
            Line(
                "prefix_hit_percent",
                "Prefix hit rate",
                f"100 * {_rate('vllm:prefix_cache_hits_total')} / ({_rate('vllm:prefix_cache_queries_total')} > 0)",
            ),
        ),
        "In use: share of the KV cache's blocks that hold something for a running request. Prefix hit rate: share of "
        "prompt tokens that were found in the cache.",
        reason=TRAFFIC,
    ),
    Panel(
        "preemptions",
        "Preemptions",
        "per second",
        (Line("preemptions_per_s", "Preemptions", _rate("vllm:num_preemptions_total")),),
        "A request that lost its KV cache because there was no room, and is computed again.",
    ),
    Panel(
        "gpu",
        "GPU utilisation",
        "%",
        (Line("gpu_utilisation_percent", "GPU", "DCGM_FI_DEV_GPU_UTIL", "gpu", "gpu"),),
        "Share of the time in which anything ran on the GPU. Full does not mean well used.",
        Source.GPU,
        NO_NVML,
    ),
    Panel(
        "gpu_memory",
        "GPU memory",
        "%",
        (
            Line(
                "gpu_memory_percent",
                "GPU",
                "100 * DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
                "gpu",
                "gpu",
            ),
        ),
        "vLLM takes its share when it starts: a high, flat line is normal.",
        Source.GPU,
        NO_NVML,
    ),
    Panel(
        "gpu_power",
        "GPU power",
        "W",
        (Line("gpu_power_w", "GPU", "DCGM_FI_DEV_POWER_USAGE", "gpu", "gpu"),),
        "",
        Source.GPU,
        NO_NVML,
    ),
    Panel(
        "gpu_temperature",
        "GPU temperature",
        "°C",
        (Line("gpu_temperature_c", "GPU", "DCGM_FI_DEV_GPU_TEMP", "gpu", "gpu"),),
        "",
        Source.GPU,
        NO_NVML,
    ),
    Panel(
        "cpu",
        "CPU",
        "cores",
        (
            Line(
                "host_busy_cores",
                "All programs",
                f'sum(rate(node_cpu_seconds_total{{mode!="idle",mode!="iowait"}}[{WINDOW}]))',
            ),
            Line("process_busy_cores", "", "", "process"),
            Line("client_busy_cores", "Load generator"),
        ),
        "How many cores are busy: of the machine, and of each process of the server.",
        Source.HOST,
        NO_HOST,
    ),
    Panel(
        "memory",
        "Memory",
        "GB",
        (
            Line(
                "host_memory_gb",
                "All programs",
                "(node_memory_MemTotal_bytes - node_memory_MemAvailable_bytes) / 1e9",
            ),
            Line("process_memory_gb", "", "", "process"),
        ),
        "RAM in use: of the machine, and of each process of the server (RSS: what processes share counts for each).",
        Source.HOST,
        NO_HOST,
    ),
)
