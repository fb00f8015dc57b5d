"""Simulates a KV cache under several allocators: the same requests, the same scheduler, one step per token."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from engine.config import SimulationConfig
from engine.kv.allocators import Memory, make_memory
from engine.kv.paged import PagedMemory
from engine.kv.presets import ALLOCATOR_TITLES, PRESETS, matching_preset
from engine.kv.scheduler import Scheduler
from engine.kv.timeline import KINDS, Timeline
from engine.kv.workloads import Workload, make_workload, workload_notes

WARM_UP_SHARE = 1 / 3
AVERAGES = (
    *("token_states_pct", "reserved_pct", "internal_fragmentation_pct", "external_fragmentation_pct"),
    *("external_gaps_pct", "free_pct", "utilisation_pct", "mean_running", "mean_waiting", "mean_blocks_used"),
)


@dataclass(frozen=True)
class AllocatorResult:
    """One allocator's averages over the measured steps; None where nothing was measured.

    The first four shares are the paper's and add up to 100: ``external_fragmentation_pct`` holds all that no request
    holds a slot of, free memory too ("external fragmentation & others"). ``external_gaps_pct`` (chunks rounded up,
    memory beyond whole units) and ``free_pct`` are its two parts, as the animation shows them.
    ``utilisation_pct``: token states of what the requests hold, so free memory and unusable remainders don't count.
    ``mean_running``: requests in memory. ``mean_blocks_used``: blocks they hold, None for contiguous memory.
    ``finished_per_s`` needs a step time. ``wall_s``: how long the simulation took.
    """

    token_states_pct: float | None
    reserved_pct: float | None
    internal_fragmentation_pct: float | None
    external_fragmentation_pct: float | None
    external_gaps_pct: float | None
    free_pct: float | None
    utilisation_pct: float | None
    mean_running: float | None
    mean_waiting: float | None
    mean_blocks_used: float | None
    peak_running: int
    preemptions: int
    finished: int
    rejected: int
    unfinished: int
    steps: int
    measured_from: int
    measured_to: int
    finished_per_100_steps: float | None
    finished_per_s: float | None
    wall_s: float
    published: dict[str, float] = field(default_factory=dict)
    difference_points: dict[str, float] = field(default_factory=dict)
    difference_mean_running: float | None = None
    timeline: Timeline = field(default_factory=Timeline, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "timeline"}
        if not self.published:
            for name in ("published", "difference_points", "difference_mean_running"):
                del values[name]
        return values


@dataclass(frozen=True)
class SimulationResult:
    """``notes`` say what the numbers leave out, in plain words."""

    config: SimulationConfig
    preset: str | None
    requests: int
    shortened: int
    too_long: int
    notes: tuple[str, ...]
    allocators: dict[str, AllocatorResult]

    def to_dict(self) -> dict[str, Any]:
        return {
            "preset": self.preset,
            "config": self.config.to_dict(),
            "requests": self.requests,
            "shortened": self.shortened,
            "too_long": self.too_long,
            "allocators": {name: result.to_dict() for name, result in self.allocators.items()},
            "notes": list(self.notes),
        }


def simulate(config: SimulationConfig) -> SimulationResult:
    """All of the config's allocators on the same requests. Raises ConfigError for input that can't be used."""
    workload = make_workload(config)
    name = matching_preset(config)
    published = PRESETS[name].published if name else {}
    results = {
        allocator: _run(config, workload, allocator, published.get(allocator, {})) for allocator in config.allocators
    }
    return SimulationResult(
        config=config,
        preset=name,
        requests=len(workload.requests) + workload.too_long,
        shortened=workload.shortened,
        too_long=workload.too_long,
        notes=(*_notes(config, workload, results), *(PRESETS[name].assumptions if name else ())),
        allocators=results,
    )


def _run(config: SimulationConfig, workload: Workload, allocator: str, published: dict[str, float]) -> AllocatorResult:
    began_s = time.perf_counter()
    scheduler = Scheduler(make_memory(allocator, config), config.max_num_seqs)
    scheduler.run(workload.requests)
    timeline = scheduler.timeline
    start, end = _measured(timeline, workload.closed)
    averages = _averages(timeline, start, end, scheduler.memory)
    ours = {name: value for name, value in averages.items() if value is not None}
    differences = {name: ours[name] - value for name, value in published.items() if name in ours}
    steps = timeline.last_step
    per_step = scheduler.finished / steps if steps else None
    return AllocatorResult(
        **averages,
        peak_running=int(timeline.table()["running"].max()),
        preemptions=scheduler.preemptions,
        finished=scheduler.finished,
        rejected=scheduler.rejected + workload.too_long,
        unfinished=len(workload.requests) - scheduler.finished - scheduler.rejected,
        steps=steps,
        measured_from=start,
        measured_to=end,
        finished_per_100_steps=100 * per_step if per_step is not None else None,
        finished_per_s=per_step / config.step_s if per_step is not None and config.step_s else None,
        wall_s=time.perf_counter() - began_s,
        published=published,
        difference_points={name: value for name, value in differences.items() if name.endswith("_pct")},
        difference_mean_running=differences.get("mean_running"),
        timeline=timeline,
    )


def _measured(timeline: Timeline, closed: bool) -> tuple[int, int]:
    """The steps that are averaged: the whole run; in a closed loop the last two thirds of the time the queue is full.

    A closed loop starts with young requests and ends with an emptying memory; the paper leaves out its first third too.
    """
    queue_ends = timeline.queue_ends()
    warm = round(queue_ends * WARM_UP_SHARE)
    return (warm, queue_ends) if closed and warm < queue_ends else (0, timeline.last_step)


def _averages(timeline: Timeline, start: int, end: int, memory: Memory) -> dict[str, float | None]:
    """The fields of the result that are means over the measured steps."""
    if start >= end:
        return dict.fromkeys(AVERAGES)
    slots, unusable = memory.ledger.slots, memory.ledger.slots - memory.units * memory.unit
    means = timeline.means(start, end)
    pct = {kind: 100 * means[kind] / slots for kind in KINDS}
    held = slots - means["free"] - unusable
    values = (
        *(pct["tokens"], pct["reserved"], pct["internal"], pct["external"] + pct["free"]),
        *(pct["external"], pct["free"]),
        100 * means["tokens"] / held if means["tokens"] else None,
        *(means["running"], means["waiting"]),
        held / memory.unit if isinstance(memory, PagedMemory) else None,
    )
    return dict(zip(AVERAGES, values, strict=True))


def _notes(config: SimulationConfig, workload: Workload, results: dict[str, AllocatorResult]) -> list[str]:
    too_large = {name: result.rejected - workload.too_long for name, result in results.items()}
    rejected = [
        f"{ALLOCATOR_TITLES[name]}: requests larger than the memory, rejected: {count:,}."
        for name, count in too_large.items()
        if count
    ]
    return [*workload_notes(config, workload), *rejected]
