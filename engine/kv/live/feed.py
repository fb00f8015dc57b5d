"""Receives the KV events of one server: a socket it connects to, a thread that reads it, and gaps mended by replay.

vLLM's publisher *connects* to a plain host and port, so this side binds, before the server starts. A bound SUB socket
sends its subscription only while it is polled: the thread polls from the first moment to the last. vLLM adds the
data-parallel rank to the port, so every rank gets one. A replay is asked for by a DEALER: a REQ socket takes only
one reply. It goes through an abstract Unix socket, which no other program can take before vLLM binds it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import zmq

from engine.errors import ConfigError
from engine.kv.live.events import EventBatch, MalformedBatch, decode

logger = logging.getLogger(__name__)
HOST = "tcp://127.0.0.1"
TOPIC = "kv"
POLL_MS = 200
REPLAY_WAIT_S = 2.0
# Batches that wait in the socket while a replay is read; more than any burst of steps in that time.
WAITING_BATCHES = 10_000
MAX_MESSAGE_BYTES = 16 << 20
BIND_TRIES = 20
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
# A message with a higher number is garbage: at a million batches a second it takes nine years to get there.
LAST_SEQUENCE = 2**48

TakeBatch = Callable[[EventBatch], None]


@dataclass(frozen=True)
class FeedCounts:
    """What came. ``batches`` were taken; of the ones that got lost on the way ``replayed`` came after all.

    ``missed`` did not, ``malformed`` messages or events could not be read, and ``restarts`` of a publisher left
    unknown what was before.
    """

    batches: int = 0
    replayed: int = 0
    missed: int = 0
    malformed: int = 0
    restarts: int = 0

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing."""
        return not (self.missed or self.malformed or self.restarts)


class EventFeed:
    """Reads from its creation until ``close``; ``take`` is called with every batch, on the feed's thread.

    ``restarted(rank)`` is called when a publisher begins again. Raises ConfigError where no port can be had.
    """

    def __init__(self, take: TakeBatch, restarted: Callable[[int], None] = lambda rank: None, ranks: int = 1) -> None:
        self._take, self._restarted, self._ranks = take, restarted, ranks
        self._replay_address = f"ipc://@vllm-lab-{secrets.token_hex(8)}" if ranks == 1 else None
        self._counts = FeedCounts()
        self._next: dict[int, int] = {}
        self._closing = threading.Event()
        self._context = zmq.Context()
        try:
            self._sub = _subscriber(self._context)
            self.port = _bind_in_a_row(self._sub, ranks)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(f"No port for KV events can be had: {error}.", "Free some ports.") from error
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> FeedCounts:
        return self._counts

    def server_option(self) -> str:
        """The value of vLLM's ``--kv-events-config``."""
        option: dict[str, object] = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": TOPIC}
        option["endpoint"] = f"{HOST}:{self.port}"
        if self._replay_address:
            option["replay_endpoint"] = self._replay_address
        return json.dumps(option, separators=(",", ":"))

    def close(self) -> None:
        """Stop reading and give the port back. Safe to call twice."""
        self._closing.set()
        self._thread.join()

    # -- on the feed's thread

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                if self._sub.poll(POLL_MS):
                    self._receive(self._sub.recv_multipart())
            except Exception:  # whatever comes in must not end the thread
                logger.exception("A KV event could not be taken")
                self._add(malformed=1)
        self._context.destroy(linger=0)

    def _receive(self, frames: list[bytes]) -> None:
        message = self._read(frames[1:]) if len(frames) == 3 else None
        if message is None:
            self._add(malformed=1)
            return
        sequence, batch = message
        expected = self._next.get(batch.rank, 0)
        self._next[batch.rank] = sequence + 1
        if sequence < expected:  # on one connection they come in order: this is a new publisher
            self._add(restarts=1)
            self._restarted(batch.rank)
            expected = 0
        if sequence > expected:
            self._mend(expected, sequence)
        self._hand_on(batch)

    def _read(self, frames: list[bytes]) -> tuple[int, EventBatch] | None:
        """Sequence number and batch; None for what is neither."""
        sequence = int.from_bytes(frames[0], "big")
        if len(frames[0]) != 8 or sequence > LAST_SEQUENCE:
            return None
        with contextlib.suppress(MalformedBatch):
            batch = decode(frames[1])
            return (sequence, batch) if batch.rank < self._ranks else None
        return None

    def _mend(self, first: int, end: int) -> None:
        """Get the batches ``first`` to ``end - 1`` of a gap again, as far as vLLM still has them."""
        wanted, found = first, 0
        with contextlib.suppress(zmq.ZMQError), contextlib.closing(self._replay(first)) as replay:
            for sequence, batch in replay:
                if sequence >= end:
                    break
                if sequence >= wanted:
                    self._hand_on(batch)
                    wanted, found = sequence + 1, found + 1
        self._add(replayed=found, missed=end - first - found)

    def _replay(self, first: int) -> Generator[tuple[int, EventBatch]]:
        """Everything from ``first`` on that the publisher of the only rank still has."""
        if self._replay_address is None:
            return
        dealer = self._context.socket(zmq.DEALER)
        try:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            dealer.connect(self._replay_address)
            dealer.send_multipart((b"", first.to_bytes(8, "big")))
            deadline = time.monotonic() + REPLAY_WAIT_S
            while time.monotonic() < deadline and not self._closing.is_set():
                if not dealer.poll(POLL_MS):
                    continue
                frames = dealer.recv_multipart()
                if len(frames) == 4 and frames[2] == END_OF_REPLAY:
                    return
                if len(frames) == 4 and (message := self._read(frames[2:])) is not None:
                    yield message
        finally:
            dealer.close(linger=0)

    def _hand_on(self, batch: EventBatch) -> None:
        self._add(batches=1, malformed=batch.unreadable)
        self._take(batch)

    def _add(self, **more: int) -> None:
        counts = self._counts
        self._counts = replace(counts, **{name: getattr(counts, name) + value for name, value in more.items()})


def _subscriber(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    sub = context.socket(zmq.SUB)
    sub.setsockopt(zmq.RCVHWM, WAITING_BATCHES)
    sub.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    sub.setsockopt(zmq.LINGER, 0)
    sub.setsockopt_string(zmq.SUBSCRIBE, TOPIC)
    return sub


def _bind_in_a_row(sub: zmq.Socket[bytes], ranks: int) -> int:
    """Bind as many free ports as there are ranks, one after the other; the first of them. Raises ZMQError."""
    tries = BIND_TRIES
    while True:
        bound = [sub.bind_to_random_port(HOST)]
        try:
            for port in range(bound[0] + 1, bound[0] + ranks):
                sub.bind(f"{HOST}:{port}")
                bound.append(port)
            return bound[0]
        except zmq.ZMQError:
            tries -= 1
            if not tries:
                raise
            for port in bound:
                sub.unbind(f"{HOST}:{port}")
