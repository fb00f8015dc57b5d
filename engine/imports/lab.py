"""What a lab has exported: one run, or a document with several under ``runs``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from engine.compare_results import CompareResults
from engine.errors import ConfigError
from engine.imports.mark import LAB, Origin, imported, kind_of
from engine.imports.values import number, text
from engine.load.results import LoadResults
from engine.store import Run, to_json

PARTS = ("config", "environment", "model", "results")
LONGEST_COMMAND = 20_000
STATUSES = ("done", "cancelled", "failed", "stopped", "interrupted", "refused")


def recognises(documents: Sequence[dict[str, Any]]) -> bool:
    return len(documents) == 1 and bool(_saved(documents[0]))


def runs_of(documents: Sequence[dict[str, Any]], file: str) -> list[Run]:
    return [_run(saved, file) for saved in _saved(documents[0])]


def _saved(document: dict[str, Any]) -> list[dict[str, Any]]:
    several = document.get("runs")
    found = several if isinstance(several, list) else [document]
    return found if all(isinstance(one, dict) and {"id", "kind", "results"} <= one.keys() for one in found) else []


def _run(saved: dict[str, Any], file: str) -> Run:
    kind, title = kind_of(text(saved["kind"], 40)), text(saved.get("title")) or "Untitled"
    if kind not in CHECKS:
        raise ConfigError(f"“{title}” is of a kind that this lab doesn't know: {kind!r}.", "Update vLLM Lab.")
    parts = {name: saved.get(name) for name in PARTS}
    if wrong := [name for name, part in parts.items() if not isinstance(part, dict)]:
        raise ConfigError(f"“{title}” has no {wrong[0]}.", "Export it again: its JSON, not its CSV.")
    parts = json.loads(to_json(parts))  # what is no number is unknown, before anything looks at it
    try:
        CHECKS[kind](parts["results"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        cause = f"The results of “{title}” aren't those of such a run ({type(error).__name__}: {error})."
        raise ConfigError(cause[:400], "Export it again.") from error
    status = text(saved.get("status"), 40)
    return imported(
        kind,
        title,
        _origin(saved, parts, file),
        status=status if status in STATUSES else "done",
        created_at=_time(saved.get("created_at")),
        duration_s=number(saved.get("duration_s")),
        command=text(saved.get("command"), LONGEST_COMMAND),
        **parts,
    )


def _origin(saved: dict[str, Any], parts: dict[str, Any], file: str) -> Origin:
    """Of a run that was imported before, still the program that measured it."""
    before = parts["environment"].get("imported")
    measured_by = before.get("format") if isinstance(before, dict) else None
    return Origin(measured_by if isinstance(measured_by, str) else LAB, file, original_id=text(saved["id"], 80))


def _time(value: Any) -> str:
    try:
        return datetime.fromisoformat(value).isoformat(timespec="seconds")
    except (TypeError, ValueError):
        return ""


def _check_chat(results: dict[str, Any]) -> None:
    if not all(isinstance(turn, dict) for turn in results["turns"]):
        raise TypeError("a turn is no object")


def _check_engines(results: dict[str, Any]) -> None:
    CompareResults.from_dict(results)


def _check_levels(results: dict[str, Any]) -> None:
    """A level that a foreign tool measured has less in it, which is fine: unknown stays unknown."""
    for level in LoadResults.from_dict(results).levels:
        if number(level.users) is None and number(level.rate_req_s) is None and not level.label:
            raise ValueError("a level without users, rate and label")


CHECKS = {
    "compare": _check_engines,
    "load": _check_levels,
    "tune": _check_levels,
    "chat": _check_chat,
}
