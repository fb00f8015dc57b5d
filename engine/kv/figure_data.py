"""What the static figures show, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.config import SimulationConfig
from engine.kv.presets import ALLOCATOR_TITLES
from engine.kv.simulate import AllocatorResult, SimulationResult, simulate

PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Bar:
    """One allocator's shares of the memory in %, and the paper's where it printed them (None elsewhere)."""

    allocator: str
    title: str
    result: AllocatorResult
    published_token_states_pct: float | None
    published_mean_running: float | None


@dataclass(frozen=True)
class PageSize:
    """A paged memory with this block size. ``blocks_per_request``: how long a block table is, on average."""

    block_size: int
    token_states_pct: float | None
    utilisation_pct: float | None
    mean_running: float | None
    blocks_per_request: float | None
    preemptions: int


@dataclass(frozen=True)
class RunningRequests:
    """Requests in memory by allocator, at the same ``steps``."""

    steps: list[int]
    running: dict[str, list[int]]


def bars(result: SimulationResult) -> list[Bar]:
    """One for each allocator, in the order of the simulation."""
    return [
        Bar(
            name,
            ALLOCATOR_TITLES[name],
            values,
            values.published.get("token_states_pct"),
            values.published.get("mean_running"),
        )
        for name, values in result.allocators.items()
    ]


def page_sizes(config: SimulationConfig, sizes: Sequence[int] = PAGE_SIZES) -> list[PageSize]:
    """The first paged allocator of the config with each block size that fits into the memory.

    Costs one simulation each; small blocks cost the most (one event per token).
    """
    allocator = next((name for name in config.allocators if name.startswith("paged")), "paged")
    return [
        _page_size(replace(config, block_size=size, allocators=(allocator,)))
        for size in sizes
        if size <= config.memory_tokens
    ]


def running_requests(result: SimulationResult, points: int = 400) -> RunningRequests:
    """At most ``points`` steps, evenly from the first to the last of the slowest allocator."""
    last = max(values.timeline.last_step for values in result.allocators.values())
    steps = np.unique(np.linspace(0, last, min(points, last + 1)).round().astype(np.int64))
    running = {name: values.timeline.at(steps)["running"].tolist() for name, values in result.allocators.items()}
    return RunningRequests(steps.tolist(), running)


def _page_size(config: SimulationConfig) -> PageSize:
    (values,) = simulate(config).allocators.values()
    blocks, running = values.mean_blocks_used, values.mean_running
    return PageSize(
        config.block_size,
        values.token_states_pct,
        values.utilisation_pct,
        running,
        blocks / running if blocks is not None and running else None,
        values.preemptions,
    )
