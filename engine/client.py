"""Streamed requests to an OpenAI-compatible server, timed at low cost.

No SDK here: parsing one token costs tens of microseconds, because on a small machine the
client's own work changes what it measures. Nothing is retried, and no pool caps the users.
Times are seconds of ``time.perf_counter``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from engine.config import Endpoint
from engine.errors import ConfigError, RequestRejected
from engine.fetch import (
    CONNECT_TIMEOUT_S,
    CONNECTION_BROKE,
    MAX_ERROR_BYTES,
    STILL_RUNNING,
    cause_of,
    check_url,
    fetch,
    message_of,
    parse_json,
    read_bounded,
    rejection,
    remedy_for,
    unreachable,
)
from engine.metrics import RequestTrace, ServerTimings
from engine.sse import EventParser, EventTooLarge, joined

REQUEST_TIMEOUT_S = 600.0
IDLE_TIMEOUT_S = 120.0
MAX_RESPONSE_BYTES = 64 << 20
CANCEL_POLL_S = 0.05
DONE = b"[DONE]"
NO_TIMERS = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)

OnText = Callable[[str, float], None]
OnIndexedText = Callable[[int, str, float], None]


@dataclass(frozen=True)
class CompletionRequest:
    """A prompt (text or token ids) for ``/v1/completions``, or messages for ``/v1/chat/completions``.

    ``ignore_eos`` (vLLM) forces exactly ``max_tokens`` tokens; fewer then count as interrupted. ``extra`` are fields
    that only one engine knows.
    """

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int = 128
    ignore_eos: bool = False
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
        return self.max_tokens if self.ignore_eos else None

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


@dataclass(frozen=True)
class ServedModel:
    """A line of ``/v1/models``; the length is tokens, None where the server doesn't say."""

    id: str
    max_model_len: int | None


@dataclass(frozen=True)
class TokenCount:
    """Token ids of a prompt, and the context they must fit into (None: not said)."""

    ids: list[int]
    max_model_len: int | None


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
    await _stream_into(recorder, session, endpoint, request, timeout_s, idle_timeout_s)
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
        connector=aiohttp.TCPConnector(limit=0),
        headers={"Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def tokenize(
    endpoint: Endpoint,
    messages: list[dict[str, Any]] | None = None,
    prompt: str | None = None,
    *,
    timeout_s: float = 10.0,
) -> list[int]:
    """Token ids of a prompt, or of messages in the model's chat template with the reply's opening.

    Raises RequestRejected where the server has no ``/tokenize`` (status 404) or refuses.
    """
    return count_tokens(endpoint, messages, prompt, timeout_s=timeout_s).ids


def count_tokens(
    endpoint: Endpoint,
    messages: list[dict[str, Any]] | None = None,
    prompt: str | None = None,
    *,
    timeout_s: float = 10.0,
) -> TokenCount:
    """As ``tokenize``, with the length of the context that the server tells along with it."""
    if (messages is None) == (prompt is None):
        raise ConfigError("Give messages or a prompt to tokenize, not both.")
    content: dict[str, Any] = {"prompt": prompt}
    if messages is not None:
        content = {"messages": messages, "add_generation_prompt": True}
    url = f"{endpoint.root_url}/tokenize"
    body = {"model": endpoint.model, **content}
    value = parse_json(fetch("POST", url, headers=endpoint.headers, body=body, timeout_s=timeout_s), url)
    tokens = value.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise RequestRejected("The server's /tokenize sent no token ids.", status=200)
    return TokenCount(tokens, _count(value.get("max_model_len")))


def list_models(base_url: str, api_key: str | None = None, *, timeout_s: float = 10.0) -> list[ServedModel]:
    """What a server serves. Raises ServerNotReady, RequestRejected, or ConfigError for the address."""
    endpoint = Endpoint(base_url, "", api_key)
    url = f"{base_url}/models"
    models = parse_json(fetch("GET", url, headers=endpoint.headers, timeout_s=timeout_s), url).get("data")
    if not isinstance(models, list):
        raise RequestRejected("The server's list of models isn't one.", "Check the base URL.", 200)
    return [
        ServedModel(joined([model["id"]]), _count(model.get("max_model_len")) or None)
        for model in models
        if isinstance(model, dict) and isinstance(model.get("id"), str) and joined([model["id"]])
    ]


def probe_one_token(endpoint: Endpoint, timeout_s: float = 30.0) -> None:
    """Have one token generated: the only proof that the engine lives, ``/health`` says 200 while it hangs.

    Raises ServerNotReady when nothing answers in time, RequestRejected when the answer is an error.
    """
    body = {"model": endpoint.model, "max_tokens": 1, "temperature": 0.0}
    url = f"{endpoint.base_url}/completions"
    reply = fetch("POST", url, headers=endpoint.headers, body=body | {"prompt": "Hello"}, timeout_s=timeout_s)
    if reply.status in (404, 405):  # some servers only chat
        url = f"{endpoint.base_url}/chat/completions"
        messages = [{"role": "user", "content": "Hello"}]
        reply = fetch("POST", url, headers=endpoint.headers, body=body | {"messages": messages}, timeout_s=timeout_s)
    value = parse_json(reply, url)
    choices = value.get("choices")
    if value.get("error") or not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        message = message_of(value["error"]) if value.get("error") else "it sent no choices"
        raise RequestRejected(cause_of(message, None), remedy_for(message, None), reply.status)


def text_of(choice: dict[str, Any]) -> str:
    """Everything the model wrote in one streamed choice: completion, content, reasoning or tool text."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return words_of(choice.get("text"))
    text = delta.get("content")
    if len(delta) == 1 and isinstance(text, str):  # nearly every chunk
        return text
    parts = [text, delta.get("reasoning") or delta.get("reasoning_content"), *_tool_texts(delta.get("tool_calls"))]
    return "".join(map(words_of, parts))


def words_of(content: Any) -> str:
    """The text of a content: as it is, or out of the parts that some servers send; empty for anything else."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


