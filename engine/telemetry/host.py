"""How busy the cores were with something else: on a small machine that decides what is measured."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from dataclasses import dataclass

import psutil

from engine.server.processes import group_members

# Waiting for a disk is none, and guest time is part of user time already.
NO_WORK = ("idle", "iowait", "guest", "guest_nice")


@dataclass(frozen=True)
class CpuReading:
    """Seconds of CPU time up to a moment: of some cores together, and of one process group."""

    at_s: float
    busy_s: float
    group_s: float


def read_cpu(cores: Collection[int], pgid: int) -> CpuReading:
    """Now. ``cores`` are numbers of CPUs, ``pgid`` is the group whose work is known."""
    per_core = psutil.cpu_times(percpu=True)
    busy = sum(_busy_s(per_core[core]) for core in cores if core < len(per_core))
    return CpuReading(time.perf_counter(), busy, sum(_spent_s(pid) for pid in group_members(pgid)))


def other_cores(before: CpuReading, after: CpuReading) -> float | None:
    """Cores that were busy with something else than the group on average; None for no time at all."""
    wall_s = after.at_s - before.at_s
    if wall_s <= 0:
        return None
    return max(0.0, (after.busy_s - before.busy_s - (after.group_s - before.group_s)) / wall_s)


def _busy_s(times: object) -> float:
    named = times._asdict()  # type: ignore[attr-defined]
    return float(sum(value for name, value in named.items() if name not in NO_WORK))


def _spent_s(pid: int) -> float:
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0
