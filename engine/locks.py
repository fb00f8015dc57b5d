"""A lock file that the kernel frees when its holder dies, with a note of who holds it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from engine.errors import ConfigError
from engine.server.processes import start_ticks


class FileLock:
    """An exclusive flock on ``path``; the holder's pid, start time and ``note`` are in the file for others to read."""

    def __init__(self, path: Path, **note: str) -> None:
        self._path = path
        self._info = {"pid": os.getpid(), "ticks": start_ticks(os.getpid()), **note}
        self._fd: int | None = None

    def acquire(self, *, blocking: bool = False) -> bool:
        """True when the lock is ours now; False when somebody else has it (only when not blocking).

        Raises ConfigError where no file can be made.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"{self._path} can't be written: {error}.", "Check its permissions, or set LAB_DATA_DIR."
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if blocking else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        # The lock is what counts; on a full disk the note is left out.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(self._info).encode(), 0)
        self._fd = fd
        return True

    def release(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    def holder(self) -> dict[str, Any] | None:
        """What the present holder wrote; None where nothing can be read."""
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def __enter__(self) -> Self:
        self.acquire(blocking=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
