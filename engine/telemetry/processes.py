"""How busy the machine and each process of the server are: cores of CPU time, and memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from engine.server.processes import children_of, group_members
from engine.telemetry.host import NO_WORK

# Looking who is there goes through all processes of the machine.
LOOK_EVERY_S = 5.0
SHORTEST_S = 0.2
GENERATOR = "engine.load.generator"
OTHER = "Helpers"


@dataclass
class _Known:
    """One process that is watched, and its CPU time (s) of before."""

    process: psutil.Process
    name: str
    cpu_s: float | None = None


@dataclass
class ProcessReader:
    """For one thread: each reading is of the time since the one before."""

    clock: Callable[[], float] = time.monotonic
    _known: dict[int, _Known] = field(default_factory=dict)
    _looked_s: float | None = None
    _pgid: int | None = None
    _read_s: float | None = None
    _host_busy_s: float | None = None

    def read(self, pgid: int | None, measuring: bool) -> dict[str, float | None]:
        """By the keys of ``panels.Line``. ``pgid`` leads the server's group; ``measuring``: a generator may run."""
        now_s = self.clock()
        self._look(pgid, measuring, now_s)
        passed_s = None if self._read_s is None else now_s - self._read_s
        if passed_s is not None and passed_s < SHORTEST_S:
            passed_s = None  # CPU time is counted in steps of 10 ms
        values = self._host(passed_s)
        for key, value in self._processes(passed_s).items():
            values[key] = value
        self._read_s = now_s
        return values

    def _host(self, passed_s: float | None) -> dict[str, float | None]:
        busy_s = sum(value for name, value in psutil.cpu_times()._asdict().items() if name not in NO_WORK)
        before, self._host_busy_s = self._host_busy_s, busy_s
        memory = psutil.virtual_memory()
        return {
            "host_busy_cores": None if passed_s is None or before is None else max(0.0, busy_s - before) / passed_s,
            "host_memory_gb": (memory.total - memory.available) / 1e9,
        }

    def _processes(self, passed_s: float | None) -> dict[str, float]:
        values: dict[str, float] = defaultdict(float)
        for pid, one in list(self._known.items()):
            try:
                with one.process.oneshot():
                    times = one.process.cpu_times()
                    memory_bytes = one.process.memory_info().rss
            except psutil.Error:
                del self._known[pid]
                continue
            before, one.cpu_s = one.cpu_s, times.user + times.system
            client = one.name == GENERATOR
            if passed_s is not None and before is not None:
                key = "client_busy_cores" if client else f"process_busy_cores:{one.name}"
                values[key] += max(0.0, one.cpu_s - before) / passed_s
            if not client:
                values[f"process_memory_gb:{one.name}"] += memory_bytes / 1e9
        return values

    def _look(self, pgid: int | None, measuring: bool, now_s: float) -> None:
        fresh = self._looked_s is not None and now_s - self._looked_s < LOOK_EVERY_S
        if fresh and pgid == self._pgid:
            return
        self._looked_s, self._pgid = now_s, pgid
        pids = group_members(pgid) if pgid is not None else []
        generators = children_of(os.getpid()) if measuring else []
        found: dict[int, _Known] = {}
        for pid in (*pids, *generators):
            with contextlib.suppress(psutil.Error):
                known = self._known.get(pid) or _Known(psutil.Process(pid), "")
                known.name = process_name(known.process.cmdline())
                if pid in pids or known.name == GENERATOR:
                    found[pid] = known
        self._known = found


def process_name(command: list[str]) -> str:
    """What part of the server a command line is: vLLM names its processes itself, as in ``VLLM::EngineCore_DP0``."""
    first = command[0] if command else ""
    if first.startswith("VLLM::"):
        return first.removeprefix("VLLM::").split()[0]
    if GENERATOR in command:
        return GENERATOR
    return "API server" if any("api_server" in word or word.endswith("launcher.py") for word in command) else OTHER
