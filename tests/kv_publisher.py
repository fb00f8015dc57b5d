"""vLLM's side of the KV event stream, with faults on demand: a PUB that connects, and a ROUTER that replays.

Sockets and frames are those of ``ZmqEventPublisher`` in ``vllm/distributed/kv_events.py``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any, Self

import msgspec
import zmq

END = (-1).to_bytes(8, "big", signed=True)


def stored(hashes: Sequence[Any], parent: Any = None, size: int = 4, **more: Any) -> dict[str, Any]:
    """A BlockStored as 0.32 sends it; the token ids are 100 times the hash's number, and so on."""
    tokens = [number for one in hashes for number in range(token_of(one), token_of(one) + size)]
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
    } | more


def removed(*hashes: Any, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0} | more


CLEARED = {"type": "AllBlocksCleared"}


def token_of(block_hash: Any) -> int:
    return 100 * (block_hash if isinstance(block_hash, int) else block_hash[-1])


def packed(*events: Any, unix_s: float = 1000.0, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([unix_s, list(events), rank])


class Publisher:
    """``option`` is the value of ``--kv-events-config``. Everything sent or lost can be replayed until ``forget``."""

    def __init__(self, option: str, rank: int = 0) -> None:
        config = json.loads(option)
        self._topic = config["topic"].encode()
        self._rank = rank
        self._sequence = 0
        self._buffer: dict[int, bytes] = {}
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)  # as a PUB, but it tells when somebody subscribes
        host, port = config["endpoint"].rsplit(":", 1)
        self._pub.connect(f"{host}:{int(port) + rank}")
        self._closing = threading.Event()
        self._replayer: threading.Thread | None = None
        if config.get("replay_endpoint"):
            self._replayer = threading.Thread(target=self._replay, args=(config["replay_endpoint"],), daemon=True)
            self._replayer.start()
        assert self._pub.poll(10_000), "nobody subscribed"
        self._pub.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        if self._replayer is not None:
            self._replayer.join()
        self._context.destroy(linger=0)

    def send(self, *events: Any, unix_s: float = 1000.0) -> None:
        payload = self._keep(packed(*events, unix_s=unix_s, rank=self._rank))
        self.send_raw(self._topic, (self._sequence - 1).to_bytes(8, "big"), payload)

    def lose(self, *events: Any, unix_s: float = 1000.0) -> None:
        """Number a batch and keep it for replay, but never send it."""
        self._keep(packed(*events, unix_s=unix_s, rank=self._rank))

    def send_raw(self, *frames: bytes) -> None:
        self._pub.send_multipart(frames)

    def garbage(self, payload: bytes, sequence: bytes | None = None) -> None:
        """A message on the topic with this payload, under a number that is not counted."""
        self.send_raw(self._topic, self._sequence.to_bytes(8, "big") if sequence is None else sequence, payload)

    def forget(self) -> None:
        """As when the replay buffer is full: what was sent so far can't be had again."""
        self._buffer.clear()

    def begin_again(self) -> None:
        self._sequence = 0
        self._buffer.clear()

    def _keep(self, payload: bytes) -> bytes:
        self._buffer[self._sequence] = payload
        self._sequence += 1
        return payload

    def _replay(self, address: str) -> None:
        router = self._context.socket(zmq.ROUTER)
        router.bind(address)
        while not self._closing.is_set():
            if not router.poll(20):
                continue
            client, _, start = router.recv_multipart()
            for sequence, payload in sorted(self._buffer.items()):
                if sequence >= int.from_bytes(start, "big"):
                    router.send_multipart((client, b"", self._topic, sequence.to_bytes(8, "big"), payload))
            router.send_multipart((client, b"", b"", END, b""))
            time.sleep(0)
        router.close(linger=0)
