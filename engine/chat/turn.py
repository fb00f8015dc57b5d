"""What is said in a chat, and the answer that is arriving."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from engine.answer import AnswerRecorder, words_of
from engine.errors import ConfigError, LabError
from engine.metrics import RequestTrace
from engine.sse import joined
from engine.telemetry.host import OtherWork

MAX_TOKENS = 1_000_000


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
    prompt plus answer in tokens, times are milliseconds except ``elapsed_s``. ``others`` is what else
    used the server's cores meanwhile (None: not known).
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
    others: OtherWork | None = None


@dataclass(frozen=True)
class SaveState:
    """The saved run of a conversation: its id once there is one, and why the newest turns aren't in it.

    ``pending``: a finished turn is still to be written.
    """

    run_id: str | None = None
    pending: bool = False
    error: LabError | None = None


@dataclass(frozen=True)
class ChatSnapshot:
    """A conversation at one moment; ``error`` is that of its last turn."""

    turns: tuple[Turn, ...] = ()
    streaming: bool = False
    error: str | None = None
    saved: SaveState = SaveState()


@dataclass
class LiveTurn:
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

    def finished(self, status: TurnStatus, others: OtherWork | None = None) -> Turn:
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
            others=others,
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
