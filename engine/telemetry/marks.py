"""Events on the time axis, found by comparing what is known of server and load test now with a moment ago."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum

from engine.config import ServerConfig
from engine.load.results import LoadSnapshot
from engine.server.state import ServerSnapshot, ServerState

MOST_CHANGES = 3
# Badges of a level that say that the load generator was what limited it, or came late.
CLIENT_BADGES = ("client_bound", "client_late")


class MarkKind(StrEnum):
    """Compare with ``==``: a reloaded module makes a second class."""

    SERVER = "server"
    PROBLEM = "problem"
    LOAD = "load"
    WARM_UP = "warm_up"


@dataclass(frozen=True)
class Mark:
    """``at_s`` is Unix time. ``text`` is a few words, and may hold text from outside."""

    at_s: float
    kind: MarkKind
    text: str


def server_marks(before: ServerSnapshot, now: ServerSnapshot, at_s: float) -> Iterator[Mark]:
    """What happened to the server between two looks."""
    if now.generation == before.generation and now.state == before.state:
        return
    if now.state == ServerState.READY:
        words = "Attached" if now.attached else "Server ready"
        yield Mark(at_s, MarkKind.SERVER, words)
    elif now.state == ServerState.FAILED:
        yield Mark(at_s, MarkKind.PROBLEM, "Server lost" if now.attached else "Server failed")
    elif now.state == ServerState.STARTING and now.generation != before.generation:
        changed = changes(before.config, now.config)
        words = "Restart" if before.config is not None else "Start"
        yield Mark(at_s, MarkKind.SERVER, f"{words}: {changed}" if changed else words)
    elif now.state == ServerState.STOPPED:
        yield Mark(at_s, MarkKind.SERVER, "Detached" if before.attached else "Server stopped")


def changes(before: ServerConfig | None, now: ServerConfig | None) -> str:
    """“max_num_seqs 8 → 16”, at most three of them; empty where nothing changed."""
    if before is None or now is None:
        return ""
    names = [one.name for one in fields(ServerConfig) if getattr(before, one.name) != getattr(now, one.name)]
    words = [f"{name} {_word(getattr(before, name))} → {_word(getattr(now, name))}" for name in names[:MOST_CHANGES]]
    more = len(names) - MOST_CHANGES
    return ", ".join(words) + (f" and {more} more" if more > 0 else "")


def _word(value: object) -> str:
    return "default" if value is None or value == "" else str(value)


def load_marks(before: LoadSnapshot, now: LoadSnapshot, at_s: float) -> Iterator[Mark]:
    """Every level's beginning (its warm-up is one of its own), and the end; after a level what its client suffered."""
    if not (before.running or now.running):
        return
    known = len(before.levels) if before.running and before.config == now.config else 0
    for level in now.levels[known:]:
        suffered = [badge.label.lower() for badge in level.badges if badge.code in CLIENT_BADGES]
        if suffered:
            yield Mark(at_s, MarkKind.PROBLEM, f"{level.label}: {', '.join(suffered)}")
    if now.running and now.level is not None:
        seen = (before.level, before.warming_up) if before.running else (None, False)
        if (now.level, now.warming_up) != seen:
            label = now.labels[now.level] if now.level < len(now.labels) else f"Level {now.level + 1}"
            if now.warming_up:
                yield Mark(at_s, MarkKind.WARM_UP, f"{label}, warm-up")
            else:
                yield Mark(at_s, MarkKind.LOAD, label)
    elif before.running and not now.running:
        yield Mark(at_s, MarkKind.LOAD, f"Load test {now.state.value}")
