"""Named simulations, and what the PagedAttention paper published for two of them.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023,
arXiv 2309.06180: figure 2 (shares of memory) and figure 13 (mean number of batched requests), OPT-13B on one A100
with 40 GB. 12 GiB of KV cache at 819,200 bytes a token are 15,728 slots. The watermark is that of the paper's artifact.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from engine.config import SimulationConfig
from engine.errors import ConfigError

CITATION = "Kwon et al., SOSP 2023, arXiv 2309.06180"
OPT_13B_SLOTS = 12 * 1024**3 // 819_200
ALLOCATOR_TITLES = {
    "contiguous_max": "Contiguous (max length)",
    "contiguous_pow2": "Contiguous (power of two)",
    "contiguous_oracle": "Contiguous (oracle)",
    "paged": "Paged",
    "paged_prefix": "Paged, shared prefixes",
    "paged_parallel": "Paged, copy on write",
}
SHARES = ("token_states_pct", "reserved_pct", "internal_fragmentation_pct", "external_fragmentation_pct")


@dataclass(frozen=True)
class Preset:
    """``published`` values by allocator and field of the result; ``assumptions``: where this differs from the paper."""

    title: str
    config: SimulationConfig
    published: dict[str, dict[str, float]] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


_OPT_13B = SimulationConfig(
    memory_tokens=OPT_13B_SLOTS, max_model_len=2048, block_size=16, buddy_unit=16, max_num_seqs=1024, watermark=0.01
)
_CLOSED_LOOP = (
    "The queue is always full here, and averages are over the last two thirds of the time it is. The paper's figure 2 "
    "sent 4 requests a second for 900 s and averaged the last 600 s."
)
_STEPS = (
    "Every step gives each running request one token, and a prompt is computed in one step of any length. "
    "On a real server a step with a long prompt takes longer, and counts for more in an average over time."
)
PRESETS: dict[str, Preset] = {
    "lab": Preset("Workshop: short and long prompts", SimulationConfig(requests=4000)),
    "paper-sharegpt": Preset(
        "OPT-13B on ShareGPT, as in the paper",
        replace(_OPT_13B, workload="sharegpt", requests=3000),
        {
            "contiguous_max": dict(zip(SHARES, (20.4, 13.3, 57.3, 8.9), strict=True)) | {"mean_running": 7.00},
            "contiguous_pow2": dict(zip(SHARES, (26.8, 17.9, 13.6, 41.6), strict=True)) | {"mean_running": 9.81},
            "contiguous_oracle": {
                "token_states_pct": 38.2,
                "reserved_pct": 25.2,
                "external_fragmentation_pct": 36.6,
                "mean_running": 13.62,
            },
            "paged": {"token_states_pct": 96.3, "mean_running": 30.42},
        },
        (
            _CLOSED_LOOP,
            _STEPS,
            "Lengths are drawn from the quantiles and the rank correlation of the paper's ShareGPT list, which has no "
            "licence itself. Totals from 2048 on are drawn again, so they average 148 tokens in and 332 out (the list: "
            "161.31 and 337.99). One set of requests moves the shares by one or two points.",
            "The paper's batch sizes were measured at 2 requests a second. Contiguous memory is full even then, so "
            "they can be compared; paged memory is not, so its 30.42 depends on arrivals and on the time of a step, "
            "which this simulation leaves out. Read vLLM's batch here as the most that fits.",
        ),
    ),
    "paper-alpaca": Preset(
        "OPT-13B on Alpaca, as in the paper",
        replace(_OPT_13B, workload="alpaca", requests=10_000),
        {
            "contiguous_max": {"mean_running": 7.00},
            "contiguous_pow2": {"mean_running": 43.24},
            "contiguous_oracle": {"mean_running": 72.75},
            "paged": {"mean_running": 132.44},
        },
        (
            _CLOSED_LOOP,
            _STEPS,
            "The lengths are a fit: the shapes were chosen so that the contiguous batches come near the paper's, so "
            "those rows are no test of the simulation. The paper's Alpaca list could not be had.",
            "At 30 requests a second the paper's vLLM was not short of memory, so its 132.44 depends on arrivals and "
            "on the time of a step. Here the queue is always full: read vLLM's batch as the most that fits.",
            "The paper prints no shares of memory for Alpaca.",
        ),
    ),
}


# For the animation: two sides, a few hundred steps, arrivals that contiguous memory can't keep up with.
ANIMATIONS: dict[str, Preset] = {
    "lab": Preset(
        "Short and long prompts",
        SimulationConfig(requests=120, arrivals_per_100_steps=70, allocators=("contiguous_max", "paged")),
    ),
    "shared_prefix": Preset(
        "A shared system prompt",
        SimulationConfig(
            workload="shared_prefix",
            requests=120,
            arrivals_per_100_steps=55,
            memory_tokens=3000,
            allocators=("contiguous_max", "paged_prefix"),
        ),
    ),
    "parallel": Preset(
        "Four answers to each prompt",
        SimulationConfig(
            workload="parallel",
            requests=40,
            samples=4,
            max_model_len=256,
            arrivals_per_100_steps=12,
            allocators=("contiguous_max", "paged_parallel"),
        ),
    ),
    "tight": Preset(
        "Little memory: preemption",
        SimulationConfig(
            requests=60, memory_tokens=1100, arrivals_per_100_steps=20, allocators=("contiguous_max", "paged")
        ),
    ),
}


def preset(name: str, **changes: Any) -> SimulationConfig:
    """A preset's config with some fields changed; raises ConfigError for an unknown name."""
    if name not in PRESETS:
        raise ConfigError(f"There is no preset {name!r}.", f"Use one of {', '.join(PRESETS)}.")
    return replace(PRESETS[name].config, **changes)


def matching_preset(config: SimulationConfig) -> str | None:
    """The preset that this config is, whatever its seed, number of requests and allocators; else None."""
    for name, known in PRESETS.items():
        same = replace(known.config, seed=config.seed, requests=config.requests, allocators=config.allocators)
        if same == config:
            return name
    return None
