"""Chat with the running model: turns that survive a page change, streamed on their own thread.

Chat goes through the OpenAI SDK, as a user's program would. What arrives is timed by the same
recorder as every measurement, so the numbers beside a chat mean the same as all others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from engine.client import IDLE_TIMEOUT_S, AnswerRecorder, count_tokens, words_of
from engine.config import Endpoint
from engine.errors import AlreadyRunning, ConfigError, PromptTooLong, RequestRejected
from engine.fetch import (
    CONNECT_TIMEOUT_S,
    CONNECTION_BROKE,
    NO_TEMPLATE_CAUSE,
    STILL_RUNNING,
    cause_of,
    message_of,
    rejection,
    remedy_for,
    unreachable,
)
from engine.metrics import RequestTrace
from engine.sse import joined

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)
MAX_TOKENS = 1_000_000
MAX_SESSIONS = 64
STOP_TIMEOUT_S = 5.0

OnEvent = Callable[[dict[str, Any], float], object]


class TurnStatus(StrEnum):
    """How far a turn came. Compare with ``==``."""

    STREAMING = "streaming"
    DONE = "done"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class ChatOptions:
    """Sampling settings and the system prompt (empty: none)."""

    system: str = ""
    temperature: float = 0.7
    top_p: float = 1.0
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 2:
            raise ConfigError(f"temperature is {self.temperature}.", "Use 0 to 2.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}.", "Use more than 0 and at most 1.")
        if not 1 <= self.max_tokens <= MAX_TOKENS:
            raise ConfigError(f"max_tokens is {self.max_tokens}.", f"Use 1 to {MAX_TOKENS}.")


@dataclass(frozen=True)
class Turn:
    """What one side said. The counters are those of an answer, up to date while it streams.

    ``tokens_so_far`` is the server's count (None while it sends none), ``context_used`` is
    prompt plus answer in tokens, times are milliseconds except ``elapsed_s``.
    """

    role: str
    text: str
    trace: RequestTrace | None = None
    status: TurnStatus = TurnStatus.DONE
    error: str | None = None
    context_used: int | None = None
    ttft_ms: float | None = None
    tokens_so_far: int | None = None
    gaps_ms: tuple[float, ...] = ()
    elapsed_s: float | None = None
    reasoning: str = ""


@dataclass(frozen=True)
class ChatSnapshot:
    """A conversation at one moment; ``error`` is that of its last turn."""

    turns: tuple[Turn, ...] = ()
    streaming: bool = False
    error: str | None = None


@dataclass
class _LiveTurn:
    """The answer that is arriving: written by the turn's thread, read by any."""

    prompt_tokens: int | None
    recorder: AnswerRecorder = field(default_factory=lambda: AnswerRecorder(None, None))
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)

    def take(self, event: dict[str, Any], now_s: float) -> None:
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            self.content.append(words_of(delta.get("content")))
            self.reasoning.append(words_of(delta.get("reasoning") or delta.get("reasoning_content")))
        self.recorder.take_event(event, now_s)

    def turn(self) -> Turn:
        """As it is now, still streaming."""
        times = self.recorder.times_s[:]
        return Turn(
            role="assistant",
            text=joined(self.content),
            status=TurnStatus.STREAMING,
            context_used=self._context_used(),
            ttft_ms=(times[0] - self.recorder.sent_s) * 1000 if times else None,
            tokens_so_far=self.recorder.output_tokens,
            gaps_ms=tuple((after - before) * 1000 for before, after in pairwise(times)),
            elapsed_s=time.perf_counter() - self.recorder.sent_s,
            reasoning=joined(self.reasoning),
        )

    def finished(self, status: TurnStatus) -> Turn:
        """As it stays."""
        trace = self.recorder.trace()
        failure = None if status == TurnStatus.STOPPED else trace.failure()
        return Turn(
            role="assistant",
            text=joined(self.content),
            trace=trace,
            status=status,
            error=str(failure) if failure else None,
            context_used=self._context_used(),
            ttft_ms=trace.ttft_ms,
            tokens_so_far=trace.output_tokens,
            gaps_ms=trace.itl_ms,
            elapsed_s=(trace.ended_s or time.perf_counter()) - trace.sent_s,
            reasoning=joined(self.reasoning),
        )

    def status(self, stopped: bool) -> TurnStatus:
        if stopped:
            return TurnStatus.STOPPED
        if self.recorder.trace().ok:
            return TurnStatus.DONE
        return TurnStatus.INTERRUPTED if self.recorder.texts else TurnStatus.FAILED

    def _context_used(self) -> int | None:
        prompt = self.recorder.prompt_tokens or self.prompt_tokens
        answer = self.recorder.output_tokens
        return None if prompt is None or answer is None else prompt + answer


