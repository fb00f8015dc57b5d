"""Samples of the last hours in bounded memory: every second for an hour, then one for every ten seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from engine.telemetry.readings import Reading

FINE_SAMPLES = 3600
COARSE_S = 10
COARSE_SAMPLES = 5 * 3600 // COARSE_S
GAUGES = ("running", "waiting", "kv_cache_usage")


@dataclass(frozen=True)
class Sample:
    """One moment. ``at_s`` is Unix time.

    ``reading`` is None where the server said nothing. Counters of two samples may be compared only where ``era`` is
    the same: it grows with every start of a server. ``machine`` are values of GPU, host, processes and load generator
    by the keys of ``panels.Line``. ``thinned``: it stands for ten seconds.
    """

    at_s: float
    era: int
    reading: Reading | None = None
    machine: Mapping[str, float | None] = field(default_factory=dict)
    thinned: bool = False


class Series:
    """Not locked: its owner sees to that."""

    def __init__(self, fine: int = FINE_SAMPLES, coarse: int = COARSE_SAMPLES) -> None:
        self._most_fine = fine
        self._fine: deque[Sample] = deque()
        self._coarse: deque[Sample] = deque(maxlen=coarse)

    def __len__(self) -> int:
        return len(self._fine) + len(self._coarse)

    @property
    def last(self) -> Sample | None:
        return self._fine[-1] if self._fine else None

    def add(self, sample: Sample) -> None:
        """The newest; a clock that was set back makes everything before it unusable, so it is forgotten."""
        if self.last is not None and sample.at_s <= self.last.at_s:
            self._fine.clear()
            self._coarse.clear()
        self._fine.append(sample)
        if len(self._fine) > self._most_fine:
            self._thin(self._fine.popleft())

    def since(self, from_s: float) -> list[Sample]:
        """In order of time, from the last one before ``from_s`` on: rates at its edge need it."""
        found: list[Sample] = []
        for sample in reversed(self._fine):
            found.append(sample)
            if sample.at_s < from_s:
                return found[::-1]
        for sample in reversed(self._coarse):
            found.append(sample)
            if sample.at_s < from_s:
                break
        return found[::-1]

    def all(self) -> list[Sample]:
        return list(chain(self._coarse, self._fine))

    def _thin(self, sample: Sample) -> None:
        last = self._coarse[-1] if self._coarse else None
        if last is None or last.era != sample.era or last.at_s // COARSE_S != sample.at_s // COARSE_S:
            self._coarse.append(replace(sample, thinned=True))
        else:
            self._coarse[-1] = together(last, sample)


def together(older: Sample, newer: Sample) -> Sample:
    """One sample for two: the newer one's counters, and the higher of each gauge, so that a peak is not lost."""
    machine = dict(older.machine)
    for key, value in newer.machine.items():
        machine[key] = highest(machine.get(key), value)
    if older.reading is None or newer.reading is None:
        return replace(older, at_s=newer.at_s, machine=machine, reading=newer.reading or older.reading)
    values = dict(newer.reading.values)
    for name in GAUGES:
        peak = highest(older.reading.values.get(name), values.get(name))
        if peak is not None:
            values[name] = peak
    return replace(older, at_s=newer.at_s, machine=machine, reading=replace(newer.reading, values=values))


def highest(one: float | None, other: float | None) -> float | None:
    """Of what is known."""
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)
