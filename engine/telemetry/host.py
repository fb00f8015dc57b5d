"""How busy the cores were with something else: on a small machine that decides what is measured."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from dataclasses import dataclass

import psutil

from engine.config import Device
from engine.environment import Hardware
from engine.server.processes import group_members

BUSY_SHARE = 0.2
# CPU time is counted in steps of 10 ms: over less time than this the share says too little.
SHORTEST_S = 0.5
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


@dataclass(frozen=True)
class OtherWork:
    """How many of the server's ``cores`` other programs kept busy on average."""

    busy_cores: float
    cores: int

    @property
    def disturbs(self) -> bool:
        """More than a fifth of the cores: what was measured meanwhile is worse than it could be."""
        return self.busy_cores > BUSY_SHARE * self.cores

    def __str__(self) -> str:
        return (
            f"other programs (the browser and this app among them) kept {self.busy_cores:.1f} of {self.cores} "
            f"cores busy"
        )


class CoreWatch:
    """What else uses the server's cores from now on. Knows nothing where the cores aren't what computes."""

    def __init__(self, hardware: Hardware, server_pid: int | None) -> None:
        """``server_pid`` leads the server's process group; None where it isn't ours to see."""
        self._cores, self._pgid = hardware.cpu_ids, server_pid
        computes = hardware.device == Device.CPU
        self._before = read_cpu(self._cores, server_pid) if computes and server_pid is not None else None

    def read(self) -> OtherWork | None:
        """Since the start of the watch; None where it isn't known."""
        if self._before is None or self._pgid is None:
            return None
        after = read_cpu(self._cores, self._pgid)
        busy_cores = other_cores(self._before, after)
        if busy_cores is None or after.at_s - self._before.at_s < SHORTEST_S:
            return None
        return OtherWork(busy_cores, len(self._cores))


def _busy_s(times: object) -> float:
    named = times._asdict()  # type: ignore[attr-defined]
    return float(sum(value for name, value in named.items() if name not in NO_WORK))


def _spent_s(pid: int) -> float:
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0
