"""What is measured on the server of a data folder, known to every process that uses it.

The lock is the kernel's: it is free when its holder dies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import AlreadyRunning
from engine.locks import FileLock
from engine.server.processes import is_ours

FILE_NAME = "measuring.lock"
UNKNOWN = "Another process measures on this server."
REMEDY = "Wait until it is over, or cancel it where it was started."


@contextmanager
def claimed(state_dir: Path, reason: str) -> Iterator[None]:
    """The server for ourselves; raises AlreadyRunning with what another process does, and ConfigError."""
    lock = FileLock(state_dir / FILE_NAME, reason=reason)
    if not lock.acquire():
        raise AlreadyRunning(elsewhere(state_dir) or UNKNOWN, REMEDY)
    try:
        yield
    finally:
        lock.release()


def elsewhere(state_dir: Path) -> str:
    """What another process measures on the server, such as "A load test is running."; empty when none does."""
    note = FileLock(state_dir / FILE_NAME).holder() or {}
    pid, ticks = note.get("pid"), note.get("ticks")
    if not isinstance(pid, int) or not isinstance(ticks, int) or pid == os.getpid() or not is_ours(pid, ticks):
        return ""
    return str(note.get("reason") or UNKNOWN)
