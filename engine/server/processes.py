"""Process groups as the kernel tells them: who is in one, since when, and how to end it.

Standard library only: the guard imports nothing else, so that it starts in milliseconds.
Processes are recognised by group and start time, never by name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")
POLL_S = 0.05


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is no such process (or only a zombie)."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] == "Z" else int(fields[19])


def boot_id() -> str:
    """Changes with every boot of the machine: start times count from there."""
    return (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()


def group_members(pgid: int) -> list[int]:
    """The living processes of a group, zombies left out."""
    return _living(field=2, value=pgid)


def children_of(pid: int) -> list[int]:
    """The living children of a process, zombies left out."""
    return _living(field=1, value=pid)


def _living(field: int, value: int) -> list[int]:
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    stats = ((pid, _stat_fields(pid)) for pid in pids)
    return sorted(pid for pid, stat in stats if stat is not None and stat[0] != "Z" and int(stat[field]) == value)


def is_ours(pgid: int, started: int) -> bool:
    """True while the group lives that was started at ``started`` (ticks): a reused number does not count."""
    leader = start_ticks(pgid)
    if leader is not None:
        return leader == started
    return any((start_ticks(pid) or 0) >= started for pid in group_members(pgid))


def end_group(pgid: int, grace_s: float) -> tuple[int, list[int]]:
    """SIGTERM to the leader, wait, then SIGKILL to whoever is left.

    Returns how many processes had to be killed and the ones that are still there (normally none).
    """
    _signal(pgid, signal.SIGTERM, group=False)
    if wait_gone(pgid, grace_s):
        return 0, []
    return kill_group(pgid)


def kill_group(pgid: int, wait_s: float = 3.0) -> tuple[int, list[int]]:
    """SIGKILL to a whole group; returns how many there were and the ones left after ``wait_s``."""
    killed = len(group_members(pgid))
    _signal(pgid, signal.SIGKILL, group=True)
    wait_gone(pgid, wait_s)
    return killed, group_members(pgid)


def wait_gone(pgid: int, timeout_s: float) -> bool:
    """Wait until a group is empty but for zombies; False when time is up."""
    deadline = time.monotonic() + timeout_s
    while group_members(pgid):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def shared_memory_of(pgid: int) -> set[Path]:
    """Files in /dev/shm of the processes of a group: those that they have mapped, and their OpenMP registrations.

    A killed server leaves them behind.
    """
    found = set()
    for pid in group_members(pgid):
        found |= openmp_files(pid)
        with contextlib.suppress(OSError):
            for line in (PROC / str(pid) / "maps").read_text().splitlines():
                path = line.partition("/dev/shm/")
                if path[1] and not path[2].endswith("(deleted)"):
                    found.add(SHARED_MEMORY / path[2].strip())
    return found


def openmp_files(pid: int) -> set[Path]:
    """What Intel's OpenMP notes of a process that uses it, and removes only when that ends by itself."""
    return set(SHARED_MEMORY.glob(f"__KMP_REGISTERED_LIB_{pid}_*"))


def proportional_bytes(pids: list[int]) -> int | None:
    """RAM that processes occupy together now (PSS): what several share is counted once. None where none tells."""
    sizes = []
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
            sizes += [int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")]
    return sum(sizes) if sizes else None


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on: 0 state, 1 parent, 2 group, 3 session, 19 start."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _signal(pgid: int, number: signal.Signals, *, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(pgid, number)
        else:
            os.kill(pgid, number)
