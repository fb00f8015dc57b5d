"""What SQLite says when it can't, as errors with a remedy that fits.

The kind is SQLite's own primary result code (https://www.sqlite.org/rescode.html), never its wording.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from engine.errors import ConfigError, DiskFull, LabError, StoreError

LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
DENIED = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
# An extended result code holds the primary one in its lowest byte.
PRIMARY = 0xFF


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is broken, so that a new one helps."""
    return _code(error) in DAMAGED


def lab_error(path: Path, error: sqlite3.Error, *, opening: bool = False) -> LabError:
    """The same failure for people; ``opening`` when the lab can't begin at all, not only this once."""
    code = _code(error)
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(f"No room on the disk for {path}.", "Free some space.")
    if code in LOCKED:
        return StoreError(f"Another program keeps {path} locked.", "Close it there, then try again.")
    if code in DAMAGED:
        return StoreError(
            f"{path} is damaged: {error}.", "Restart the lab: it keeps the damaged file aside and begins a new one."
        )
    if code in DENIED:
        kind = ConfigError if opening else StoreError
        return kind(f"{path} can't be {_what(opening)}: {error}.", "Check its permissions, or set LAB_DATA_DIR.")
    if code == sqlite3.SQLITE_IOERR:
        return StoreError(
            f"The disk failed while {path} was used: {error}.",
            "Check that disk; if it is a network drive, set LAB_DATA_DIR to a folder on this machine.",
        )
    if code == sqlite3.SQLITE_TOOBIG:
        return StoreError("The result is too large to be saved.", "Measure fewer users, repeats or tokens at once.")
    if code == sqlite3.SQLITE_ERROR:  # no such table, no such column, table exists already
        return StoreError(
            f"{path} isn't as this lab makes it: {error}.",
            "Move it elsewhere, then restart the lab: it begins a new one.",
        )
    return StoreError(f"{path} can't be {_what(opening)}: {error}.", "This is a fault of the lab.")


def _what(opening: bool) -> str:
    return "opened" if opening else "read or written"


def _code(error: sqlite3.Error) -> int | None:
    """None for what Python's own module complains about: a wrong call, not a state of the file."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & PRIMARY
