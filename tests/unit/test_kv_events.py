"""The event stream of a server's KV blocks: what is understood, what is lost and found again, and what is survived."""

from __future__ import annotations

import contextlib
import errno
import json
from array import array
from collections.abc import Iterator

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.kv.live.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, MalformedBatch, decode
from engine.kv.live.feed import LAST_SEQUENCE, EventFeed, FeedCounts
from tests.kv_publisher import CLEARED, Publisher, packed, removed, stored
from tests.supervised import eventually


class Listener:
    """A feed, and what it handed on."""

    def __init__(self, ranks: int = 1) -> None:
        self.batches: list[EventBatch] = []
        self.restarted: list[int] = []
        self.feed = EventFeed(self.batches.append, self.restarted.append, ranks)

    def hashes(self) -> list[object]:
        """Of all that was stored, in order."""
        return [
            one
            for batch in self.batches
            for event in batch.events
            if isinstance(event, BlockStored)
            for one in event.hashes
        ]

    def wait(self, hashes: list[object]) -> None:
        eventually(lambda: len(self.hashes()) >= len(hashes))
        assert self.hashes() == hashes


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.feed.close()


# -- one message


def test_an_event_is_read_from_a_map_as_from_an_array() -> None:
    array_form = ["BlockStored", [1, 2], 7, [10, 11, 12, 13], 2, None, "GPU", None]
    map_form = stored([1, 2], 7, 2) | {"token_ids": [10, 11, 12, 13]}
    (one,), (other,) = decode(packed(map_form)).events, decode(packed(array_form)).events
    assert one == other == BlockStored((1, 2), 7, array("i", [10, 11, 12, 13]), 2)
    assert decode(packed(["BlockRemoved", [1], "GPU"])).events == (BlockRemoved((1,)),)
    assert decode(packed(["AllBlocksCleared"], CLEARED)).events == (AllBlocksCleared(), AllBlocksCleared())


def test_hashes_are_numbers_or_bytes() -> None:
    batch = decode(packed(stored([b"\x01" * 32], b"\x02" * 32), removed(2**64 - 1)))
    assert [event.hashes for event in batch.events] == [(b"\x01" * 32,), (2**64 - 1,)]  # type: ignore[union-attr]


def test_time_rank_group_and_session_are_kept() -> None:
    batch = decode(packed(stored([1], group_idx=2, session_id="lab-1"), unix_s=12.5, rank=3))
    (event,) = batch.events
    assert isinstance(event, BlockStored)
    assert (batch.unix_s, batch.rank, event.group, event.session) == (12.5, 3, 2, "lab-1")


def test_a_batch_may_leave_its_rank_out() -> None:
    assert decode(packed(CLEARED, rank=None)).rank == 0
    assert decode(msgspec.msgpack.encode([1.0, [CLEARED]])).rank == 0


def test_copies_further_away_are_not_the_cache() -> None:
    assert decode(packed(stored([1], medium="CPU"), removed(1, medium="STORAGE"))) == EventBatch(1000.0, ())


def test_tokens_that_do_not_fit_the_blocks_are_unknown() -> None:
    (event,) = decode(packed(stored([1, 2]) | {"token_ids": [5]})).events
    assert isinstance(event, BlockStored) and event.hashes == (1, 2) and not event.tokens


@pytest.mark.parametrize(
    "event",
    [
        {"type": "BlockStored"},
        stored([1]) | {"block_hashes": 5},
        stored([1]) | {"block_hashes": [None]},
        stored([1]) | {"token_ids": ["a"]},
        stored([1]) | {"token_ids": [2**63]},
        stored([1]) | {"block_size": 0},
        stored([1]) | {"block_size": -1},
        stored([1], parent="x"),
        stored([1], group_idx="x"),
        {"type": "BlockExploded"},
        ["BlockStored"],
        [],
        [[]],
        None,
        5,
        "BlockStored",
    ],
)
def test_an_event_that_makes_no_sense_is_counted_and_the_others_are_taken(event: object) -> None:
    batch = decode(packed(stored([1]), event, removed(1)))
    assert (len(batch.events), batch.unreadable) == (2, 1)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"not msgpack",
        msgspec.msgpack.encode(None),
        msgspec.msgpack.encode({}),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode(["now", []]),
        msgspec.msgpack.encode([float("nan"), []]),
        msgspec.msgpack.encode([1.0, {}]),
        msgspec.msgpack.encode([1.0, [], "rank"]),
        msgspec.msgpack.encode([1.0, [], -1]),
        b"\x91" * 100_000,
    ],
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedBatch):
        decode(payload)


@given(st.binary())
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    with contextlib.suppress(MalformedBatch):
        decode(payload)


# -- the stream


def test_the_option_names_a_port_that_is_bound_before_the_server_starts(listener: Listener) -> None:
    option = json.loads(listener.feed.server_option())
    assert option["enable_kv_cache_events"] is True and option["publisher"] == "zmq"
    assert option["endpoint"] == f"tcp://127.0.0.1:{listener.feed.port}"  # no wildcard: vLLM connects
    assert option["replay_endpoint"].startswith("ipc://@")


