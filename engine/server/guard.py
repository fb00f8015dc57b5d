"""The small parent of the server: when the app dies in any way, the whole server goes.

The app starts ``python -m engine.server.guard`` and keeps the other end of its standard input.
The first line there is the order (JSON: argv, env, cwd, log, grace_s); ``stop`` or end-of-file
ends the server: SIGTERM, a grace, SIGKILL to the whole group. End-of-file comes even when the
app was killed with SIGKILL. Events go to standard output, one JSON object a line:

``{"event": "started", "pid", "ticks"}``  ·  ``{"event": "exited", "code", "killed", "left", "asked"}``
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.server.processes import (
    POLL_S,
    children_of,
    end_group,
    kill_group,
    openmp_files,
    shared_memory_of,
    start_ticks,
    wait_gone,
)

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TICK_S = 0.1
SETTLE_S = 1.0
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Order:
    """What to start; ``cwd`` is a scratch folder that is removed in the end."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    grace_s: float


def main(spawn: Callable[[Order], int] | None = None) -> int:
    """Run one server to its end; exit code 0 whenever the group is gone.

    ``spawn`` starts it as the leader of a group of its own and returns its pid: as a program, unless told otherwise.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Unbuffered: what follows the first line is left for select() to see.
    with open(0, "rb", buffering=0, closefd=False) as orders:
        line = orders.readline()
    if not line:
        return 0
    order = Order(**json.loads(line))
    try:
        return _guard(order, spawn or _spawn)
    finally:
        shutil.rmtree(order.cwd, ignore_errors=True)


def _guard(order: Order, spawn: Callable[[Order], int]) -> int:
    try:
        server = spawn(order)
    except OSError as error:
        _emit(event="exited", code=None, killed=0, left=[], asked=False, error=str(error))
        return 1
    _emit(event="started", pid=server, ticks=start_ticks(server))
    asked, code = _wait(server)
    memory = shared_memory_of(server) | openmp_files(server)
    if code is None:
        killed, left = end_group(server, order.grace_s)
        code = _reap(server)
    else:
        # The leader is gone; its children get a moment to follow, then they are made to.
        killed, left = (0, []) if wait_gone(server, SETTLE_S) else kill_group(server)
    _end_strays(server)
    for path in memory:
        with contextlib.suppress(OSError):
            path.unlink()
    _emit(event="exited", code=code, killed=killed, left=left, asked=asked)
    return 1 if left else 0


def _spawn(order: Order) -> int:
    with open(order.log, "ab", buffering=0) as log:
        return subprocess.Popen(
            order.argv,
            env=order.env,
            cwd=order.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=follow_guard,
        ).pid


def follow_guard() -> None:
    """In the child: default signals again, and SIGTERM should the guard itself be killed."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _wait(server: int) -> tuple[bool, int | None]:
    """Until the server exits (False, its code) or is to be stopped (True, None)."""
    while True:
        readable, _, _ = select.select([0], [], [], TICK_S)
        if readable and os.read(0, 64)[:4] in (b"", b"stop"):
            return True, None
        code = _reap(server)
        if code is not None:
            return False, code


def _end_strays(server: int) -> None:
    """Descendants that left the group are ours by adoption (subreaper): end them as well."""
    _reap(server)
    while strays := children_of(os.getpid()):
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
        _reap(server)


_codes: dict[int, int] = {}


def _reap(server: int) -> int | None:
    """Collect every dead child, adopted orphans too; returns the server's exit code once it is known."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            _codes[pid] = os.waitstatus_to_exitcode(status)
    return _codes.get(server)


def _emit(**event: Any) -> None:
    """Tell the app; when it is gone nobody listens, and that must not stop the clean-up."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main())