class AnswerRecorder:
    """Collects one answer; becomes a RequestTrace whatever happened.

    Measurements and chat share it, so that both follow the same rules. One thread writes;
    others may read ``times_s`` and ``texts``, which only grow (times first).
    """

    def __init__(self, expected_tokens: int | None, on_text: OnText | None) -> None:
        self.expected_tokens = expected_tokens
        self.on_text = on_text
        self.sent_s = time.perf_counter()
        self.last_read_s = self.sent_s
        self.ended_s: float | None = None
        self.finish_s: float | None = None
        self.times_s: list[float] = []
        self.texts: list[str] = []
        self.usage: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.done = False
        self.error: str | None = None
        self.remedy = ""
        self.rejected = False
        self.status: int | None = None

    def mark_sent(self) -> None:
        self.sent_s = time.perf_counter()

    def take(self, data: bytes, now_s: float) -> bool:
        """One event as it was sent; True when it was the last one wanted."""
        if data == DONE:
            self.done = True
            return True
        try:
            event = json.loads(data.decode())
        except (ValueError, RecursionError):
            return self.fail("The server sent an event that isn't JSON.")
        if not isinstance(event, dict):
            return self.fail("The server sent an event that isn't an object.")
        return self.take_event(event, now_s)

    def take_event(self, event: dict[str, Any], now_s: float) -> bool:
        """One decoded event that arrived at ``now_s``; True when it ends the answer."""
        if event.get("error"):
            message = message_of(event["error"])
            return self.fail(cause_of(message, None), remedy_for(message, None))
        choices = event.get("choices")
        if choices and isinstance(choices, list) and isinstance(choices[0], dict):
            self._take_choice(choices[0], now_s)
        if event.get("usage") and isinstance(event["usage"], dict):
            self.usage = event["usage"]
        if event.get("metrics") and isinstance(event["metrics"], dict):
            self.metrics = event["metrics"]
        return False

    def _take_choice(self, choice: dict[str, Any], now_s: float) -> None:
        text = text_of(choice)
        if text:
            self.times_s.append(now_s)
            self.texts.append(text)
            if self.on_text is not None:
                self.on_text(text, now_s)
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self.finish_reason, self.finish_s = reason, now_s

    @property
    def prompt_tokens(self) -> int | None:
        return _count(self.usage.get("prompt_tokens"))

    @property
    def output_tokens(self) -> int | None:
        return _count(self.usage.get("completion_tokens"))

    def fail(self, cause: str, remedy: str = "") -> bool:
        """The first error counts; what follows is its echo."""
        if self.error is None:
            self.error, self.remedy = cause, remedy
        return True

    def refuse(self, error: RequestRejected) -> None:
        self.rejected, self.status = True, error.status
        self.fail(error.cause, error.remedy)

    def trace(self) -> RequestTrace:
        return RequestTrace(
            sent_s=self.sent_s,
            chunk_times_s=tuple(self.times_s),
            chunk_texts=tuple(self.texts),
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=cached_tokens(self.usage),
            finish_reason=self.finish_reason,
            error=self.error,
            expected_tokens=self.expected_tokens,
            server=server_timings(self.metrics),
            remedy=self.remedy,
            rejected=self.rejected,
            status=self.status,
            ended_s=self.ended_s,
            finish_s=self.finish_s,
        )


async def _stream_into(
    recorder: AnswerRecorder,
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    request: CompletionRequest,
    timeout_s: float,
    idle_timeout_s: float,
) -> None:
    url = f"{endpoint.base_url}{request.path}"
    body = json.dumps(request.body(endpoint.model)).encode()
    headers = endpoint.headers | {"Content-Type": "application/json"}
    recorder.mark_sent()
    try:
        async with (
            _time_limits(recorder, timeout_s, idle_timeout_s),
            session.post(url, data=body, headers=headers, timeout=NO_TIMERS, allow_redirects=False) as response,
        ):
            await _read_answer(recorder, response)
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


async def _read_answer(recorder: AnswerRecorder, response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        body, _ = await read_bounded(response.content, MAX_ERROR_BYTES)
        recorder.refuse(rejection(response.status, body, response.headers.get("Location", "")))
        return
    if response.content_type in ("application/json", "text/html"):
        await _read_unstreamed(recorder, response)
        return
    await _read_events(recorder, response.content)
    if recorder.error is None and not recorder.done:
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
            asyncio.create_task(_stream_into(recorder, session, endpoint, request, timeout_s, idle_timeout_s))
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


def cached_tokens(usage: dict[str, Any]) -> int | None:
    """Prompt tokens taken from the prefix cache (vLLM: ``--enable-prompt-tokens-details``)."""
    details = usage.get("prompt_tokens_details")
    return _count(details.get("cached_tokens")) if isinstance(details, dict) else None


def server_timings(metrics: dict[str, Any]) -> ServerTimings | None:
    """The ``metrics`` object of vLLM's usage chunk; None when there is none."""
    timings = ServerTimings(
        _number(metrics.get("time_to_first_token_ms")),
        _number(metrics.get("queue_time_ms")),
        _number(metrics.get("mean_itl_ms")),
    )
    return timings if timings != ServerTimings() else None


def _tool_texts(calls: Any) -> list[Any]:
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return [function.get(key) for function in functions if isinstance(function, dict) for key in ("name", "arguments")]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with contextlib.suppress(OverflowError):
        return float(value) if math.isfinite(value) else None
    return None
