"""How an imported run is told from one that was measured here.

Its kind begins with ``imported-``. Whatever looks for runs of a kind (the headline on Home, estimates of how long
something takes, the searches of Tuning) therefore never takes another machine's numbers for its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from engine.store import Run, new_run

PREFIX = "imported-"
LAB = "lab"
FORMAT_NAMES = {LAB: "vLLM Lab", "vllm_bench": "vllm bench serve", "guidellm": "guidellm"}


@dataclass(frozen=True)
class Origin:
    """Where an imported run came from. ``format`` is also the convention of its numbers."""

    format: str
    file: str = ""
    imported_at: str = ""
    original_id: str = ""

    @property
    def name(self) -> str:
        """The program that measured it."""
        return FORMAT_NAMES.get(self.format, self.format)


def is_imported(kind: str) -> bool:
    return kind.startswith(PREFIX)


def kind_of(kind: str) -> str:
    """The kind of measurement, wherever it was made."""
    return kind.removeprefix(PREFIX)


def as_measured(run: Run) -> Run:
    """An imported run with the kind that it had where it was measured; any other as it is."""
    return replace(run, kind=kind_of(run.kind))


def origin_of(run: Run) -> Origin | None:
    """None for a run that was measured here."""
    if not is_imported(run.kind):
        return None
    saved = run.environment.get("imported") if isinstance(run.environment, dict) else None
    saved = saved if isinstance(saved, dict) else {}
    names = ("format", "file", "imported_at", "original_id")
    return Origin(**{name: str(saved.get(name) or "") for name in names})


def imported(kind: str, title: str, origin: Origin, **fields: Any) -> Run:
    """A new run, under a new id, that says where it comes from."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    environment = dict(fields.pop("environment", {}))
    environment["imported"] = {
        "format": origin.format,
        "file": origin.file,
        "imported_at": now,
        "original_id": origin.original_id,
    }
    created_at = fields.pop("created_at", "")
    run = new_run(f"{PREFIX}{kind_of(kind)}", title, environment=environment, **fields)
    return replace(run, created_at=created_at or run.created_at)
