"""The server's log: a file that one process writes and many read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

TAIL_BYTES = 512 * 1024
LINE_LIMIT = 64 * 1024
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
    """The last ``lines`` lines of the last 512 KiB; with ``needle`` of the whole log, those with it (case ignored)."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            if needle:
                return list(deque(_matches(file, needle.casefold()), maxlen=lines))
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return list(deque(file.read(TAIL_BYTES).splitlines(), maxlen=lines))
    except FileNotFoundError:
        return []


def _matches(file: TextIO, needle: str) -> Iterator[str]:
    """Lines with the needle, one at a time; a line without an end comes in parts."""
    while line := file.readline(LINE_LIMIT):
        if needle in line.casefold():
            yield line.rstrip("\n")


def note(path: Path, text: str) -> None:
    """Put a line of the lab's own among the server's."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"[vLLM Lab] {text}\n")


def prune(folder: Path, pattern: str = "server-*.log", keep: int = KEPT_LOGS) -> None:
    """Forget all but the newest logs."""
    for old in sorted(folder.glob(pattern))[:-keep]:
        old.unlink(missing_ok=True)