def test_everything_sent_arrives_in_order(listener: Listener) -> None:
    with Publisher(listener.feed.server_option()) as publisher:
        for number in range(1, 501):
            publisher.send(stored([number]))
        listener.wait(list(range(1, 501)))
    assert listener.feed.counts == FeedCounts(batches=500) and listener.feed.counts.complete


def test_a_gap_is_mended_from_the_replay_buffer(listener: Listener) -> None:
    with Publisher(listener.feed.server_option()) as publisher:
        publisher.send(stored([1]))
        publisher.lose(stored([2]))
        publisher.lose(stored([3]))
        publisher.send(stored([4]))
        publisher.send(stored([5]))
        listener.wait([1, 2, 3, 4, 5])
    assert listener.feed.counts == FeedCounts(batches=5, replayed=2) and listener.feed.counts.complete


def test_what_was_lost_before_the_first_message_is_found_too(listener: Listener) -> None:
    with Publisher(listener.feed.server_option()) as publisher:
        publisher.lose(stored([1]))
        publisher.send(stored([2]))
        listener.wait([1, 2])
    assert listener.feed.counts.replayed == 1


def test_a_gap_that_vllm_has_forgotten_is_counted(listener: Listener) -> None:
    with Publisher(listener.feed.server_option()) as publisher:
        publisher.lose(stored([1]))
        publisher.lose(stored([2]))
        publisher.forget()
        publisher.lose(stored([3]))
        publisher.send(stored([4]))
        listener.wait([3, 4])
        assert (listener.feed.counts.missed, listener.feed.counts.replayed) == (2, 1)
        assert not listener.feed.counts.complete
        publisher.send(stored([5]))
        listener.wait([3, 4, 5])
        assert listener.feed.counts.missed == 2  # said once


def test_a_publisher_that_begins_again_is_told(listener: Listener) -> None:
    with Publisher(listener.feed.server_option()) as publisher:
        publisher.send(stored([1]))
        publisher.send(stored([2]))
        publisher.send(stored([3]))
        publisher.begin_again()
        publisher.lose(stored([4]))
        publisher.send(stored([5]))
        listener.wait([1, 2, 3, 4, 5])
    assert (listener.restarted, listener.feed.counts) == ([0], FeedCounts(batches=5, replayed=1, restarts=1))


def test_without_a_port_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise zmq.ZMQError(errno.EADDRINUSE)

    monkeypatch.setattr(zmq.Socket, "bind_to_random_port", refuse)
    with pytest.raises(ConfigError, match="No port") as caught:
        EventFeed(lambda batch: None)
    assert caught.value.remedy


def test_garbage_is_counted_and_survived(listener: Listener) -> None:
    with Publisher(listener.feed.server_option()) as publisher:
        publisher.send(stored([1]))
        publisher.garbage(b"\xc1")
        publisher.garbage(packed(CLEARED), sequence=b"")
        publisher.garbage(packed(CLEARED), sequence=(LAST_SEQUENCE + 1).to_bytes(8, "big"))
        publisher.garbage(packed(CLEARED, rank=1))  # there is only one rank
        publisher.send_raw(b"kv")
        publisher.send_raw(b"kv", b"", b"", b"")
        publisher.send_raw(b"another topic", bytes(8), packed(CLEARED))
        publisher.send(stored([2]), {"type": "?"})
        listener.wait([1, 2])
    assert listener.feed.counts == FeedCounts(batches=2, malformed=7)


def test_what_goes_wrong_with_one_batch_does_not_end_the_thread() -> None:
    taken: list[EventBatch] = []

    def take(batch: EventBatch) -> None:
        if not taken:
            taken.append(batch)
            raise RuntimeError("the first one fails")
        taken.append(batch)

    feed = EventFeed(take)
    with Publisher(feed.server_option()) as publisher:
        publisher.send(stored([1]))
        publisher.send(stored([2]))
        eventually(lambda: len(taken) == 2)
    feed.close()
    assert feed.counts.malformed == 1


def test_every_rank_has_a_port_and_a_sequence_of_its_own() -> None:
    listener = Listener(ranks=2)
    option = listener.feed.server_option()
    assert "replay_endpoint" not in option  # vLLM would move its port, and nobody keeps the next one free
    with Publisher(option) as first, Publisher(option, rank=1) as second:
        first.send(stored([1]))
        listener.wait([1])
        second.send(stored([2]))
        listener.wait([1, 2])
        second.lose(stored([3]))
        second.send(stored([4]))
        listener.wait([1, 2, 4])
    listener.feed.close()
    assert [batch.rank for batch in listener.batches] == [0, 1, 1]
    assert (listener.feed.counts.missed, listener.feed.counts.restarts) == (1, 0)


def test_closing_gives_the_port_back(listener: Listener) -> None:
    listener.feed.close()
    listener.feed.close()
    other = Listener()
    assert not listener.feed._thread.is_alive()
    other.feed.close()
