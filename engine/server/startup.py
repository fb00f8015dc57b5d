"""Log lines of a starting vLLM → the phase it is in, with times expected from earlier starts.

Wording drifts between versions, so each phase has several marks and the tracker only ever moves forward.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from engine.server.state import PHASE_LABELS, KvCapacity, Phase, PhaseProgress

MARKS: tuple[tuple[Phase, tuple[str, ...]], ...] = (
    (Phase.WEIGHTS, ("Starting to load model", "Loading model from scratch")),
    (Phase.KV_CACHE, ("Loading weights took", "Model loading took")),
    (Phase.WARM_UP, ("KV cache size:", "Capturing CUDA graphs", "init engine (profile")),
    (Phase.READY, ("Starting vLLM server on", "Starting vLLM API server", "Application startup complete")),
)
LISTENING = "Application startup complete"
TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x")
BLOCKS = re.compile(r"# (?:GPU|CPU|cuda|cpu) blocks: (\d+)")


class StartupTracker:
    """Follows one start; not thread-safe, times are seconds of ``clock``."""

    def __init__(self, expected: Mapping[str, float] | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._expected = dict(expected or {})
        self._clock = clock
        self._entered: dict[Phase, float] = {Phase.MODEL: clock()}
        self._finished: float | None = None
        self.capacity = KvCapacity()
        self.listening = False

    def enter(self, phase: Phase) -> None:
        """Move on to a phase; an earlier one than the present is ignored."""
        if list(Phase).index(phase) > list(Phase).index(self.phase):
            self._entered[phase] = self._clock()

    def read(self, line: str) -> None:
        """Take one line of the log into account."""
        for phase, marks in MARKS:
            if any(mark in line for mark in marks):
                self.enter(phase)
        if LISTENING in line:
            self.listening = True
        self.capacity = _capacity(line, self.capacity)

    def finish(self) -> None:
        """Stop the clock, at the first token or at a failure; a later call changes nothing."""
        if self._finished is None:
            self._finished = self._clock()

    @property
    def phase(self) -> Phase:
        return max(self._entered, key=list(Phase).index)

    @property
    def elapsed_s(self) -> float:
        return self._now() - self._entered[Phase.MODEL]

    @property
    def expected_s(self) -> float | None:
        """Seconds the whole start took before; None without history."""
        return sum(self._expected.values()) or None

    @property
    def label(self) -> str:
        """What happens now, in words."""
        return PHASE_LABELS[self.phase]

    def durations(self) -> dict[str, float]:
        """Seconds of each phase so far; phases the log never showed are left out."""
        starts = sorted(self._entered.items(), key=lambda item: list(Phase).index(item[0]))
        ends = [start for _, start in starts[1:]] + [self._now()]
        return {phase.value: end - start for (phase, start), end in zip(starts, ends, strict=True)}

    def progress(self) -> tuple[PhaseProgress, ...]:
        durations, current = self.durations(), list(Phase).index(self.phase)
        # A start that failed stays at the phase it failed in.
        answered = self._finished is not None and self.phase == Phase.READY
        return tuple(
            PhaseProgress(
                phase=phase,
                elapsed_s=durations.get(phase.value),
                expected_s=self._expected.get(phase.value),
                done=index < current or answered,
            )
            for index, phase in enumerate(Phase)
        )

    def _now(self) -> float:
        return self._clock() if self._finished is None else self._finished


def _capacity(line: str, known: KvCapacity) -> KvCapacity:
    if found := TOKENS.search(line):
        known = replace(known, tokens=int(found[1].replace(",", "")))
    if found := CONCURRENCY.search(line):
        known = replace(known, max_concurrency=float(found[1].replace(",", "")))
    if found := BLOCKS.search(line):
        known = replace(known, num_blocks=int(found[1]))
    return known
