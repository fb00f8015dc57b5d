"""The app's side of the guard: start it with an order, hear its events, ask it to stop."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from engine.config import PROJECT_ROOT
from engine.errors import ServerFailed
from engine.server.command import Launch
from engine.server.processes import group_members, kill_group
from engine.server.record import SCRATCH_PREFIX

GRACE_S = 4.0
START_TIMEOUT_S = 20.0
GUARD_END_S = 6.0


@dataclass(frozen=True)
class Exit:
    """How the server ended: exit code (negative: a signal), how many were killed, who is left."""

    code: int | None
    killed: int
    left: tuple[int, ...]
    asked: bool
    error: str | None = None


class Guard(Protocol):
    """The guard process as ``subprocess.Popen`` shows it."""

    @property
    def stdin(self) -> IO[bytes] | None: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    def kill(self) -> None: ...

    def wait(self) -> object: ...


def _start_guard() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "engine.server.guard"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=PROJECT_ROOT,
        start_new_session=True,
    )


class ServerChild:
    """One guarded server process group. Thread-safe; ends with the process that made it."""

    def __init__(
        self, launch: Launch, log_path: Path, inherited: Mapping[str, str], guard: Guard | None = None
    ) -> None:
        """Starts at once, with a guard of its own if none is given; raises ServerFailed when nothing starts."""
        self.scratch = scratch = tempfile.mkdtemp(prefix=SCRATCH_PREFIX)
        # Sockets and temporary files of the server go into a folder that the guard removes.
        env = launch.full_env(inherited) | {"TMPDIR": scratch, "VLLM_RPC_BASE_PATH": scratch}
        order = {"argv": launch.argv, "env": env, "cwd": scratch, "log": str(log_path), "grace_s": GRACE_S}
        self._exit: Exit | None = None
        self._ended = threading.Event()
        self._started = threading.Event()
        self.pid: int | None = None
        self.ticks: int | None = None
        self._guard = guard or _start_guard()
        self._listener = threading.Thread(target=self._listen, name="server-guard", daemon=True)
        self._listener.start()
        self._tell(json.dumps(order).encode() + b"\n")
        if not self._started.wait(START_TIMEOUT_S) or self.pid is None:
            self.stop()
            reason = self._exit.error if self._exit and self._exit.error else "the guard process did not answer"
            raise ServerFailed(f"vLLM could not be started: {reason}.", "Run make setup, then try again.")

    @property
    def exit(self) -> Exit | None:
        """None while it runs."""
        return self._exit if self._ended.is_set() else None

    def wait(self, timeout_s: float) -> Exit | None:
        """Wait for the end, at most ``timeout_s``."""
        self._ended.wait(timeout_s)
        return self.exit

    def stop(self) -> Exit:
        """End the whole group and wait until it is gone."""
        self._tell(b"stop\n")
        if not self._ended.wait(GRACE_S + GUARD_END_S):
            self._guard.kill()
            self._ended.wait(GUARD_END_S)
        left = tuple(group_members(self.pid)) if self.pid is not None else ()
        return self._exit or Exit(None, 0, left, asked=True)

    def _tell(self, message: bytes) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._guard.stdin.write(message)
            self._guard.stdin.flush()

    def _listen(self) -> None:
        assert self._guard.stdout is not None and self._guard.stdin is not None
        for line in self._guard.stdout:
            self._take(json.loads(line))
        if self._exit is None and self.pid is not None:
            # The guard itself was killed: the group is ours to end.
            killed, left = kill_group(self.pid)
            self._exit = Exit(None, killed, tuple(left), asked=False, error="its guard process was killed")
        self._guard.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)  # a guard that was killed could not
        self._guard.stdout.close()
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        self._ended.set()
        self._started.set()

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "started":
            self.pid, self.ticks = event["pid"], event["ticks"]
            self._started.set()
        else:
            left = tuple(event["left"])
            self._exit = Exit(event["code"], event["killed"], left, event["asked"], event.get("error"))
