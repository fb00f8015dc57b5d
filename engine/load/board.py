"""What viewers of a load test see while it runs: counters and swim-lanes, made into a frozen snapshot when asked."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.config import LoadTestConfig
from engine.load.profiles import Level
from engine.load.results import (
    Lane,
    LaneRequest,
    LevelResult,
    LivePoint,
    LoadResults,
    LoadSnapshot,
    LoadState,
    RequestState,
)

MOST_LANES = 200
LANE_LENGTH = 40
POINT_S = 0.5
MOST_POINTS = 600


@dataclass
class _Request:
    number: int
    start_s: float
    prefill_s: float | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    failed: bool = False

    def seen(self, waits: bool) -> LaneRequest:
        return LaneRequest(
            self.number, self._state(waits), self.start_s, self.prefill_s, self.first_token_s, self.end_s
        )

    def _state(self, waits: bool) -> RequestState:
        if self.end_s is not None:
            return RequestState.FAILED if self.failed else RequestState.DONE
        if self.first_token_s is not None:
            return RequestState.DECODE
        return RequestState.QUEUED if waits else RequestState.PREFILL


class _Running:
    """The level that is being sent."""

    def __init__(self, index: int | None = None, level: Level | None = None, warming_up: bool = False) -> None:
        self.index, self.level, self.warming_up = index, level, warming_up
        self.began_s = time.monotonic()
        self.lanes: dict[int, deque[_Request]] = {}
        self.open: OrderedDict[int, _Request] = OrderedDict()
        self.points: deque[LivePoint] = deque(maxlen=MOST_POINTS)
        self.point_s = self.point_chunks = 0.0
        self.at_s = 0.0
        self.done = self.failed = self.running = 0
        self.waiting: int | None = None

    def take(self, event: dict[str, Any], waiting: int | None) -> None:
        self.waiting, self.at_s = waiting, event["at_s"]
        self.done, self.failed, self.running = event["done"], event["failed"], event["running"]
        for number, user, state, at_s in event["changes"]:
            self._change(number, user, state, at_s)
        if self.at_s - self.point_s >= POINT_S:
            speed = (event["chunks"] - self.point_chunks) / (self.at_s - self.point_s)
            self.points.append(LivePoint(self.at_s, speed, max(0, self.running - (waiting or 0)), waiting))
            self.point_s, self.point_chunks = self.at_s, event["chunks"]

    def share(self) -> float:
        """How much of it is done, 0 to 1."""
        if self.level is None or self.warming_up:
            return 0.0
        shares = [0.0]
        if self.level.requests:
            shares.append((self.done + self.failed) / self.level.requests)
        if self.level.duration_s:
            shares.append(self.at_s / self.level.duration_s)
        return min(1.0, max(shares))

    def seen_lanes(self) -> tuple[Lane, ...]:
        first = [request.number for request in self.open.values() if request.first_token_s is None]
        waits = set(first[-self.waiting :]) if self.waiting else set()  # first come, first served
        return tuple(
            Lane(user, tuple(request.seen(request.number in waits) for request in lane))
            for user, lane in sorted(self.lanes.items())
        )

    def _change(self, number: int, user: int, state: str, at_s: float) -> None:
        if state == "sent":
            request = self.open[number] = _Request(number, at_s)
            if user < MOST_LANES:
                self.lanes.setdefault(user, deque(maxlen=LANE_LENGTH)).append(request)
            return
        request = self.open.get(number) or _Request(number, at_s)
        if state == "decode":
            request.first_token_s = at_s
        elif state == "prefill":
            request.prefill_s = at_s
        else:
            request.end_s, request.failed = at_s, state == "failed"
            self.open.pop(number, None)


class LoadBoard:
    """Written by the thread that measures, read by any."""

    def __init__(self, config: LoadTestConfig | None = None) -> None:
        self.began_s = time.monotonic()
        self._lock = threading.Lock()
        self._levels: Sequence[Level] = ()
        self._running = _Running()
        self._level_s: list[float] = []
        state = LoadState.IDLE if config is None else LoadState.RUNNING
        self._snapshot = LoadSnapshot(state, config, "" if config is None else "Beginning")

    def snapshot(self) -> LoadSnapshot:
        """The state now."""
        with self._lock:
            current, level = self._snapshot, self._running
            if current.running:
                current = replace(
                    current,
                    elapsed_s=time.monotonic() - self.began_s,
                    progress=self._progress(),
                    left_s=self._left_s(),
                )
            return replace(
                current,
                level=level.index,
                warming_up=level.warming_up,
                level_s=level.at_s if level.index is not None else None,
                requests_planned=level.level.requests if level.level else None,
                requests_done=level.done,
                requests_failed=level.failed,
                requests_running=level.running,
                lanes=level.seen_lanes(),
                live=tuple(level.points),
            )

    @property
    def running(self) -> bool:
        return self._snapshot.running

    @property
    def message(self) -> str:
        """What goes on, without the work of a whole snapshot."""
        return self._snapshot.message

    @property
    def results(self) -> LoadResults:
        """Everything measured so far."""
        return self._snapshot.results

    def say(self, message: str) -> None:
        self._publish(message=message)

    def plan(self, levels: Sequence[Level]) -> None:
        with self._lock:
            self._levels = levels
            self._snapshot = replace(self._snapshot, labels=tuple(level.label for level in levels))

    def begin(self, index: int, level: Level, *, warming_up: bool) -> None:
        words = "warm-up, not counted" if warming_up else "measuring"
        with self._lock:
            self._running = _Running(index, level, warming_up)
            self._snapshot = replace(self._snapshot, message=f"{level.label}: {words}")

    def progress(self, event: dict[str, Any], waiting: int | None) -> None:
        with self._lock:
            self._running.take(event, waiting)

    def add(self, result: LevelResult) -> None:
        with self._lock:
            self._level_s.append(self._running.at_s)
            results = self._snapshot.results
            self._snapshot = replace(self._snapshot, results=replace(results, levels=(*results.levels, result)))

    def change_results(self, **changes: Any) -> None:
        self._publish(results=replace(self.results, **changes))

    def note(self, sentence: str) -> None:
        """Something a reader needs to judge the numbers; said once."""
        if sentence not in self.results.notes:
            self.change_results(notes=(*self.results.notes, sentence))

    def finish(self, state: LoadState, *, error: str | None, remedy: str, run_id: str | None) -> None:
        self._publish(
            state=state,
            message=state.value.capitalize(),
            error=error,
            remedy=remedy,
            run_id=run_id,
            progress=1.0,
            left_s=None,
            elapsed_s=time.monotonic() - self.began_s,
        )

    def _publish(self, **changes: Any) -> None:
        with self._lock:
            self._snapshot = replace(self._snapshot, **changes)

    def _progress(self) -> float:
        if not self._levels:
            return 0.0
        done = len(self._level_s)
        current = self._running.share() if self._running.index == done else 0.0
        return min(1.0, (done + current) / len(self._levels))

    def _left_s(self) -> float | None:
        """By the pace so far: this level by its own, the next ones by that of the newest that has one."""
        level, done = self._running, len(self._level_s)
        share = level.share()
        if level.level is None or (not share and not done):
            return None
        pace_s, users = self._pace(level)
        left_s = level.at_s * (1 - share) / share if share and level.index == done else 0.0
        later = self._levels[done + (1 if share else 0) :]
        return left_s + sum(_expected_s(one, pace_s, users) for one in later)

    def _pace(self, level: _Running) -> tuple[float, int]:
        """Seconds per request and the users they are from: of this level once it has some, else of the last one."""
        if level.level is not None and level.done and not level.warming_up:
            return level.at_s / level.done, level.level.users or 1
        last = self.results.levels[-1] if self.results.levels else None
        if last is None or not last.wall_s or not last.requests_ok:
            return 0.0, 1
        return last.wall_s / last.requests_ok, last.users or 1


def _expected_s(level: Level, pace_s: float, users: int) -> float:
    """Seconds of a level to come. More users may gain nothing or as much as they are more: the geometric middle."""
    if level.arrivals_s is not None and any(level.arrivals_s):
        return level.arrivals_s[-1]
    if level.duration_s is not None:
        return level.duration_s
    return (level.requests or 0) * pace_s * math.sqrt(users / (level.users or users))