class ChatSession:
    """One conversation. Any thread may call any method; one answer streams at a time."""

    def __init__(self, before_turn: Callable[[], None] = lambda: None) -> None:
        self._before_turn = before_turn
        self._lock = threading.Lock()
        self._turns: list[Turn] = []
        self._live: _LiveTurn | None = None
        self._busy = False
        self._stop = threading.Event()
        self._cancel: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        self._thread: threading.Thread | None = None

    def send(self, endpoint: Endpoint, text: str, options: ChatOptions | None = None) -> None:
        """Send a message; the answer streams in the background.

        Raises before anything is sent: ConfigError (empty, or max_tokens can't fit), PromptTooLong,
        AlreadyRunning, RequestRejected (no chat template), ServerNotReady.
        """
        options = options or ChatOptions()
        if not text.strip():
            raise ConfigError("The message is empty.", "Write something first.")
        self._reserve()
        try:
            self._before_turn()
            messages = self._messages(text, options)
            vllm, prompt_tokens = check_fits(endpoint, messages, options.max_tokens)
        except BaseException:
            with self._lock:
                self._busy = False
            raise
        self._begin(endpoint, text, request_body(endpoint, messages, options, live_usage=vllm), prompt_tokens)

    def stop(self) -> None:
        """End the running answer and keep what arrived; nothing to do when none runs."""
        with self._lock:
            self._stop.set()
            if self._cancel is not None:
                loop, task = self._cancel
                loop.call_soon_threadsafe(task.cancel)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the running answer; False if it still runs after ``timeout_s``."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return not self._busy

    def clear(self) -> None:
        """Forget the conversation, stopping a running answer first."""
        self.stop()
        self.wait(STOP_TIMEOUT_S)
        with self._lock:
            self._turns = []
            if self._live is not None:  # it doesn't end: go on without it
                self._live, self._cancel, self._busy = None, None, False

    @property
    def busy(self) -> bool:
        """Whether an answer is being asked for or written."""
        return self._busy

    def snapshot(self) -> ChatSnapshot:
        with self._lock:
            turns = tuple(self._turns)
            live = self._live
        if live is not None:
            return ChatSnapshot((*turns, live.turn()), streaming=True)
        return ChatSnapshot(turns, error=turns[-1].error if turns else None)

    def _reserve(self) -> None:
        with self._lock:
            if self._busy:
                raise AlreadyRunning("An answer is still being written.", "Wait for it, or stop it.")
            self._busy = True
            self._stop.clear()

    def _begin(self, endpoint: Endpoint, text: str, body: dict[str, Any], prompt_tokens: int | None) -> None:
        live = _LiveTurn(prompt_tokens)
        thread = threading.Thread(target=self._run, args=(live, endpoint, body), name="chat-turn", daemon=True)
        with self._lock:
            self._turns.append(Turn("user", text))
            self._live = live
            self._thread = thread
        thread.start()

    def _messages(self, text: str, options: ChatOptions) -> list[dict[str, Any]]:
        """The conversation so far, without questions that got no answer, and the new message."""
        with self._lock:
            turns = tuple(self._turns)
        messages = [{"role": "system", "content": options.system}] if options.system.strip() else []
        for question, answer in zip(turns[::2], turns[1::2], strict=True):
            if answer.text:
                messages += [{"role": turn.role, "content": turn.text} for turn in (question, answer)]
        return [*messages, {"role": "user", "content": text}]

    def _run(self, live: _LiveTurn, endpoint: Endpoint, body: dict[str, Any]) -> None:
        stopped = False
        try:
            asyncio.run(self._stream(live, endpoint, body))
        except asyncio.CancelledError:
            stopped = True
        except Exception:
            logger.exception("A chat turn failed in an unexpected way")
            live.recorder.fail("The answer couldn't be read.", "The lab's log says more.")
        finally:
            live.recorder.ended_s = live.recorder.ended_s or time.perf_counter()
            with self._lock:
                if self._live is live:
                    self._live, self._cancel, self._busy = None, None, False
                    self._turns.append(live.finished(live.status(stopped)))

    async def _stream(self, live: _LiveTurn, endpoint: Endpoint, body: dict[str, Any]) -> None:
        task = asyncio.current_task()
        assert task is not None  # a coroutine under asyncio.run always has one
        with self._lock:
            if self._live is live:
                self._cancel = (asyncio.get_running_loop(), task)
            if self._stop.is_set():
                task.cancel()
        await asyncio.sleep(0)  # a stop pressed before this point ends it here
        async with sdk_client(endpoint, live.recorder.mark_sent) as client:
            await stream_with_sdk(client, live.recorder, body, live.take)


class ChatRegistry:
    """The conversations of all viewers, the least recently used dropped beyond ``max_sessions``."""

    def __init__(self, max_sessions: int = MAX_SESSIONS, before_turn: Callable[[], None] = lambda: None) -> None:
        """``before_turn`` is called before every turn, and what it raises refuses the turn."""
        self._max_sessions, self._before_turn = max_sessions, before_turn
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, ChatSession] = OrderedDict()

    def get(self, session_id: str) -> ChatSession:
        """The conversation of this id, made on first use."""
        with self._lock:
            session = self._sessions.pop(session_id, None) or ChatSession(self._before_turn)
            self._sessions[session_id] = session
            dropped = [self._sessions.popitem(last=False)[1] for _ in range(len(self._sessions) - self._max_sessions)]
        for old in dropped:
            old.stop()
        return session

    def streaming(self) -> bool:
        """Whether any answer is being written."""
        with self._lock:
            sessions = list(self._sessions.values())
        return any(session.busy for session in sessions)

    def close(self) -> None:
        """Stop every running answer."""
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.stop()
        for session in sessions:
            session.wait(STOP_TIMEOUT_S)


