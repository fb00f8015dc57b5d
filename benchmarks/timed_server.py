"""A server whose timings are known, light enough for a thousand streams: ``/v1/completions``, one token a chunk.

``python -m benchmarks.timed_server --tokens 50 --gap-ms 100 --ttft-ms 200 --spread-ms 100`` prints its port, answers
the line ``report 60`` with what it really sent to the newest 60 requests (JSON), and ends when its standard input does.
The first token comes between ``ttft`` and ``ttft + spread`` after a request, evenly spread, so that not all streams are
in step. No web framework: at 200 requests in one moment, its own work would be most of what a client measures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any, cast

import uvloop

BACKLOG = 4096
MODEL = "fake-model"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "root": MODEL}]}).encode()
WHOLE = json.dumps({"choices": [{"index": 0, "text": "word", "finish_reason": "length"}]}).encode()
TOKENS = json.dumps({"count": 40, "max_model_len": 2048, "tokens": list(range(100, 140))}).encode()
SPREAD_STEPS = 1009  # a prime: successive requests are far apart


@dataclass
class Answer:
    """When a request came, and when its tokens were written; perf_counter seconds."""

    received_s: float
    writes_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Timing:
    tokens: int
    ttft_s: float
    spread_s: float
    gap_s: float


class Server:
    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.answers: list[Answer] = []
        words = [_chunk(_event(" word", "length" if i == timing.tokens - 1 else None)) for i in range(timing.tokens)]
        usage = {"prompt_tokens": 64, "completion_tokens": timing.tokens, "total_tokens": 64 + timing.tokens}
        end = _chunk(_data({"id": "x", "object": "text_completion", "model": MODEL, "choices": [], "usage": usage}))
        self.words, self.end = words, end + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    def wait_s(self) -> float:
        """Until the first token of the next request."""
        step = len(self.answers) * 431 % SPREAD_STEPS
        return self.timing.ttft_s + self.timing.spread_s * step / SPREAD_STEPS

    def truth(self, requests: int) -> dict[str, Any]:
        whole = [one for one in self.answers[-requests:] if len(one.writes_s) == self.timing.tokens]
        if not whole:
            return {"requests": 0}
        gaps = self.timing.tokens - 1
        return {
            "requests": len(whole),
            "ttft_p50_ms": median((one.writes_s[0] - one.received_s) * 1000 for one in whole),
            "tpot_p50_ms": median((one.writes_s[-1] - one.writes_s[0]) * 1000 / gaps for one in whole),
            "began_s": min(one.received_s for one in whole),
            "ended_s": max(one.writes_s[-1] for one in whole),
            "tokens": len(whole) * self.timing.tokens,
        }


class Connection(asyncio.Protocol):
    """HTTP/1.1 with kept connections, as far as a benchmark needs it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        received_s = time.perf_counter()
        self._read += data
        head, mark, body = self._read.partition(b"\r\n\r\n")
        if not mark or len(body) < _length(head):
            return
        self._read = b""
        if head.startswith(b"POST /v1/completions") and json.loads(body).get("stream"):
            self._begin(received_s)
        elif head.startswith(b"POST /v1/completions"):  # somebody looks whether it lives
            self._reply(b"200 OK", WHOLE)
        elif head.startswith(b"POST /tokenize") and json.loads(body).get("prompt"):
            self._reply(b"200 OK", TOKENS)
        elif head.startswith(b"GET /v1/models"):
            self._reply(b"200 OK", MODELS)
        else:
            self._reply(b"404 Not Found", b"{}")

    def _reply(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)

    def _begin(self, received_s: float) -> None:
        server = self._server
        due_s = received_s + server.wait_s()
        answer = Answer(received_s)
        server.answers.append(answer)
        self._transport.write(STREAM)
        asyncio.get_running_loop().call_later(due_s - time.perf_counter(), self._write, answer, due_s)

    def _write(self, answer: Answer, due_s: float) -> None:
        """One token now, the next when it is due; a late one doesn't shift those after it."""
        if self._transport.is_closing():
            return
        number, server = len(answer.writes_s), self._server
        answer.writes_s.append(time.perf_counter())
        if number + 1 == server.timing.tokens:
            self._transport.write(server.words[number] + server.end)
            return
        self._transport.write(server.words[number])
        due_s += server.timing.gap_s
        wait_s = max(0.0, due_s - time.perf_counter())
        asyncio.get_running_loop().call_later(wait_s, self._write, answer, due_s)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _event(text: str, finish: str | None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return _data({"id": "cmpl-0123456789abcdef", "object": "text_completion", "model": MODEL, "choices": [choice]})


def _data(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(server: Server) -> None:
    """Until standard input ends."""
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=BACKLOG)
    print(listening.sockets[0].getsockname()[1], flush=True)
    over = asyncio.Event()

    def obey() -> None:
        for line in sys.stdin:
            print(json.dumps(server.truth(int(line.removeprefix("report")))), flush=True)
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=obey, daemon=True).start()
    await over.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--ttft-ms", type=float, default=200)
    parser.add_argument("--spread-ms", type=float, default=0)
    parser.add_argument("--gap-ms", type=float, default=20)
    args = parser.parse_args()
    uvloop.run(serve(Server(Timing(args.tokens, args.ttft_ms / 1000, args.spread_ms / 1000, args.gap_ms / 1000))))


if __name__ == "__main__":
    main()
