"""The configuration before the last apply, in the database: the way back outlives the app."""

from __future__ import annotations

import contextlib

from engine.config import ServerConfig
from engine.errors import LabError
from engine.store import RunStore

KIND, NAME = "way-back", "previous"


def keep(store: RunStore, previous: ServerConfig | None) -> None:
    """Raises StoreError or DiskFull."""
    if previous is None:
        store.delete_document(KIND, NAME)
    else:
        store.put_document(KIND, NAME, previous.to_dict())


def kept(store: RunStore) -> ServerConfig | None:
    """None where there is none, or where it can't be read."""
    with contextlib.suppress(LabError, KeyError, TypeError, ValueError):
        if found := store.documents(KIND).get(NAME):
            return ServerConfig.from_dict(found)
    return None
