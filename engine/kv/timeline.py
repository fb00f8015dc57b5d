"""A simulation's history: one row for each step in which something happened, and what follows from it."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from engine.kv.ledger import Ledger

Numbers = NDArray[np.int64]
KINDS = ("tokens", "reserved", "internal", "external", "free")
COUNTS = ("running", "waiting", "preempted", "finished")
COLUMNS = ("step", "growing", *KINDS, *COUNTS)


class Timeline:
    """Rows are the states in a step, after its admissions; they hold until the next row. The first row is step 0.

    In between only ``tokens`` and ``reserved`` change, by ``growing`` a step. ``preempted`` and ``finished`` are
    cumulative. The last row is the end: nothing is counted from there on.
    """

    def __init__(self) -> None:
        self._flat = array("q")

    def add(self, ledger: Ledger, running: int, waiting: int, preempted: int, finished: int) -> None:
        self._flat.extend(
            (
                ledger.step,
                ledger.growing,
                ledger.tokens,
                ledger.reserved,
                ledger.internal,
                ledger.external,
                ledger.free,
                running,
                waiting,
                preempted,
                finished,
            )
        )

    def table(self) -> dict[str, Numbers]:
        """Each column as an array over the rows."""
        rows = np.frombuffer(self._flat, dtype=np.int64).reshape(-1, len(COLUMNS))
        return {name: rows[:, number] for number, name in enumerate(COLUMNS)}

    def at(self, steps: Numbers) -> dict[str, Numbers]:
        """Every kind and count in these steps (after the end: as at the end)."""
        table = self.table()
        rows = np.searchsorted(table["step"], steps, side="right") - 1
        grown = table["growing"][rows] * (steps - table["step"][rows])
        values = {name: table[name][rows] for name in (*KINDS, *COUNTS)}
        values["tokens"] = values["tokens"] + grown
        values["reserved"] = values["reserved"] - grown
        return values

    @property
    def last_step(self) -> int:
        return self._flat[-len(COLUMNS)]

    def queue_ends(self) -> int:
        """The first step from which on nothing waits, or the last one of all."""
        table = self.table()
        waited = np.flatnonzero(table["waiting"])
        return int(table["step"][min(waited[-1] + 1, len(table["step"]) - 1)]) if waited.size else 0

    def means(self, start: int, end: int) -> dict[str, float]:
        """Means of the kinds, and of running and waiting requests, over the steps ``start`` to ``end`` - 1."""
        table = self.table()
        begins = np.clip(table["step"], start, end)
        lasts = np.diff(begins, append=end)
        names = (*KINDS, "running", "waiting")
        sums = {name: float(np.dot(table[name].astype(float), lasts)) for name in names}
        skipped = begins - table["step"]
        grown = float(np.dot(table["growing"].astype(float), lasts * skipped + lasts * (lasts - 1) / 2))
        sums["tokens"] += grown
        sums["reserved"] -= grown
        return {name: total / (end - start) for name, total in sums.items()}
