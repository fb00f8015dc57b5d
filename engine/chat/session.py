"""Conversations that survive a page change: each streams its answers on a thread of its own.

Chat goes through the OpenAI SDK, as a user's program would. What arrives is timed by the same
recorder as every measurement, so the numbers beside a chat mean the same as all others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from engine.chat.request import check_fits, request_body, sdk_client, stream_with_sdk
from engine.chat.saving import Asked, ChatArchive, ChatRun
from engine.chat.turn import ChatOptions, ChatSnapshot, LiveTurn, SaveState, Turn
from engine.config import Endpoint
from engine.errors import AlreadyRunning, ConfigError
from engine.sse import joined

logger = logging.getLogger(__name__)
MAX_SESSIONS = 64
STOP_TIMEOUT_S = 5.0

ExtraFields = Callable[[str], dict[str, Any]]


@dataclass(frozen=True)
class _Job:
    """One answer to be had, and the run that it is saved in."""

    endpoint: Endpoint
    body: dict[str, Any]
    live: LiveTurn
    asked: Asked | None
    saved: ChatRun | None


class ChatSession:
    """One conversation. Any thread may call any method; one answer streams at a time."""

    def __init__(
        self,
        before_turn: Callable[[], None] = lambda: None,
        archive: ChatArchive | None = None,
        extra_fields: ExtraFields = lambda question: {},
    ) -> None:
        """Finished turns are saved in ``archive``, where there is one."""
        self._before_turn, self._archive, self._extra_fields = before_turn, archive, extra_fields
        self._saved = _begun(archive)
        self._lock = threading.Lock()
        self._turns: list[Turn] = []
        self._live: LiveTurn | None = None
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
        text, options = joined([text]), replace(options, system=joined([options.system]))
        if not text.strip():
            raise ConfigError("The message is empty.", "Write something first.")
        self._reserve()
        try:
            self._before_turn()
            messages = self._messages(text, options)
            vllm, prompt_tokens = check_fits(endpoint, messages, options.max_tokens)
            body = request_body(endpoint, messages, options, live_usage=vllm)
            body["extra_body"] = self._extra_fields(text)
            asked = self._archive.asked(endpoint, text, options) if self._archive else None
        except BaseException:
            with self._lock:
                self._busy = False
            raise
        self._begin(text, _Job(endpoint, body, LiveTurn(prompt_tokens), asked, self._saved))

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
        """Begin a new conversation, stopping a running answer first. The saved run of the old one stays."""
        self.stop()
        if self._busy:  # else its thread may be waiting for the store, and needs no waiting for
            self.wait(STOP_TIMEOUT_S)
        with self._lock:
            self._turns, self._saved = [], _begun(self._archive)
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
            saved = self._saved.state() if self._saved else SaveState()
        if live is not None:
            return ChatSnapshot((*turns, live.turn()), streaming=True, saved=saved)
        return ChatSnapshot(turns, error=turns[-1].error if turns else None, saved=saved)

    def _reserve(self) -> None:
        with self._lock:
            if self._busy:
                raise AlreadyRunning("An answer is still being written.", "Wait for it, or stop it.")
            self._busy = True
            self._stop.clear()

    def _begin(self, text: str, job: _Job) -> None:
        thread = threading.Thread(target=self._run, args=(job,), name="chat-turn", daemon=True)
        with self._lock:
            self._turns.append(Turn("user", text))
            self._live = job.live
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

    def _run(self, job: _Job) -> None:
        stopped = False
        try:
            asyncio.run(self._stream(job))
        except asyncio.CancelledError:
            stopped = True
        except Exception:
            logger.exception("A chat turn failed in an unexpected way")
            job.live.recorder.fail("The answer couldn't be read.", "The lab's log says more.")
        finally:
            self._finish(job, stopped)

    async def _stream(self, job: _Job) -> None:
        task, recorder = asyncio.current_task(), job.live.recorder
        assert task is not None  # a coroutine under asyncio.run always has one
        with self._lock:
            if self._live is job.live:
                self._cancel = (asyncio.get_running_loop(), task)
            if self._stop.is_set():
                task.cancel()
        await asyncio.sleep(0)  # a stop pressed before this point ends it here
        async with sdk_client(job.endpoint, recorder.mark_sent) as client:
            await stream_with_sdk(client, recorder, job.body, job.live.take)

    def _finish(self, job: _Job, stopped: bool) -> None:
        """The answer is on screen and the next one may begin before the store is asked for anything."""
        live = job.live
        live.recorder.ended_s = live.recorder.ended_s or time.perf_counter()
        turn = live.finished(live.status(stopped), job.asked.others() if job.asked else None)
        if job.asked and job.saved:
            job.saved.take(job.asked, turn)
        with self._lock:
            if self._live is live:
                self._live, self._cancel, self._busy = None, None, False
                self._turns.append(turn)
        if job.saved:
            job.saved.save()


def _begun(archive: ChatArchive | None) -> ChatRun | None:
    return ChatRun(archive) if archive else None


class ChatRegistry:
    """The conversations of all viewers, the least recently used dropped beyond ``max_sessions``."""

    def __init__(
        self,
        max_sessions: int = MAX_SESSIONS,
        before_turn: Callable[[], None] = lambda: None,
        archive: ChatArchive | None = None,
        extra_fields: ExtraFields = lambda question: {},
    ) -> None:
        """``before_turn`` is called before every turn, and what it raises refuses the turn.

        ``extra_fields(question)`` are fields that only one engine knows, to be sent along.
        """
        self._max_sessions, self._before_turn, self._archive = max_sessions, before_turn, archive
        self._extra_fields = extra_fields
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, ChatSession] = OrderedDict()

    def get(self, session_id: str) -> ChatSession:
        """The conversation of this id, made on first use."""
        with self._lock:
            session = self._sessions.pop(session_id, None) or self._new()
            self._sessions[session_id] = session
            dropped = [self._sessions.popitem(last=False)[1] for _ in range(len(self._sessions) - self._max_sessions)]
        for old in dropped:
            old.stop()
        return session

    def _new(self) -> ChatSession:
        return ChatSession(self._before_turn, self._archive, self._extra_fields)

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
