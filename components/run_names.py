"""What a run is called on the screen."""

from __future__ import annotations

from components import chat_run
from components.format import UNKNOWN, moment, ratio, seconds
from engine.imports import is_imported, kind_of
from engine.store import Run, RunSummary

STATUS_WORDS = chat_run.STATUS_WORDS | {"cancelled": "Cancelled"}
KIND_WORDS = {"compare": "Comparisons", "chat": "Chats", "load": "Load tests", "tune": "Tuning"}
IMPORTED = "Imported"


def kind_words(kind: str) -> str:
    """What was measured elsewhere is a group of its own: it says nothing of this machine."""
    return IMPORTED if is_imported(kind) else KIND_WORDS.get(kind_of(kind), kind)


def status_words(status: object) -> str:
    return STATUS_WORDS.get(str(status), str(status))


def in_a_list(run: Run | RunSummary) -> str:
    """Name and time, for a choice."""
    return f"{run.title} · {moment(run.created_at)}"


def row(run: RunSummary) -> dict[str, str]:
    """Titles are “what: result”."""
    what, _, result = run.title.partition(": ")
    return {
        "When": moment(run.created_at),
        "What": f"{what} (imported)" if is_imported(run.kind) else what,
        "Result": ratio(run.ratio) if run.ratio is not None else result or UNKNOWN,
        "Status": status_words(run.status),
        "Took": seconds(run.duration_s),
        "Machine": run.machine or UNKNOWN,
    }
