"""How long a comparison will take, from what earlier ones took with the same model on the same machine.

Where nothing comparable was measured there is no estimate. Between and beyond measured numbers of users it is a span:
a batch takes no less time than a smaller one, and no more than its share of that would be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from engine.compare_plan import Shape, shapes, vllm_engines
from engine.compare_results import APART_NOTE, CompareResults, Mode
from engine.config import PEER_ENGINES, CompareConfig
from engine.store import Run

# Loaded anew for every comparison, whatever the lab's server does.
ALONE = frozenset({"hf", *PEER_ENGINES})
# Below some 250 tokens more or less, reading the prompt changes little of a whole answer's time.
SIMILAR_PROMPT_CHARS = 1000


@dataclass(frozen=True)
class Span:
    """Seconds, from at least to at most."""

    low_s: float = 0.0
    high_s: float = 0.0

    def __add__(self, other: Span) -> Span:
        return Span(self.low_s + other.low_s, self.high_s + other.high_s)

    def times(self, factor: float) -> Span:
        return Span(self.low_s * factor, self.high_s * factor)

    def less(self, passed_s: float) -> Span:
        """What is left after ``passed_s``; never below nothing."""
        return Span(max(0.0, self.low_s - passed_s), max(0.0, self.high_s - passed_s))

    @classmethod
    def of(cls, value_s: float) -> Self:
        return cls(value_s, value_s)


@dataclass(frozen=True)
class Estimate:
    """``steps``: the time before the first repeat, then that of every repeat (warm-ups too) until the next begins.

    ``runs`` is how many earlier runs it was made from.
    """

    steps: tuple[Span, ...]
    runs: int

    @property
    def total(self) -> Span:
        return sum(self.steps, Span())

    def left(self, begun: int, since_s: float) -> Span:
        """When ``begun`` repeats have begun, the newest of them ``since_s`` seconds ago."""
        return sum(self.steps[begun + 1 :], sum(self.steps[begun : begun + 1], Span()).less(since_s))


def estimate(
    runs: Iterable[Run], config: CompareConfig, *, machine: str, model: str, server_ready: bool
) -> Estimate | None:
    """From runs, newest first; ``machine`` is an environment's summary. None as soon as one part is not known."""
    history = _History()
    for run in runs:
        if _comparable(run, config, machine, model):
            history.learn(run)
    first = Span()
    if "vllm" in config.engines and not server_ready:
        start = history.load("vllm")
        if start is None:
            return None
        first = start
    steps, before = [first], ""
    for shape in shapes(config):
        if shape.engine != before:
            ready = _getting_ready(history, shape.engine, config)
            if ready is None:
                return None
            steps[-1] += ready
            before = shape.engine
        per_token = history.per_token(shape)
        if per_token is None:
            return None
        steps += [per_token.times(config.max_tokens)] * (config.repeats + 1)
    return Estimate(tuple(steps), history.runs)


def _getting_ready(history: _History, engine: str, config: CompareConfig) -> Span | None:
    """What passes between the engine before and the first repeat of this one."""
    if engine in ALONE or len(vllm_engines(config)) > 1:  # loaded anew, or the server restarted in another mode
        return history.load(engine)
    if history.apart and "hf" in config.engines:
        start = history.load(engine) or Span()
        return Span(0.0, start.high_s)
    return Span()


def _comparable(run: Run, config: CompareConfig, machine: str, model: str) -> bool:
    saved = (run.config, run.environment, run.model)
    if not all(isinstance(part, dict) for part in saved):  # damaged
        return False
    prompt = run.config.get("prompt")
    return (
        run.environment.get("summary") == machine
        and run.model.get("model_id") == model
        and isinstance(prompt, str)
        and abs(len(prompt) - len(config.prompt)) < SIMILAR_PROMPT_CHARS
    )


@dataclass
class _History:
    """What was measured before; the newest measurement of a thing counts.

    ``token_s``: for an engine and a way of asking, by users, the seconds that all of them took per token of one answer.
    """

    load_s: dict[str, float] = field(default_factory=dict)
    token_s: dict[tuple[str, Mode], dict[int, float]] = field(default_factory=dict)
    apart: bool = False
    runs: int = 0

    def learn(self, run: Run) -> None:
        try:
            results = CompareResults.from_dict(run.results)
        except (KeyError, TypeError, ValueError, AttributeError):
            return  # a damaged run teaches nothing
        tokens = _positive(run.config.get("max_tokens"))
        if tokens is None:
            return
        # vLLM's numbers of a server that wasn't the lab's say nothing about this machine.
        ours = ALONE | ({"vllm", "vllm_eager"} if run.config.get("server") else set())
        known = self._size()
        for name, engine in results.engines.items():
            if name in ours and (load_s := _positive(engine.load_s)) is not None:
                self.load_s.setdefault(name, load_s)
        for level in results.levels:
            generate_s, users = _positive(level.generate_s), _positive(level.users)
            if level.engine in ours and generate_s is not None and users is not None:
                self.token_s.setdefault((level.engine, level.mode), {}).setdefault(int(users), generate_s / tokens)
        if self._size() > known:
            self.runs += 1
            self.apart = self.apart or APART_NOTE in results.notes

    def load(self, engine: str) -> Span | None:
        """From nothing to ready."""
        return Span.of(self.load_s[engine]) if engine in self.load_s else None

    def per_token(self, shape: Shape) -> Span | None:
        """Seconds of one repeat of this shape per token of an answer."""
        measured = dict(self.token_s.get((shape.engine, shape.mode), {}))
        if shape.mode == Mode.STATIC_BATCH:  # a batch of one is one request
            one = self.token_s.get((shape.engine, Mode.SEQUENTIAL), {})
            measured = {users: token_s for users, token_s in one.items() if users == 1} | measured
        if not measured:
            return None
        if shape.mode == Mode.SEQUENTIAL:
            nearest = min(measured, key=lambda users: abs(users - shape.users))
            return Span.of(measured[nearest] / nearest * shape.users)
        return _between(measured, shape.users)

    def _size(self) -> int:
        return len(self.load_s) + sum(map(len, self.token_s.values()))


def _between(measured: dict[int, float], users: int) -> Span:
    """All at once: by what a smaller and a larger number of users took."""
    if users in measured:
        return Span.of(measured[users])
    smaller = [n for n in measured if n < users]
    larger = [n for n in measured if n > users]
    at_least = measured[max(smaller)] if smaller else measured[min(larger)] * users / min(larger)
    at_most = measured[min(larger)] if larger else measured[max(smaller)] * users / max(smaller)
    return Span(min(at_least, at_most), max(at_least, at_most))  # measured numbers vary: a larger batch may have won


def _positive(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
