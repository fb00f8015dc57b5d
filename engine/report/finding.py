"""A run by what a person writes: its id, the beginning of it, or “latest”."""

from __future__ import annotations

from engine.errors import ConfigError
from engine.store import Run, RunStore

LATEST = "latest"
MOST_NAMED = 5


def find(store: RunStore, word: str) -> Run:
    """Raises ConfigError where there is none, or more than one."""
    ids = [summary.id for summary in store.summaries()]
    matching = ids[:1] if word == LATEST else [one for one in ids if one == word]
    matching = matching or [one for one in ids if word and one.startswith(word)]
    if len(matching) > 1:
        more = " and others" if len(matching) > MOST_NAMED else ""
        named = ", ".join(matching[:MOST_NAMED])
        raise ConfigError(f"{word} is the beginning of {len(matching)} runs.", f"Give more of it: {named}{more}.")
    run = store.get(matching[0]) if matching else None
    if run is None:
        raise ConfigError(f"There is no run {word}.", "List them: python -m engine runs.")
    return run
