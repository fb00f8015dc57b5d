"""What viewers of a comparison see while it runs: one frozen snapshot, replaced under a lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.compare_estimate import Estimate
from engine.compare_results import (
    ENGINE_LABELS,
    MODE_LABELS,
    CompareResults,
    CompareSnapshot,
    CompareState,
    Lane,
    LaneState,
    Mode,
    RacePieces,
    Repeat,
    engine_result,
    level_result,
)
from engine.config import CompareConfig
from engine.sse import joined

NONCE_NOTE = "Every prompt has a number of its own behind the chat template: no more than that is ever cached."


class Board:
    """Written by the thread that measures, read by any. ``steps`` are all repeats to come, warm-ups included."""

    def __init__(self, config: CompareConfig | None = None, steps: int = 0, expected: Estimate | None = None) -> None:
        self.began_s = self._step_began_s = time.monotonic()
        self._expected = expected
        self._lock = threading.Lock()
        self._config, self._steps, self._done = config, steps, 0
        self._snapshot = CompareSnapshot() if config is None else _beginning(config)

    def snapshot(self) -> CompareSnapshot:
        """The state now; while it runs, with the time up to this moment."""
        with self._lock:
            current, begun, step_began_s = self._snapshot, self._done, self._step_began_s
        if not current.running:
            return current
        now_s = time.monotonic()
        left = self._expected.left(begun, now_s - step_began_s) if self._expected else None
        return replace(current, elapsed_s=now_s - self.began_s, left_s=(left.low_s, left.high_s) if left else None)

    @property
    def results(self) -> CompareResults:
        """Everything measured so far."""
        results = self._snapshot.results
        assert results is not None
        return results

    def publish(self, **changes: Any) -> None:
        with self._lock:
            self._snapshot = replace(self._snapshot, **changes)

    def finish(self, state: CompareState, *, error: str | None, remedy: str, run_id: str | None) -> None:
        """The end: a lane that was still at work did not get there."""
        unfinished = {LaneState.LOADING, LaneState.WARMING, LaneState.RUNNING}
        reached = LaneState.CANCELLED if state == CompareState.CANCELLED else LaneState.FAILED
        with self._lock:
            lanes = tuple(
                replace(lane, state=reached) if lane.state in unfinished else lane for lane in self._snapshot.lanes
            )
            self._snapshot = replace(
                self._snapshot,
                state=state,
                message=state.value.capitalize(),
                lanes=lanes,
                error=error,
                remedy=remedy,
                run_id=run_id,
                progress=1.0,
                elapsed_s=time.monotonic() - self.began_s,
            )

    def change_results(self, **changes: Any) -> None:
        self.publish(results=replace(self.results, **changes))

    def note(self, sentence: str) -> None:
        """Something a reader needs to judge the numbers."""
        self.change_results(notes=(*self.results.notes, sentence))

    def warn(self, sentence: str) -> None:
        """Why the numbers may be wrong."""
        self.change_results(warnings=(*self.results.warnings, sentence))

    def lane(self, engine: str, **changes: Any) -> None:
        """Change one engine's lane; it appears with its first change."""
        with self._lock:
            lanes = self._snapshot.lanes
            if all(lane.engine != engine for lane in lanes):
                lanes = (*lanes, Lane(engine, ENGINE_LABELS[engine]))
            lanes = tuple(replace(lane, **changes) if lane.engine == engine else lane for lane in lanes)
            self._snapshot = replace(self._snapshot, lanes=lanes)

    def begin_repeat(self, engine: str, mode: Mode, users: int, number: int) -> None:
        """Say which repeat begins; number 0 is the warm-up."""
        assert self._config is not None
        which = f"repeat {number} of {self._config.repeats}" if number else "warm-up, not counted"
        who = "one request" if users == 1 else f"{users} prompts, {MODE_LABELS[mode]}"
        if users == 1:
            state = LaneState.RUNNING if number else LaneState.WARMING
            self.lane(engine, state=state, detail=which, text_pieces=(), elapsed_s=0.0)
        else:
            self.lane(engine, state=LaneState.DONE, detail="")
        share = self._done / self._steps if self._steps else 0.0
        with self._lock:
            self._done, self._step_began_s = self._done + 1, time.monotonic()
        self.publish(message=f"{ENGINE_LABELS[engine]}: {who}, {which}", progress=share)

    def piece(self, engine: str, text: str, at_s: float) -> None:
        """Text of the race, ``at_s`` seconds after its request was sent."""
        lane = self._snapshot.lane(engine)
        pieces = lane.text_pieces if lane else ()
        self.lane(engine, text_pieces=(*pieces, (at_s, joined([text]))), elapsed_s=at_s)

    def add(
        self,
        engine: str,
        users: int,
        mode: Mode,
        repeats: Sequence[Repeat],
        *,
        load_s: float | None,
        memory_bytes: int | None,
    ) -> None:
        """Add what one number of users gave (nothing where no repeat was finished); one user is the headline."""
        if not repeats:
            return
        weights = self.results.weights_bytes
        levels = (*self.results.levels, level_result(users, mode, engine, repeats, weights_bytes=weights))
        if users > 1:
            self.change_results(levels=levels)
            return
        single = engine_result(repeats, load_s=load_s, memory_bytes=memory_bytes, weights_bytes=weights)
        lane = self._snapshot.lane(engine)
        race = RacePieces(engine, lane.text_pieces if lane else ())
        self.change_results(
            levels=levels, engines={**self.results.engines, engine: single}, race=(*self.results.race, race)
        )


def _beginning(config: CompareConfig) -> CompareSnapshot:
    return CompareSnapshot(
        CompareState.RUNNING,
        "Beginning",
        config=config,
        lanes=tuple(Lane(engine, ENGINE_LABELS[engine]) for engine in config.engines),
        results=CompareResults(engines={}, notes=(NONCE_NOTE,)),
    )
