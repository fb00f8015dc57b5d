"""A fake OpenAI-compatible server: known timings, and any fault, byte for byte.

In a test: ``with FakeOpenAI() as fake: …; fake.script = Script(…)``. As a process of its own
(so that its CPU time isn't the client's): ``python -m tests.fake_openai --tokens 200 --gap-ms 10``;
it prints its port and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from engine.config import Endpoint

MODEL = "fake-model"
Frame = tuple[float, bytes]
DONE = b"data: [DONE]\n\n"
BACKLOG = 4096


def event(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def text_event(text: str, *, chat: bool = True, finish: str | None = None, **extra: Any) -> bytes:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    choice |= {"delta": {"content": text}} if chat else {"text": text}
    return event(_envelope([choice], chat) | extra)


def delta_event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return event(_envelope([{"index": 0, "delta": delta, "finish_reason": finish}], chat=True))


def usage_event(prompt: int, completion: int, *, chat: bool = True, cached: int | None = None, **extra: Any) -> bytes:
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return event(_envelope([], chat) | {"usage": usage} | extra)


def _envelope(choices: list[dict[str, Any]], chat: bool) -> dict[str, Any]:
    kind = "chat.completion.chunk" if chat else "text_completion"
    return {"id": "cmpl-0123456789abcdef", "object": kind, "created": 1, "model": MODEL, "choices": choices}


@dataclass
class Script:
    """How the next requests are answered.

    Without ``frames`` the answer has ``tokens`` one-token chunks: the first ``ttft_s`` after the request,
    the others ``gap_s`` apart. ``frames`` are (seconds to wait, raw bytes) instead. ``end``: "close" ends
    the answer properly, "cut" breaks the connection, "hang" sends nothing more.
    """

    tokens: int = 10
    ttft_s: float = 0.03
    gap_s: float = 0.01
    prompt_tokens: int = 7
    cached: int | None = None
    finish: str = "length"
    frames: Sequence[Frame] | None = None
    end: str = "close"
    status: int = 200
    content_type: str = "text/event-stream"
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def answer(self, chat: bool) -> Sequence[Frame]:
        if self.frames is not None:
            return self.frames
        role = [(0.0, delta_event({"role": "assistant", "content": ""}))] if chat else []
        last = self.tokens - 1
        texts = [
            (
                self.gap_s if i else self.ttft_s,
                text_event(f"t{i} ", chat=chat, finish=self.finish if i == last else None),
            )
            for i in range(self.tokens)
        ]
        return [
            *role,
            *texts,
            (0.0, usage_event(self.prompt_tokens, self.tokens, chat=chat, cached=self.cached)),
            (0.0, DONE),
        ]


@dataclass
class Sent:
    """What was really sent of one answer: perf_counter seconds of every write."""

    received_s: float
    body: dict[str, Any]
    headers: dict[str, str]
    path: str
    writes_s: list[float] = field(default_factory=list)


class FakeOpenAI:
    """The server on a thread of its own. ``script`` may change between requests."""

    def __init__(self, script: Script | None = None, *, port: int = 0, max_model_len: int | None = 2048) -> None:
        self.script = script or Script()
        self.script_for: Callable[[dict[str, Any]], Script] | None = None
        self.max_model_len = max_model_len
        self.metrics_text: str | None = ""
        self.has_tokenize = True
        self.detokenized: list[list[int]] = []
        self.tokenize_error: tuple[int, bytes] | None = None
        self.sent: list[Sent] = []
        self.port = port
        self.active = 0
        self.most_active = 0
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake-openai", daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def endpoint(self, api_key: str | None = "key") -> Endpoint:
        return Endpoint(self.base_url, MODEL, api_key, self.max_model_len)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(10):
            raise RuntimeError("the fake server didn't start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", self.port, backlog=BACKLOG)
        self._loop.run_until_complete(site.start())
        self.port = runner.addresses[0][1]
        self._started.set()
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(runner.cleanup())
            self._loop.run_until_complete(_cancel_all())
            self._loop.close()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        received_s = time.perf_counter()
        body = await request.json()
        sent = Sent(received_s, body, dict(request.headers), request.path)
        self.sent.append(sent)
        script = self.script_for(body) if self.script_for else self.script
        if script.body is not None:
            return web.Response(
                status=script.status, body=script.body, content_type=script.content_type, headers=script.headers
            )
        if not body.get("stream"):
            return web.json_response(_envelope([{"index": 0, "text": "t", "finish_reason": "length"}], chat=False))
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            return await self._stream(request, script, sent)
        finally:
            self.active -= 1

    async def _stream(self, request: web.Request, script: Script, sent: Sent) -> web.StreamResponse:
        response = web.StreamResponse(status=script.status, headers={"Content-Type": script.content_type})
        response.enable_chunked_encoding()
        await response.prepare(request)
        due_s = sent.received_s
        for wait_s, data in script.answer("chat" in request.path):
            due_s += wait_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            sent.writes_s.append(time.perf_counter())
            await response.write(data)
        if script.end == "hang":
            await asyncio.sleep(3600)
        if script.end == "cut" and request.transport is not None:
            await asyncio.sleep(0.01)  # let what was written arrive first
            request.transport.close()
        else:
            await response.write_eof()
        return response

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model"}
        if self.max_model_len is not None:
            model["max_model_len"] = self.max_model_len
        return web.json_response({"object": "list", "data": [model]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        """One token per word, and per message four for its frame, as a chat template would add."""
        if self.tokenize_error:
            return web.Response(status=self.tokenize_error[0], body=self.tokenize_error[1])
        if not self.has_tokenize:
            raise web.HTTPNotFound
        body = await request.json()
        texts = [message["content"] for message in body["messages"]] if "messages" in body else [body["prompt"]]
        frame = 4 * len(texts) if "messages" in body else 0
        count = sum(len(text.split()) for text in texts) + frame
        value: dict[str, Any] = {"count": count, "tokens": list(range(count))}
        if self.max_model_len is not None:
            value["max_model_len"] = self.max_model_len
        return web.json_response(value)

    async def _detokenize(self, request: web.Request) -> web.Response:
        """A word per token."""
        if not self.has_tokenize:
            raise web.HTTPNotFound
        tokens = (await request.json())["tokens"]
        self.detokenized.append(tokens)
        return web.json_response({"prompt": " ".join(f"w{token}" for token in tokens)})

    async def _metrics(self, _: web.Request) -> web.Response:
        if self.metrics_text is None:
            raise web.HTTPNotFound
        return web.Response(text=self.metrics_text)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--ttft-ms", type=float, default=20)
    parser.add_argument("--gap-ms", type=float, default=10)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    script = Script(tokens=args.tokens, ttft_s=args.ttft_ms / 1000, gap_s=args.gap_ms / 1000)
    with FakeOpenAI(script, port=args.port) as fake:
        print(fake.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