def check_fits(endpoint: Endpoint, messages: list[dict[str, Any]], max_tokens: int) -> tuple[bool, int | None]:
    """Whether the server is a vLLM, and the prompt's length in tokens (None: it can't count).

    Raises PromptTooLong or ConfigError when prompt and answer can't fit into the context,
    RequestRejected for a model without a chat template, ServerNotReady when nothing answers.
    """
    limit, prompt_tokens, vllm = endpoint.max_model_len, None, False
    try:
        counted = count_tokens(endpoint, messages)
    except RequestRejected as error:
        if error.cause == NO_TEMPLATE_CAUSE:
            raise
    else:
        vllm = counted.max_model_len is not None
        prompt_tokens = len(counted.ids) or None  # llama.cpp answers an empty list to this request
        limit = limit or counted.max_model_len
    if limit is not None:
        _check_room(prompt_tokens or 1, max_tokens, limit)
    return vllm, prompt_tokens


def _check_room(prompt_tokens: int, max_tokens: int, limit: int) -> None:
    room = limit - prompt_tokens
    if prompt_tokens + max_tokens <= limit:
        return
    if max_tokens >= limit:
        raise ConfigError(
            f"max_tokens ({max_tokens}) doesn't fit into the context of {limit} tokens.",
            f"Use at most {room}." if room > 0 else "Lower it, and shorten the message or clear the chat.",
        )
    lower = f", or lower max_tokens to {room}" if room > 0 else ""
    raise PromptTooLong(
        f"The conversation has {prompt_tokens} tokens; with max_tokens {max_tokens} that is more than "
        f"max_model_len ({limit}).",
        f"Shorten the message, clear the chat{lower}.",
    )


def request_body(
    endpoint: Endpoint, messages: list[dict[str, Any]], options: ChatOptions, *, live_usage: bool
) -> dict[str, Any]:
    """Arguments for the SDK. ``live_usage`` (vLLM only) asks for the token count with every chunk."""
    usage = {"include_usage": True} | ({"continuous_usage_stats": True} if live_usage else {})
    return {
        "model": endpoint.model,
        "messages": messages,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_tokens": options.max_tokens,
        "stream": True,
        "stream_options": usage,
    }


def sdk_client(endpoint: Endpoint, on_send: Callable[[], None] | None = None) -> openai.AsyncOpenAI:
    """An OpenAI client that retries nothing, follows no redirect and reads no proxy settings.

    ``on_send`` is called when a request goes to the network: what the SDK does before isn't waiting for a server.
    """
    import openai  # here, because it takes a second and most sessions never chat

    async def hook(_: object) -> None:
        if on_send is not None:
            on_send()

    return openai.AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key or "none",
        max_retries=0,
        timeout=openai.Timeout(IDLE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        http_client=openai.DefaultAsyncHttpxClient(
            follow_redirects=False,
            trust_env=False,
            verify=_ssl_context(),
            limits=openai.DEFAULT_CONNECTION_LIMITS,
            event_hooks={"request": [hook]},
        ),
    )


@cache
def _ssl_context() -> ssl.SSLContext:
    """Made once: reading the certificates costs tens of milliseconds, more than a short answer."""
    import httpx2

    return httpx2.create_ssl_context()


async def stream_with_sdk(
    client: openai.AsyncOpenAI, recorder: AnswerRecorder, body: dict[str, Any], take: OnEvent | None = None
) -> None:
    """One chat completion through the OpenAI SDK; failures end up in the recorder.

    ``take(event, perf_counter_seconds)`` gets every chunk as a dict, ``recorder.take_event`` by default.
    """
    import httpx2
    import openai

    take = take or recorder.take_event
    recorder.sent_s = time.perf_counter()
    try:
        async with await client.chat.completions.create(**body) as chunks:
            async for chunk in chunks:
                now_s = time.perf_counter()
                take(chunk.model_dump(warnings=False), now_s)
    except openai.APIStatusError as error:
        recorder.refuse(rejection(error.status_code, error.response.content))
    except openai.APITimeoutError:
        recorder.fail("The server didn't answer in time.", "It may hang: restart it.")
    except openai.APIConnectionError as error:
        if isinstance(error.__cause__, httpx2.ConnectError):
            lost = unreachable(str(client.base_url), error.__cause__)
            recorder.refuse(RequestRejected(lost.cause, lost.remedy))
        else:
            recorder.fail(CONNECTION_BROKE, STILL_RUNNING)
    except openai.APIError as error:
        message = message_of(error.body) if error.body else error.message
        recorder.fail(cause_of(message, None), remedy_for(message, None))
    except json.JSONDecodeError:
        recorder.fail("The server sent an event that isn't JSON.")
    except httpx2.HTTPError:
        recorder.fail(CONNECTION_BROKE, STILL_RUNNING)
    finally:
        recorder.ended_s = time.perf_counter()
