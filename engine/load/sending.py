"""One level, sent: a closed loop of users, or an open loop of arrivals. Runs in the sending process, in one event loop.

Nothing here looks at single tokens, so that a token costs no more than it costs ``engine.client``; progress is read
off the recorders a few times a second.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from array import array
from dataclasses import replace
from typing import Any

import aiohttp

from engine.answer import AnswerRecorder
from engine.client import CompletionRequest, stream_into
from engine.config import Endpoint
from engine.load.order import CANCELLED, LevelOrder, Prompt, Sent
from engine.metrics import percentile
from engine.sse import joined

LAG_PROBE_S = 0.05
# So many failures in a row, without one answer between them, and the server is taken for gone.
FAILURES_IN_A_ROW, FAILURES_PER_USER = 20, 2
NONCE_IDS = 8


class Flight:
    """One request on its way; ``told`` is how much of it was already reported."""

    __slots__ = ("intended_s", "number", "recorder", "told", "turn", "user")

    def __init__(self, number: int, user: int, turn: int, intended_s: float | None, expected: int | None) -> None:
        self.number, self.user, self.turn, self.intended_s = number, user, turn, intended_s
        self.recorder = AnswerRecorder(expected, None)
        self.told = ""

    def sent(self) -> Sent:
        trace = replace(self.recorder.trace(), intended_s=self.intended_s)
        return Sent(self.number, self.user, self.turn, trace)


class LevelSender:
    """Sends one level. ``run()`` returns when every request is over; ``cancel()`` makes that soon."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: Endpoint, order: LevelOrder) -> None:
        self._session, self._endpoint, self._order = session, endpoint, order
        self._begun = self._requests = self._in_a_row = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._flying: dict[int, Flight] = {}
        self._news: list[Flight] = []
        self._finished_chunks = self._failed = 0
        self._fault: BaseException | None = None
        self.over: list[Flight] = []
        self.began_s = time.perf_counter()
        self.stopped = ""

    async def run(self) -> None:
        self.began_s = time.perf_counter()
        if self._order.arrivals_s is None:
            for user in range(self._order.users):
                self._spawn(self._user(user))
        else:
            self._spawn(self._arrive(self._order.arrivals_s))
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._fault is not None:
            raise self._fault

    def cancel(self, reason: str = CANCELLED) -> None:
        """Send nothing more, and give up what is on its way."""
        self.stopped = self.stopped or reason
        for flight in self._flying.values():
            flight.recorder.fail(CANCELLED)
        for task in self._tasks:
            task.cancel()

    def progress(self) -> dict[str, Any]:
        """Counters up to now, and what changed since the last call: [request, user, state, seconds since the start]."""
        chunks = self._finished_chunks + sum(len(flight.recorder.times_s) for flight in self._flying.values())
        return {
            "at_s": time.perf_counter() - self.began_s,
            "chunks": chunks,
            "running": len(self._flying),
            "done": len(self.over) - self._failed,
            "failed": self._failed,
            "changes": self._changes(),
        }

    # -- whose turn it is

    async def _user(self, user: int) -> None:
        while (index := self._next()) is not None:
            await self._converse(index, user, None)

    def _next(self) -> int | None:
        order, index = self._order, self._begun
        late = order.duration_s is not None and time.perf_counter() - self.began_s >= order.duration_s
        if self.stopped or late or (order.conversations is not None and index >= order.conversations):
            return None
        self._begun += 1
        return index

    async def _arrive(self, arrivals_s: tuple[float, ...]) -> None:
        free: list[int] = []
        places = 0
        for offset_s in arrivals_s:
            due_s = self.began_s + offset_s
            while (wait_s := due_s - time.perf_counter()) > 0:  # an event loop may wake a little early
                await asyncio.sleep(wait_s)
            if self.stopped:
                return
            if free:
                place = heapq.heappop(free)
            else:
                place, places = places, places + 1
            self._begun += 1
            task = self._spawn(self._converse(self._begun - 1, place, due_s))
            task.add_done_callback(lambda _, place=place: heapq.heappush(free, place))  # type: ignore[misc]

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_over)
        return task

    def _task_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = self._fault or fault
            self.cancel(f"{type(fault).__name__}: {fault}")

    # -- one conversation, one request

    async def _converse(self, index: int, user: int, intended_s: float | None) -> None:
        prompt = self._order.prompts[index % len(self._order.prompts)]
        nonce = random.Random(f"{self._order.salt} {index}")
        if not prompt.turns:
            request = CompletionRequest(prompt=self._ids(prompt.tokens, nonce), **self._options(prompt))
            await self._send(user, 0, request, intended_s)
            return
        messages: list[dict[str, Any]] = []
        for turn, text in enumerate(prompt.turns):
            words = f"[{nonce.randrange(10**6, 10**7)}] {text}" if self._order.nonce and not turn else text
            messages.append({"role": "user", "content": words})
            request = CompletionRequest(**self._content(messages), **self._options(prompt))
            flight = await self._send(user, turn, request, intended_s)
            if self.stopped or flight.recorder.error is not None:
                return
            intended_s = None  # a user asks on when the answer is there
            messages.append({"role": "assistant", "content": joined(flight.recorder.texts)})

    def _content(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        if self._order.chat:
            return {"messages": list(messages)}
        return {"prompt": "\n".join(message["content"] for message in messages)}

    def _options(self, prompt: Prompt) -> dict[str, Any]:
        order = self._order
        return {
            "max_tokens": prompt.max_tokens,
            "ignore_eos": order.ignore_eos,
            "temperature": order.temperature,
        }

    def _ids(self, tokens: int, nonce: random.Random) -> list[int]:
        """Exactly so many: the model's own beginning, ids of this request alone, and a piece of the text."""
        words = self._order.vocabulary
        wanted = max(tokens - len(words.lead), 1)
        if not self._order.nonce:
            return [*words.lead, *_cut(words.ids, 0, wanted)][:tokens]
        own = [nonce.choice(words.ids) for _ in range(min(NONCE_IDS, wanted))]
        rest = _cut(words.ids, nonce.randrange(len(words.ids)), wanted - len(own))
        return [*words.lead, *own, *rest][:tokens]

    async def _send(self, user: int, turn: int, request: CompletionRequest, intended_s: float | None) -> Flight:
        flight = Flight(self._requests, user, turn, intended_s, request.expected_tokens)
        self._requests += 1
        self._flying[flight.number] = flight
        self._news.append(flight)
        limit_s = self._order.timeout_s
        try:
            await stream_into(flight.recorder, self._session, self._endpoint, request, limit_s, limit_s)
        finally:
            del self._flying[flight.number]
            self._land(flight)
        return flight

    def _land(self, flight: Flight) -> None:
        self.over.append(flight)
        self._finished_chunks += len(flight.recorder.times_s)
        if flight.recorder.trace().ok:
            self._in_a_row = 0
            return
        if flight.recorder.error == CANCELLED:
            return
        self._failed += 1
        self._in_a_row += 1
        most = max(FAILURES_IN_A_ROW, FAILURES_PER_USER * (self._order.users or len(self._flying)))
        if self._in_a_row >= most and not self.stopped:
            reason = flight.recorder.error or "the answers were cut short"
            self.cancel(f"{self._in_a_row} requests failed one after another: {reason}")

    # -- what is told

    def _changes(self) -> list[list[Any]]:
        changes: list[list[Any]] = []
        news, self._news = self._news, []
        for flight in news:
            recorder = flight.recorder
            start_s = recorder.sent_s if flight.intended_s is None else flight.intended_s
            if not flight.told:
                changes.append(self._change(flight, "sent", start_s))
            if recorder.times_s and flight.told != "decode":
                changes.append(self._change(flight, "decode", recorder.times_s[0]))
            if flight.number in self._flying:
                self._news.append(flight)
                continue
            trace = recorder.trace()
            if trace.server is not None and trace.server.queue_ms is not None:
                changes.append(self._change(flight, "prefill", trace.sent_s + trace.server.queue_ms / 1000))
            end_s = trace.ended_s or time.perf_counter()
            changes.append(self._change(flight, "done" if trace.ok else "failed", end_s))
        return changes

    def _change(self, flight: Flight, state: str, at_s: float) -> list[Any]:
        flight.told = state
        return [flight.number, flight.user, state, round(at_s - self.began_s, 4)]


class LagProbe:
    """How late the event loop comes to what is due: what a chunk may have waited before its time was taken."""

    def __init__(self) -> None:
        self._late_s = array("f")

    async def run(self) -> None:
        while True:
            due_s = time.perf_counter() + LAG_PROBE_S
            await asyncio.sleep(LAG_PROBE_S)
            self._late_s.append(max(0.0, time.perf_counter() - due_s))

    def p99_ms(self) -> float | None:
        late_s = percentile(self._late_s, 99)
        return None if late_s is None else late_s * 1000


def _cut(ids: tuple[int, ...], start: int, count: int) -> list[int]:
    """``count`` ids from a ring."""
    piece = list(ids[start : start + count])
    while len(piece) < count:
        piece += ids[: count - len(piece)]
    return piece
