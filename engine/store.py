"""Every measured result, in SQLite: nothing that was finished is lost to a refresh, a crash or a restart."""

from __future__ import annotations

import csv
import io
import json
import math
import secrets
import sqlite3
import statistics
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from engine.store_errors import is_damage, lab_error

RECENT_STARTS = 5
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
MIGRATIONS = (
    """
    CREATE TABLE runs (
        id TEXT PRIMARY KEY, kind TEXT NOT NULL, title TEXT NOT NULL, status TEXT NOT NULL,
        created_at TEXT NOT NULL, duration_s REAL, config TEXT NOT NULL, environment TEXT NOT NULL,
        model TEXT NOT NULL, command TEXT NOT NULL, results TEXT NOT NULL
    );
    CREATE TABLE starts (id INTEGER PRIMARY KEY, key TEXT NOT NULL, phases TEXT NOT NULL, total_s REAL NOT NULL);
    CREATE INDEX starts_key ON starts (key, id);
    """,
    """
    CREATE TABLE documents (kind TEXT NOT NULL, id TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, id));
    """,
)
NUMBERS = ("duration_s", "ratio")
COLUMNS = ("config", "environment", "model", "results")
SUMMARY = """
    id, kind, title, status, created_at, duration_s,
    CASE WHEN json_valid(environment) THEN json_extract(environment, '$.summary') END AS machine,
    CASE WHEN json_valid(results) THEN json_extract(results, '$.ratio') END AS ratio
"""


@dataclass(frozen=True)
class Run:
    """One measured result with all that is needed to repeat it."""

    id: str
    kind: str
    title: str
    status: str
    created_at: str
    duration_s: float | None = None
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    results: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class RunSummary:
    """What a list of runs shows; ``machine`` is hardware and software in one line, ``ratio`` that of a comparison."""

    id: str
    kind: str
    title: str
    status: str
    created_at: str
    duration_s: float | None = None
    machine: str = ""
    ratio: float | None = None


def new_run(kind: str, title: str, status: str = "done", **fields: Any) -> Run:
    """A run that begins to exist now; its id sorts by time."""
    now = datetime.now(UTC)
    run_id = f"{now:%Y%m%d-%H%M%S-%f}-{secrets.token_hex(2)}"
    return Run(run_id, kind, title, status, now.isoformat(timespec="seconds"), **fields)


class _Damaged(Exception):
    """The file is broken: to be kept aside."""


