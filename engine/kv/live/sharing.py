"""Four requests that begin with the same system prompt, sent at once: sharing, made to happen in front of a room."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from engine.client import CompletionRequest, run_concurrently
from engine.config import Endpoint
from engine.errors import AlreadyRunning
from engine.kv.live.marks import Mark
from engine.metrics import RequestTrace

logger = logging.getLogger(__name__)
MAX_TOKENS = 64
CLOSE_S = 5.0
# With SmolLM2's chat template this is 132 tokens: one shared block of 128, four of 32 or eight of 16, and the block
# after them begins with the question.
SYSTEM = (
    "You are the guide of a small museum of science. Visitors of every age ask you about nature, machines and numbers. "
    "Answer in plain words, in two or three short sentences, and begin with the most important fact. Use an example "
    "from daily life where one helps. Never use a formula, never use a foreign word, and never talk about yourself. "
    "If a question has no known answer, say so, and tell what people have found out so far. If a question is about "
    "the museum itself, say that it is open every day from nine to five, and that children come in for free. Be exact."
)
QUESTIONS = (
    ("A", "Why is the sky blue?"),
    ("B", "How does a bicycle stay upright?"),
    ("C", "Why do cats purr?"),
    ("D", "What is a prime number?"),
)


class State(StrEnum):
    """How far the four are. Compare with ``==``."""

    IDLE = "idle"
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True)
class Sent:
    """One of the four: ``trace`` once it is over."""

    label: str
    question: str
    trace: RequestTrace | None = None


@dataclass(frozen=True)
class SharingSnapshot:
    state: State = State.IDLE
    sent: tuple[Sent, ...] = ()


class FourRequests:
    """``marked(label, title)`` gives each request its mark, and ``before`` refuses a start by what it raises."""

    def __init__(self, marked: Callable[[str, str], Mark], before: Callable[[], None] = lambda: None) -> None:
        self._marked, self._before = marked, before
        self._lock = threading.Lock()
        self._snapshot = SharingSnapshot()
        self._cancel = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, endpoint: Endpoint) -> None:
        """Send them and return. Raises AlreadyRunning while the last ones are on their way."""
        before = self._reserve()
        try:
            self._before()  # asked when the state says "running", as a measurement asks the other way round
            self._cancel.clear()
            self._thread = threading.Thread(target=self._run, args=(endpoint,), name="four-requests", daemon=True)
            self._thread.start()
        except BaseException:
            with self._lock:
                self._snapshot = before
            raise

    def snapshot(self) -> SharingSnapshot:
        with self._lock:
            return self._snapshot

    @property
    def running(self) -> bool:
        return self.snapshot().state == State.RUNNING

    def forget(self) -> None:
        """What was found is no longer of interest; those on their way still are."""
        with self._lock:
            if self._snapshot.state == State.DONE:
                self._snapshot = SharingSnapshot()

    def close(self) -> None:
        """Call them off and wait."""
        self._cancel.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _reserve(self) -> SharingSnapshot:
        """Say "running" before anything is sent; returns what was said before."""
        with self._lock:
            before = self._snapshot
            if before.state == State.RUNNING:
                raise AlreadyRunning("The four requests are still on their way.", "Wait for their answers.")
            sent = tuple(Sent(label, question) for label, question in QUESTIONS)
            self._snapshot = SharingSnapshot(State.RUNNING, sent)
            return before

    def _run(self, endpoint: Endpoint) -> None:
        traces: Sequence[RequestTrace | None] = [None] * len(QUESTIONS)
        try:
            requests = [question_for(self._marked(label, question), question) for label, question in QUESTIONS]
            traces = run_concurrently(endpoint, requests, cancel=self._cancel)
        except Exception:  # whatever it is, the state must not stay at "running"
            logger.exception("The four requests failed in an unexpected way")
        finally:
            with self._lock:
                pairs = zip(self._snapshot.sent, traces, strict=True)
                self._snapshot = SharingSnapshot(State.DONE, tuple(replace(one, trace=trace) for one, trace in pairs))


def question_for(mark: Mark, question: str) -> CompletionRequest:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return CompletionRequest(messages=messages, max_tokens=MAX_TOKENS, extra=mark.request_fields)
