"""One streamed answer, event by event, into a trace: by the same rules for measurements and for chat."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable
from typing import Any

from engine.errors import RequestRejected
from engine.fetch import cause_of, message_of, remedy_for
from engine.metrics import RequestTrace, ServerTimings

DONE = b"[DONE]"

OnText = Callable[[str, float], None]


class AnswerRecorder:
    """Collects one answer; becomes a RequestTrace whatever happened.

    One thread writes; others may read ``times_s`` and ``texts``, which only grow (times first).
    """

    def __init__(self, expected_tokens: int | None, on_text: OnText | None) -> None:
        self.expected_tokens = expected_tokens
        self.on_text = on_text
        self.sent_s = time.perf_counter()
        self.last_read_s = self.sent_s
        self.ended_s: float | None = None
        self.finish_s: float | None = None
        self.first_choice_s: float | None = None
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
        if self.first_choice_s is None:
            self.first_choice_s = now_s
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
        return whole_number(self.usage.get("prompt_tokens"))

    @property
    def output_tokens(self) -> int | None:
        return whole_number(self.usage.get("completion_tokens"))

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
            first_choice_s=self.first_choice_s,
        )


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


def cached_tokens(usage: dict[str, Any]) -> int | None:
    """Prompt tokens taken from the prefix cache (vLLM: ``--enable-prompt-tokens-details``)."""
    details = usage.get("prompt_tokens_details")
    return whole_number(details.get("cached_tokens")) if isinstance(details, dict) else None


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


def whole_number(value: Any) -> int | None:
    """A count that a server told; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with contextlib.suppress(OverflowError):
        return float(value) if math.isfinite(value) else None
    return None