class RunStore:
    """The database; every method may be called from any thread and raises StoreError or DiskFull when it can't."""

    def __init__(self, path: Path) -> None:
        """Opens or makes it; raises ConfigError, StoreError or DiskFull.

        A corrupt file is kept aside and a new one begun (``notice``).
        """
        self._path = path
        self._lock = threading.RLock()
        self.notice: str | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._migrate()
        except _Damaged:
            self._set_aside()
            self._migrate()
        except OSError as error:
            raise ConfigError(
                f"{path.parent} can't be written: {error}.", "Set LAB_DATA_DIR to another folder."
            ) from error

    def add(self, run: Run) -> None:
        """Save a run, or replace the one with its id."""
        values = run.to_dict()
        row = [_dump(values[name]) if name in COLUMNS else values[name] for name in values]
        marks = ", ".join("?" * len(row))
        with self._connect() as db:
            db.execute(f"INSERT OR REPLACE INTO runs ({', '.join(values)}) VALUES ({marks})", row)

    def list(self, kind: str | None = None, limit: int | None = 500) -> list[Run]:
        """Newest first; all of them with ``limit=None``."""
        return [_run(row) for row in self._rows("*", kind, limit)]

    def summaries(self, kind: str | None = None, limit: int | None = None) -> Sequence[RunSummary]:
        """Newest first, without their results, which may be large."""
        return [_summary(row) for row in self._rows(SUMMARY, kind, limit)]

    def get(self, run_id: str) -> Run | None:
        with self._connect() as db:
            row = db.execute("SELECT * FROM runs WHERE id = ?", (run_id,)).fetchone()
        return None if row is None else _run(row)

    def delete(self, run_id: str) -> bool:
        """True when there was one."""
        with self._connect() as db:
            return db.execute("DELETE FROM runs WHERE id = ?", (run_id,)).rowcount > 0

    def add_start(self, key: str, phases: Mapping[str, float], total_s: float) -> None:
        """Remember how long a server start took, phase by phase, in seconds."""
        with self._connect() as db:
            db.execute(
                "INSERT INTO starts (key, phases, total_s) VALUES (?, ?, ?)", (key, _dump(dict(phases)), total_s)
            )

    def expected_start(self, key: str) -> dict[str, float]:
        """Median seconds of each phase over the last five starts; empty without any."""
        with self._connect() as db:
            rows = db.execute(
                "SELECT phases FROM starts WHERE key = ? ORDER BY id DESC LIMIT ?", (key, RECENT_STARTS)
            ).fetchall()
        starts = [_loaded(row["phases"]) for row in rows]
        names = {name for start in starts for name in start}
        return {name: statistics.median([s[name] for s in starts if name in s]) for name in names}

    def put_document(self, kind: str, name: str, body: Mapping[str, Any]) -> None:
        """Keep something that is no run (a study, a profile), in place of the one with its name."""
        with self._connect() as db:
            db.execute("INSERT OR REPLACE INTO documents (kind, id, body) VALUES (?, ?, ?)", (kind, name, _dump(body)))

    def documents(self, kind: str) -> dict[str, Any]:
        """All of a kind by name, in the order of their names; what is damaged is empty."""
        with self._connect() as db:
            rows = db.execute("SELECT id, body FROM documents WHERE kind = ? ORDER BY id", (kind,)).fetchall()
        return {str(row["id"]): _loaded(row["body"]) for row in rows}

    def delete_document(self, kind: str, name: str) -> bool:
        """True when there was one."""
        with self._connect() as db:
            return db.execute("DELETE FROM documents WHERE kind = ? AND id = ?", (kind, name)).rowcount > 0

    def _rows(self, columns: str, kind: str | None, limit: int | None) -> Sequence[sqlite3.Row]:
        query = f"SELECT {columns} FROM runs WHERE ?1 IS NULL OR kind = ?1 ORDER BY id DESC LIMIT ?2"
        with self._connect() as db:
            return db.execute(query, (kind, -1 if limit is None else limit)).fetchall()

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """A transaction whose every failure is a LabError."""
        try:
            with self._transaction() as db:
                yield db
        except sqlite3.Error as error:
            raise lab_error(self._path, error) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            db = sqlite3.connect(self._path, timeout=10)
            db.row_factory = sqlite3.Row
            try:
                with db:
                    yield db
            finally:
                db.close()

    def _migrate(self) -> None:
        try:
            with self._transaction() as db:
                self._check(db)
                db.execute("PRAGMA journal_mode=WAL")
                if _version(db) < len(MIGRATIONS):
                    _apply_migrations(db)
        except sqlite3.Error as error:
            if is_damage(error):
                raise _Damaged from error
            raise lab_error(self._path, error, opening=True) from error

    def _check(self, db: sqlite3.Connection) -> None:
        """Before anything is written: a database that is refused stays as it was."""
        if _version(db) > len(MIGRATIONS):
            raise ConfigError(f"{self._path} was written by a newer vLLM Lab.", "Update this one, or set LAB_DATA_DIR.")
        if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise _Damaged

    def _set_aside(self) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        for suffix in ("", "-wal", "-shm", "-journal"):
            part = self._path.with_name(self._path.name + suffix)
            if part.exists():
                part.rename(self._path.with_name(f"{self._path.name}.corrupt-{stamp}{suffix}"))
        self.notice = (
            f"The database of runs was damaged. It is kept as {self._path.name}.corrupt-{stamp}; a new one was begun."
        )


def _apply_migrations(db: sqlite3.Connection) -> None:
    """Two processes may open a new database at once; the second waits and finds the first one's version."""
    db.execute("BEGIN IMMEDIATE")
    for number, script in list(enumerate(MIGRATIONS, 1))[_version(db) :]:
        for statement in script.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {number}")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def run_to_json(run: Run) -> str:
    return to_json(run.to_dict())


def to_json(value: Any) -> str:
    """One JSON document, whatever a damaged database holds: what is no number is null, what is no text is one."""
    return json.dumps(_clean(value), indent=2, allow_nan=False, default=str)


def runs_to_csv(runs: Sequence[Run]) -> str:
    """One line a run, nested values as dotted columns; no cell can become a formula in a spreadsheet."""
    rows = [dict(_flat("", run.to_dict())) for run in runs]
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names)
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), inner)
    else:
        clean = _clean(value)
        yield prefix, json.dumps(clean) if isinstance(clean, list) else clean


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def _run(row: sqlite3.Row) -> Run:
    return Run(
        **{name: _loaded(value) if name in COLUMNS else _plain(name, value) for name, value in dict(row).items()}
    )


def _summary(row: sqlite3.Row) -> RunSummary:
    return RunSummary(**{name: _plain(name, value) for name, value in dict(row).items()})


def _plain(name: str, value: Any) -> Any:
    """A number or a text, as its column should have it: SQLite lets anything into any column."""
    if name in NUMBERS:
        is_number = isinstance(value, int | float) and math.isfinite(value)
        return value if is_number else None
    return value if isinstance(value, str) else str(value or "")


def _loaded(text: str) -> Any:
    """What was saved; empty where it isn't JSON any more: one damaged cell must not hide the others."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}


def _dump(value: Any) -> str:
    return json.dumps(_clean(value), allow_nan=False)


def _clean(value: Any) -> Any:
    """JSON has no NaN and no infinity: what is not a number is unknown."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): _clean(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in value]
    return value
