"""Two simulations of the same requests, recorded for the animation: one compact payload of flat arrays.

Frame ``t`` is the memory in step ``t``, after its admissions and growth. See ``record`` for the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.config import CONTIGUOUS_ALLOCATORS, SimulationConfig
from engine.errors import ConfigError
from engine.kv.allocators import Memory, make_memory
from engine.kv.paged import PagedMemory
from engine.kv.presets import ALLOCATOR_TITLES
from engine.kv.scheduler import Scheduler
from engine.kv.stay import Grant, Stay
from engine.kv.timeline import COUNTS, KINDS
from engine.kv.workloads import Request, make_workload, workload_notes

VERSION = 1
MOST_SLOTS = 4096
MOST_REQUESTS = 200
MOST_STEPS = 2000
MOST_ROWS = 60_000  # of holds and cached marks: about two megabytes of JSON
Columns = dict[str, list[Any]]


def record(config: SimulationConfig, most_steps: int = MOST_STEPS) -> dict[str, Any]:
    """The payload for the config's two allocators, left and right. Raises ConfigError where it would be too large.

    ``stays``: who was in memory from which frame to before which, one for each sample. ``anchors``: tokens of a stay
    at a frame, one more in each later frame. ``holds``: from ``frame`` on, ``count`` units from ``physical`` hold the
    stay's units from ``logical``. ``cached``: free blocks that become findable prefixes (1), or stop to be (0).
    ``series``: slots of each kind and counts of requests, by frame. ``events``: what a presenter would point at.
    ``notes``: what was left out.
    """
    if len(config.allocators) != 2:
        raise ConfigError(f"The animation has two sides, not {len(config.allocators)}.", "Choose two allocators.")
    if config.memory_tokens > MOST_SLOTS:
        raise ConfigError(f"{config.memory_tokens:,} slots can't be drawn.", f"Use at most {MOST_SLOTS:,}.")
    workload = make_workload(config)
    requests = workload.requests[:MOST_REQUESTS]
    sides, end = _run(config, requests, most_steps)
    rows = sorted(frame for side in sides for columns in (side.holds, side.cached) for frame in columns["frame"])
    if len(rows) > MOST_ROWS:
        most_steps = max(rows[MOST_ROWS], 1)
        sides, end = _run(config, requests, most_steps)
    steps = min(end + 1, most_steps)
    return {
        "version": VERSION,
        "slots": config.memory_tokens,
        "steps": steps,
        "step_label": "step",
        "requests": {
            "arrival": [request.arrival for request in requests],
            "prompt": [request.prompt for request in requests],
            "output": [request.output for request in requests],
            "name": [request.name for request in requests],
        },
        "sides": [side.payload(steps) for side in sides],
        "notes": [*workload_notes(config, workload), *_notes(len(workload.requests), end, most_steps)],
    }


def _run(config: SimulationConfig, requests: Sequence[Request], most_steps: int) -> tuple[list[_Side], int]:
    """Both sides, and the step in which the last request of the slower one was gone."""
    sides = [_Side(name, make_memory(name, config)) for name in config.allocators]
    return sides, max(side.run(requests, config.max_num_seqs, most_steps) for side in sides)


def _notes(requests: int, end: int, most_steps: int) -> list[str]:
    notes = []
    if requests > MOST_REQUESTS:
        notes.append(f"The first {MOST_REQUESTS} of {requests:,} requests are shown.")
    if end >= most_steps:
        notes.append(f"The first {most_steps:,} steps are shown; some requests have not ended by then.")
    return notes


class _Side:
    """Watches one scheduler and keeps what happens as columns."""

    def __init__(self, allocator: str, memory: Memory) -> None:
        self.allocator = allocator
        self.memory = memory
        self.contiguous = allocator in CONTIGUOUS_ALLOCATORS
        self.stays: Columns = {"request": [], "sequence": [], "from": [], "to": [], "estimate": []}
        self.anchors: Columns = {"stay": [], "frame": [], "tokens": []}
        self.holds: Columns = {"stay": [], "frame": [], "logical": [], "physical": [], "count": []}
        self.cached: Columns = {"frame": [], "physical": [], "on": []}
        self.events: Columns = {"frame": [], "kind": [], "request": [], "text": []}
        self._numbers: dict[Stay, int] = {}
        self._waited: set[int] = set()
        if isinstance(memory, PagedMemory):
            memory.pool.changes = []

    def run(self, requests: Sequence[Request], max_num_seqs: int, most_steps: int) -> int:
        """Returns the step in which the last request was gone."""
        self._scheduler = Scheduler(self.memory, max_num_seqs, self)
        self._scheduler.run(requests, until=most_steps)
        return self._scheduler.timeline.last_step

    def payload(self, steps: int) -> dict[str, Any]:
        for stay in self._numbers:
            self._set_end(stay, steps)
        series = self._scheduler.timeline.at(np.arange(steps))
        return {
            "allocator": self.allocator,
            "title": ALLOCATOR_TITLES[self.allocator],
            "unit": self.memory.unit,
            "blocks": self.memory.units,
            "stays": self.stays,
            "anchors": self.anchors,
            "holds": self.holds,
            "cached": self.cached,
            "series": {name: series[name].tolist() for name in (*KINDS, *COUNTS)},
            "events": self.events,
        }

    # -- the scheduler's observer

    def admitted(self, stay: Stay, grants: list[Grant]) -> None:
        first = len(self.stays["request"])
        self._numbers[stay] = first
        for sequence in range(stay.sequences):
            _append(
                self.stays, stay.request.index, sequence, stay.start, stay.start, self.memory.estimate(stay.request)
            )
            _append(self.anchors, first + sequence, stay.start, stay.first_context)
        self._hold(stay, grants)
        self._tell_admitted(stay, grants)

    def grew(self, stay: Stay, grants: list[Grant]) -> None:
        self._hold(stay, grants)
        if grants[0].copied:
            text = f"copies its last block {_times(len(grants))}: {stay.sequences} samples write into it"
            self._tell("copy", stay.request, text)

    def finished(self, stay: Stay) -> None:
        self._set_end(stay, stay.end)
        del self._numbers[stay]
        if self._scheduler.finished == 1:
            self._tell("finish", stay.request, "ends: all its memory comes back at once")

    def preempted(self, stay: Stay) -> None:
        self._set_end(stay, self.memory.ledger.step)
        del self._numbers[stay]
        self._tell("preempt", stay.request, "is preempted and will be computed again")

    def waits(self, stay: Stay, reason: str) -> None:
        if stay.request.index not in self._waited:
            self._waited.add(stay.request.index)
            self._tell("wait", stay.request, f"waits: {reason}")

    def rejected(self, request: Request) -> None:
        self._tell("reject", request, "is rejected: it is larger than the whole memory")

    def step_done(self, step: int) -> None:
        if not isinstance(self.memory, PagedMemory) or not self.memory.pool.changes:
            return
        last = dict(self.memory.pool.changes)
        self.memory.pool.changes.clear()
        for block, findable in last.items():
            _append(self.cached, step, block, int(findable))

    # -- details

    def _hold(self, stay: Stay, grants: list[Grant]) -> None:
        first = self._numbers[stay]
        for grant in grants:
            for offset, physical, count in _spans(grant.units):
                frame = self.memory.ledger.step
                _append(self.holds, first + grant.sequence, frame, grant.logical + offset, physical, count)

    def _set_end(self, stay: Stay, frame: int) -> None:
        first = self._numbers[stay]
        self.stays["to"][first : first + stay.sequences] = [frame] * stay.sequences

    def _tell_admitted(self, stay: Stay, grants: list[Grant]) -> None:
        request = stay.request
        if stay.hits and not stay.generated:
            tokens = stay.hits * self.memory.unit
            self._tell("share", request, f"finds {stay.hits} blocks ({tokens} tokens) of its prompt in memory")
        elif not stay.serial:
            held = len({unit for grant in grants for unit in grant.units})
            used = (request.prompt + request.output) * request.samples
            if self.contiguous:
                self._tell("admit", request, f"gets {held * self.memory.unit} slots at once; it will use {used}")
            else:
                self._tell("admit", request, f"gets {held} blocks for its prompt of {request.prompt} tokens")

    def _tell(self, kind: str, request: Request, text: str) -> None:
        _append(self.events, self.memory.ledger.step, kind, request.index, f"Request {request.index} {text}")


def _append(columns: Columns, *values: object) -> None:
    for column, value in zip(columns.values(), values, strict=True):
        column.append(value)


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _spans(units: Sequence[int]) -> list[tuple[int, int, int]]:
    """(offset, first unit, count) of the runs of consecutive units."""
    spans: list[tuple[int, int, int]] = []
    for offset, unit in enumerate(units):
        if spans and unit == spans[-1][1] + spans[-1][2]:
            start, first, count = spans[-1]
            spans[-1] = (start, first, count + 1)
        else:
            spans.append((offset, unit, 1))
    return spans
