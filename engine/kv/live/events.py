"""What vLLM says about its prefix cache: the messages of its KV event stream as plain values.

The format is that of ``vllm/distributed/kv_events.py``: a batch is the msgpack array ``[seconds, events, rank]``, an
event a map with its name under ``type``. Older versions sent an event as an array that begins with its name; both are
taken. Hashes are 64-bit numbers or bytes. What can't be understood is counted, never guessed.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

BlockHash = int | bytes
# Field names in the order of the array form; what newer versions added is only known by name.
STORED_FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")
REMOVED_FIELDS = ("block_hashes", "medium")
# "GPU" is vLLM's word for where the model computes, also on a CPU; the others are copies further away.
OWN_MEDIUM = (None, "GPU")


class MalformedBatch(Exception):
    """A message that is not a batch of events."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Full blocks that can be found by their hash from now on, first to last, below ``parent``.

    ``tokens`` are the ids of all of them, ``block_size`` for each block. ``session`` is the name that the request
    gave itself, None where it gave none. ``group`` tells the layers apart that cache in different ways.
    """

    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None
    tokens: array[int]
    block_size: int
    group: int = 0
    session: str | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks that were taken for something else."""

    hashes: tuple[BlockHash, ...]
    group: int = 0


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The whole prefix cache was reset."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What one step of one engine changed; ``unreadable`` events in it were left out. ``unix_s`` is its clock."""

    unix_s: float
    events: tuple[Event, ...]
    rank: int = 0
    unreadable: int = 0


def decode(payload: bytes) -> EventBatch:
    """Raises MalformedBatch for what is no batch; an event in it that can't be read is only counted."""
    try:
        unix_s, raw, rank = _parts(msgspec.msgpack.decode(payload))
    except (ValueError, TypeError, RecursionError) as error:  # msgspec.DecodeError is a ValueError
        raise MalformedBatch(str(error)) from error
    events: list[Event] = []
    unreadable = 0
    for one in raw:
        try:
            event = _read(one)
        except (ValueError, TypeError, OverflowError):
            unreadable += 1
        else:
            events += [event] if event is not None else []
    return EventBatch(unix_s, tuple(events), rank, unreadable)


def _parts(value: Any) -> tuple[float, list[Any], int]:
    """Raises ValueError or TypeError for what is no batch."""
    unix_s, raw, *rest = value
    if not isinstance(raw, list) or not isinstance(unix_s, int | float) or not math.isfinite(unix_s):
        raise ValueError("no array of time and events")
    return float(unix_s), raw, _count(rest[0] if rest else None)


def _read(raw: Any) -> Event | None:
    """An event; None for one of a cache further away. Raises ValueError or TypeError for what is none."""
    kind, values = _named(raw)
    if kind == "AllBlocksCleared":
        return AllBlocksCleared()
    if kind not in ("BlockStored", "BlockRemoved"):
        raise ValueError(f"an unknown event {kind!r}")
    if values.get("medium") not in OWN_MEDIUM:
        return None
    hashes = tuple(map(_hash, values["block_hashes"]))
    group = _count(values.get("group_idx"))
    return BlockRemoved(hashes, group) if kind == "BlockRemoved" else _stored(hashes, group, values)


def _stored(hashes: tuple[BlockHash, ...], group: int, values: Mapping[str, Any]) -> BlockStored:
    parent, size, session = values.get("parent_block_hash"), _count(values["block_size"]), values.get("session_id")
    tokens = array("i", values["token_ids"])
    if not size:
        raise ValueError("blocks of no tokens")
    # With a sliding window, blocks that will never be found again are left out, but not their tokens.
    if len(tokens) != size * len(hashes):
        tokens = array("i")
    return BlockStored(
        hashes,
        None if parent is None else _hash(parent),
        tokens,
        size,
        group,
        session if isinstance(session, str) else None,
    )


def _named(raw: Any) -> tuple[str, Mapping[str, Any]]:
    """Name and fields of an event, whichever way it was packed."""
    if isinstance(raw, dict):
        return str(raw.get("type")), defaultdict(lambda: None, raw)
    kind, *values = raw
    fields = STORED_FIELDS if kind == "BlockStored" else REMOVED_FIELDS
    return str(kind), defaultdict(lambda: None, zip(fields, values, strict=False))


def _hash(value: Any) -> BlockHash:
    if not isinstance(value, int | bytes) or isinstance(value, bool):
        raise TypeError(f"a hash of the type {type(value).__name__}")
    return value


def _count(value: Any) -> int:
    """A whole number of at least 0, which is also what is meant when it is left out."""
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value
