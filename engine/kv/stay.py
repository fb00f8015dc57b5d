"""One stay of a request in memory: from its admission until it ends or is preempted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.kv.workloads import Request


class Grant(NamedTuple):
    """Physical units that one sequence got for its logical units from ``logical`` on; ``copied``: copy on write.

    ``units`` is to be read at once: it may be the allocator's own list.
    """

    sequence: int
    logical: int
    units: Sequence[int]
    copied: bool = False


@dataclass(slots=True, eq=False)
class Stay:
    """A request in memory, with ``generated`` tokens done before. Present in the steps ``start`` to ``end`` - 1.

    The context is ``context_at(step)``: in the step of its admission the prompt (and what was generated before a
    preemption), then one token more each step. The last token that is sampled is never stored: vLLM ends there.
    ``tokens``, ``reserved``, ``internal`` and ``external`` are the slots of all its sequences at ``start``, plus what
    later grants added; from step to step a token moves from reserved to tokens for every sequence. ``hits`` counts
    the blocks that were found in the prefix cache.
    """

    request: Request
    serial: int
    start: int
    generated: int = 0
    tokens: int = 0
    reserved: int = 0
    internal: int = 0
    external: int = 0
    grows_at: int | None = None
    hits: int = 0

    @property
    def sequences(self) -> int:
        return self.request.samples

    @property
    def first_context(self) -> int:
        return self.request.prompt + self.generated

    @property
    def end(self) -> int:
        return self.start + self.request.output - self.generated

    def context_at(self, step: int) -> int:
        return self.request.prompt + self.generated + step - self.start

    def step_of(self, context: int) -> int | None:
        """When the context is that long; None if the request ends before."""
        step = self.start + context - self.first_context
        return step if step < self.end else None
