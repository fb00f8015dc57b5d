"""A scheduler like vLLM V1's, jumping from event to event.

In each step first the running requests grow, in the order of their admission; one that finds no memory has the latest
request preempted (recompute: its memory is freed, it returns to the front of the queue) until it fits or is the victim
itself. Then waiting requests are admitted, first come first served, until one does not fit; none in a step that
preempted. What ends in a step frees its memory before the next.

Simpler than vLLM: a prompt is computed in the step of its admission however long it is (no token budget, no chunks).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from engine.kv.allocators import Memory
from engine.kv.stay import Grant, Stay
from engine.kv.timeline import Timeline
from engine.kv.workloads import Request

ENDS, GROWS = 0, 1


class Observer(Protocol):
    """Is told what happens, in order. Steps are the ledger's."""

    def admitted(self, stay: Stay, grants: list[Grant]) -> None: ...
    def grew(self, stay: Stay, grants: list[Grant]) -> None: ...
    def finished(self, stay: Stay) -> None: ...
    def preempted(self, stay: Stay) -> None: ...
    def waits(self, stay: Stay, reason: str) -> None: ...
    def rejected(self, request: Request) -> None: ...
    def step_done(self, step: int) -> None: ...


class Scheduler:
    """Runs requests (in order of arrival, none with more samples than ``max_num_seqs``) through a memory.

    Afterwards the counts and the timeline are complete.
    """

    def __init__(self, memory: Memory, max_num_seqs: int, observer: Observer | None = None) -> None:
        self.memory = memory
        self.timeline = Timeline()
        self.finished = 0
        self.preemptions = 0
        self.rejected = 0
        self._max_num_seqs = max_num_seqs
        self._observer = observer
        self._waiting: deque[tuple[Request, int]] = deque()
        self._running: dict[int, Stay] = {}
        self._sequences = 0
        self._serial = 0
        self._events: list[tuple[int, int, int, Stay]] = []

    def run(self, requests: Sequence[Request], until: int | None = None) -> None:
        """From step 0 to the end of the last request, or to the step ``until`` at most."""
        arrivals = deque(requests)
        step = 0
        while until is None or step < until:
            self.memory.ledger.advance(step)
            self._end_due(step)
            while arrivals and arrivals[0].arrival <= step:
                self._arrive(arrivals.popleft())
            preempted = self._grow_due(step)
            if not preempted:
                self._admit()
            self._note(step)
            following = self._next_step(step, arrivals, retry=preempted)
            if following is None:
                return
            step = following
        if until is not None:
            self.memory.ledger.advance(until)
            self._note(until)

    def _next_step(self, step: int, arrivals: deque[Request], *, retry: bool) -> int | None:
        if retry and self._waiting:
            return step + 1
        candidates = [self._events[0][0]] if self._events else []
        if arrivals:
            candidates.append(arrivals[0].arrival)
        return min(candidates, default=None)

    def _arrive(self, request: Request) -> None:
        if self.memory.can_ever_hold(request):
            self._waiting.append((request, 0))
            return
        self.rejected += 1
        if self._observer:
            self._observer.rejected(request)

    def _end_due(self, step: int) -> None:
        events = self._events
        while events and events[0][0] == step and events[0][1] == ENDS:
            stay = heapq.heappop(events)[3]
            if stay.serial not in self._running:
                continue
            self._remove(stay)
            self.finished += 1
            if self._observer:
                self._observer.finished(stay)

    def _grow_due(self, step: int) -> bool:
        """Whether anything was preempted."""
        before = self.preemptions
        events = self._events
        while events and events[0][0] == step:
            stay = heapq.heappop(events)[3]
            while stay.serial in self._running:
                grants = self.memory.grow(stay)
                if grants is not None:
                    self._schedule(stay)
                    if self._observer:
                        self._observer.grew(stay, grants)
                    break
                self._preempt(self._running[next(reversed(self._running))])
        return self.preemptions > before

    def _preempt(self, stay: Stay) -> None:
        self._remove(stay)
        generated = stay.generated + self.memory.ledger.step - stay.start
        self._waiting.appendleft((stay.request, generated))
        self.preemptions += 1
        if self._observer:
            self._observer.preempted(stay)

    def _admit(self) -> None:
        while self._waiting:
            request, generated = self._waiting[0]
            stay = Stay(request, self._serial, self.memory.ledger.step, generated)
            if self._sequences + request.samples > self._max_num_seqs:
                if self._observer:
                    self._observer.waits(stay, f"max_num_seqs allows {self._max_num_seqs} sequences at once")
                return
            grants = self.memory.admit(stay)
            if grants is None:
                if self._observer:
                    self._observer.waits(stay, self.memory.why_not(stay))
                return
            self._waiting.popleft()
            self._running[stay.serial] = stay
            self._serial += 1
            self._sequences += request.samples
            self._schedule(stay)
            if self._observer:
                self._observer.admitted(stay, grants)

    def _remove(self, stay: Stay) -> None:
        del self._running[stay.serial]
        self._sequences -= stay.sequences
        self.memory.release(stay)

    def _schedule(self, stay: Stay) -> None:
        if stay.grows_at is None:
            heapq.heappush(self._events, (stay.end, ENDS, stay.serial, stay))
        else:
            heapq.heappush(self._events, (stay.grows_at, GROWS, stay.serial, stay))

    def _note(self, step: int) -> None:
        self.timeline.add(self.memory.ledger, len(self._running), len(self._waiting), self.preemptions, self.finished)
        if self._observer:
            self._observer.step_done(step)
