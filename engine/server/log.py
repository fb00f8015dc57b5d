"""The server's log: a file that one process writes and many read."""

from __future__ import annotations

from collections import deque
from pathlib import Path

TAIL_BYTES = 512 * 1024
KEPT_LOGS = 10


class LogFollower:
    """Complete new lines of a growing file since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(TAIL_BYTES)
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]


def tail(path: Path, lines: int, needle: str | None = None) -> list[str]:
    """The last ``lines`` lines, with ``needle`` only those that contain it (case ignored); reads at most 512 KiB."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    wanted = (needle or "").casefold()
    return list(deque((line for line in text.splitlines() if wanted in line.casefold()), maxlen=lines))


def prune(folder: Path, pattern: str = "server-*.log", keep: int = KEPT_LOGS) -> None:
    """Forget all but the newest logs."""
    for old in sorted(folder.glob(pattern))[:-keep]:
        old.unlink(missing_ok=True)
