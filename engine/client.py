"""Streamed requests to an OpenAI-compatible server, timed at low cost.

No SDK here: parsing one token costs tens of microseconds, because on a small machine the
client's own work changes what it measures. Nothing is retried, and no pool caps the users.
Times are seconds of ``time.perf_counter``.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from engine.answer import AnswerRecorder, OnText
from engine.config import Endpoint
from engine.errors import ConfigError, RequestRejected
from engine.fetch import (
    CONNECT_TIMEOUT_S,
    CONNECTION_BROKE,
    MAX_ERROR_BYTES,
    STILL_RUNNING,
    check_url,
    read_bounded,
    rejection,
    unreachable,
)
from engine.metrics import RequestTrace
from engine.sse import EventParser, EventTooLarge

REQUEST_TIMEOUT_S = 600.0
IDLE_TIMEOUT_S = 120.0
MAX_RESPONSE_BYTES = 64 << 20
CANCEL_POLL_S = 0.05
# uvicorn closes a connection that was idle for 5 s: a request must not go out on one that is about to be closed.
KEEP_ALIVE_S = 3.0
# Engines that close the stream after the usage, without ``[DONE]``.
WITHOUT_END_MARK = frozenset({"transformers"})
NO_TIMERS = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)

OnIndexedText = Callable[[int, str, float], None]


@dataclass(frozen=True)
class CompletionRequest:
    """A prompt (text or token ids) for ``/v1/completions``, or messages for ``/v1/chat/completions``.

    ``ignore_eos`` (vLLM) forces exactly ``max_tokens`` tokens; fewer then count as interrupted. ``extra`` are fields
    that only one engine knows; ``length_forced`` says that they make every answer ``max_tokens`` long.
    """

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int = 128
    ignore_eos: bool = False
    length_forced: bool = False
    temperature: float = 0.0
    top_p: float | None = None
    seed: int | None = None
    extra: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise ConfigError("A request needs a prompt or messages, not both.")
        if not (self.prompt or self.messages):
            raise ConfigError("The prompt is empty.", "Write something for the model to continue.")
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}.", "Use at least 1.")

    @property
    def path(self) -> str:
        return "/chat/completions" if self.messages is not None else "/completions"

    @property
    def expected_tokens(self) -> int | None:
        return self.max_tokens if self.ignore_eos or self.length_forced else None

    def body(self, model: str) -> dict[str, Any]:
        """The JSON to send; extensions and optional fields only where they were asked for."""
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= {"prompt": self.prompt} if self.messages is None else {"messages": self.messages}
        optional = {"top_p": self.top_p, "seed": self.seed, "ignore_eos": self.ignore_eos or None}
        return body | {name: value for name, value in optional.items() if value is not None} | dict(self.extra or {})


async def stream(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    request: CompletionRequest,
    on_text: OnText | None = None,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
    idle_timeout_s: float = IDLE_TIMEOUT_S,
) -> RequestTrace:
    """Send one request and time its answer. Whatever the server does is in the trace, never raised.

    ``on_text(text, perf_counter_seconds)`` runs inside the event loop, so it must be quick.
    """
    recorder = AnswerRecorder(request.expected_tokens, on_text)
    await stream_into(recorder, session, endpoint, request, timeout_s, idle_timeout_s)
    return recorder.trace()


def run_concurrently(
    endpoint: Endpoint,
    requests: Sequence[CompletionRequest],
    on_text: OnIndexedText | None = None,
    cancel: threading.Event | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
    idle_timeout_s: float = IDLE_TIMEOUT_S,
) -> list[RequestTrace]:
    """Send all requests at once and wait for all; traces in the order of the requests.

    Blocks, on an event loop of its own. Setting ``cancel`` ends it within a tenth of a second:
    what had arrived is kept, and unfinished requests are marked interrupted.
    """
    return asyncio.run(_run_all(endpoint, requests, on_text, cancel, timeout_s, idle_timeout_s))


def new_session() -> aiohttp.ClientSession:
    """A session without a cap on connections and without waiting for compressed data."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        trace_configs=[_sending_marks()],
        headers={"Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _sending_marks() -> aiohttp.TraceConfig:
    """A request on an open connection is sent when its bytes go out.

    Before Python 3.12 aiohttp leaves that to the next turn of the event loop: of 200 requests begun at once, the first
    would seem to have waited for the other 199. Where a connection has to be opened, that is part of the request, which
    began before it.
    """

    async def reused(_: aiohttp.ClientSession, context: Any, __: object) -> None:
        context.reused = True

    async def sent(_: aiohttp.ClientSession, context: Any, __: object) -> None:
        if getattr(context, "reused", False):
            context.reused = False
            context.trace_request_ctx.mark_sent()

    marks = aiohttp.TraceConfig()
    marks.on_connection_reuseconn.append(reused)
    marks.on_request_chunk_sent.append(sent)
    return marks


async def stream_into(
    recorder: AnswerRecorder,
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    request: CompletionRequest,
    timeout_s: float,
    idle_timeout_s: float,
) -> None:
    """As ``stream``, into a recorder that others may look at meanwhile."""
    url = f"{endpoint.base_url}{request.path}"
    body = json.dumps(request.body(endpoint.model)).encode()
    headers = endpoint.headers | {"Content-Type": "application/json"}
    recorder.mark_sent()
    try:
        async with (
            _time_limits(recorder, timeout_s, idle_timeout_s),
            session.post(
                url, data=body, headers=headers, timeout=NO_TIMERS, allow_redirects=False, trace_request_ctx=recorder
            ) as response,
        ):
            await _read_answer(recorder, response, endpoint.engine in WITHOUT_END_MARK)
    except TimeoutError:
        waited_s = time.perf_counter() - recorder.sent_s
        recorder.fail(f"The server sent nothing more; given up after {waited_s:.1f} s.", "It may hang: restart it.")
    except (aiohttp.ClientConnectorError, ValueError) as error:  # ValueError: no usable address or key
        lost = unreachable(url, error)
        recorder.refuse(RequestRejected(lost.cause, lost.remedy))
    except (aiohttp.ClientError, OSError):
        recorder.fail(CONNECTION_BROKE, STILL_RUNNING)
    finally:
        recorder.ended_s = time.perf_counter()


@asynccontextmanager
async def _time_limits(recorder: AnswerRecorder, timeout_s: float, idle_timeout_s: float) -> AsyncIterator[None]:
    """TimeoutError after ``timeout_s``, or when nothing is read for ``idle_timeout_s``.

    aiohttp's own timers cost a tenth of the work per token: it sets and cancels one with every read.
    This one wakes up when the limit may be reached, and looks when the last read was.
    """
    recorder.last_read_s = time.perf_counter()
    end_s = recorder.last_read_s + timeout_s
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def check() -> None:
        nonlocal timer
        left_s = min(end_s, recorder.last_read_s + idle_timeout_s) - time.perf_counter()
        if left_s <= 0:
            limit.reschedule(loop.time())
        else:
            timer = loop.call_later(left_s, check)

    async with asyncio.timeout(None) as limit:
        check()
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()


async def _read_answer(recorder: AnswerRecorder, response: aiohttp.ClientResponse, unmarked: bool) -> None:
    """``unmarked``: the engine sends no end mark, so a finish reason and the usage are the end."""
    if response.status != 200:
        body, _ = await read_bounded(response.content, MAX_ERROR_BYTES)
        recorder.refuse(rejection(response.status, body, response.headers.get("Location", "")))
        return
    if response.content_type in ("application/json", "text/html"):
        await _read_unstreamed(recorder, response)
        return
    await _read_events(recorder, response.content)
    whole = unmarked and bool(recorder.finish_reason and recorder.usage)
    if recorder.error is None and not (recorder.done or whole):
        recorder.fail("The answer ended before its end mark.", "Was the server stopped?")


async def _read_events(recorder: AnswerRecorder, content: aiohttp.StreamReader) -> None:
    parser = EventParser()
    size = 0
    try:
        while read := await content.readany():
            now_s = recorder.last_read_s = time.perf_counter()
            for event in parser.feed(read):
                if recorder.take(event, now_s):
                    return
            size += len(read)
            if size > MAX_RESPONSE_BYTES:
                recorder.fail(f"The answer is longer than {MAX_RESPONSE_BYTES >> 20} MiB.")
                return
        for event in parser.close():
            if recorder.take(event, time.perf_counter()):
                return
    except EventTooLarge:
        recorder.fail("The server sent one event of more than 1 MiB.")


async def _read_unstreamed(recorder: AnswerRecorder, response: aiohttp.ClientResponse) -> None:
    """Status 200 without a stream: an error object, or a server that can't stream."""
    body, _ = await read_bounded(response.content, MAX_ERROR_BYTES)
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and value.get("error"):
        recorder.refuse(rejection(response.status, body))
        return
    recorder.refuse(
        RequestRejected("The server didn't stream its answer.", "Check the base URL, or use a server that can.", 200)
    )


async def _run_all(
    endpoint: Endpoint,
    requests: Sequence[CompletionRequest],
    on_text: OnIndexedText | None,
    cancel: threading.Event | None,
    timeout_s: float,
    idle_timeout_s: float,
) -> list[RequestTrace]:
    check_url(endpoint.base_url)
    recorders = [AnswerRecorder(request.expected_tokens, _indexed(on_text, i)) for i, request in enumerate(requests)]
    async with new_session() as session:
        tasks = [
            asyncio.create_task(stream_into(recorder, session, endpoint, request, timeout_s, idle_timeout_s))
            for recorder, request in zip(recorders, requests, strict=True)
        ]
        try:
            await _wait(tasks, cancel)
        finally:
            for recorder, task in zip(recorders, tasks, strict=True):
                if not task.done():
                    recorder.fail("Cancelled.")
                    task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [recorder.trace() for recorder in recorders]


async def _wait(tasks: list[asyncio.Task[None]], cancel: threading.Event | None) -> None:
    pending: set[asyncio.Task[None]] = set(tasks)
    while pending and not (cancel is not None and cancel.is_set()):
        _, pending = await asyncio.wait(pending, timeout=CANCEL_POLL_S if cancel is not None else None)


def _indexed(on_text: OnIndexedText | None, index: int) -> OnText | None:
    if on_text is None:
        return None
    return lambda text, now_s: on_text(index, text, now_s)
