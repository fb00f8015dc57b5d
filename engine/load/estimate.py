"""How long a load test will take, from what earlier ones took with the same model on the same machine.

An open loop takes as long as its arrivals, or longer where the server falls behind; a closed loop as long as the
server needs. Where nothing comparable was measured, only what the clock alone decides is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.compare_estimate import Span
from engine.config import LoadTestConfig
from engine.load.measure import WARM_UP_TOKENS
from engine.load.profiles import Level, levels_of
from engine.load.results import LevelResult, LoadResults
from engine.store import Run


@dataclass(frozen=True)
class LoadEstimate:
    """``span`` None: nothing tells. ``requests`` None: as many as the time allows. ``runs``: how many it is from."""

    levels: int
    requests: int | None
    span: Span | None
    runs: int = 0


def estimate(runs: Iterable[Run], config: LoadTestConfig, *, machine: str, model: str) -> LoadEstimate:
    """From runs, newest first; ``machine`` is an environment's summary. Raises ConfigError for what can't be sent."""
    levels = levels_of(config)
    history = _History()
    for run in runs:
        if _comparable(run, config, machine, model):
            history.learn(run)
    counts = [level.requests for level in levels]
    requests = None if None in counts else sum(count or 0 for count in counts)
    spans = [_span(level, config, history) for level in levels]
    known = [span for span in spans if span is not None]
    total = sum(known, Span()) if len(known) == len(spans) else None
    if total is not None and config.profile == "ramp" and len(known) > 1:
        total = Span(known[0].low_s + known[1].low_s, total.high_s)  # it ends where the server is saturated
    by_history = history.runs if total is not None else 0
    return LoadEstimate(len(levels), requests, total, by_history)


def _span(level: Level, config: LoadTestConfig, history: _History) -> Span | None:
    pace = history.token_s(level)
    warm_up = Span()
    if pace is not None and config.warm_up:
        warm_up = pace.times((level.users or 1) * min(WARM_UP_TOKENS, config.max_tokens))
    tokens = sum(row.output for row in level.rows) or (level.requests or 0) * config.max_tokens
    work = pace.times(tokens) if pace is not None and tokens else None
    if level.arrivals_s is not None:
        last_s = level.arrivals_s[-1]
        if work is None:
            return Span.of(last_s) if last_s else None  # a burst takes as long as the server does
        return Span(max(last_s, work.low_s), max(last_s, work.high_s)) + warm_up
    if level.duration_s is not None:
        return Span.of(level.duration_s) + warm_up
    return None if work is None else work + warm_up


def _comparable(run: Run, config: LoadTestConfig, machine: str, model: str) -> bool:
    saved = (run.config, run.environment, run.model)
    if run.kind != "load" or not all(isinstance(part, dict) for part in saved):
        return False
    same_prompts = run.config.get("prompts") == config.prompts and run.config.get("profile") != "trace"
    tokens = run.config.get("prompt_tokens")
    return (
        same_prompts
        and isinstance(tokens, int)
        and tokens / 2 <= config.prompt_tokens <= tokens * 2
        and run.environment.get("summary") == machine
        and run.model.get("model_id") == model
    )


@dataclass
class _History:
    """Seconds per output token of all users together, by users; the newest measurement counts."""

    by_users: dict[int, float] = field(default_factory=dict)
    runs: int = 0

    def learn(self, run: Run) -> None:
        known = len(self.by_users)
        for level in _levels(run.results):
            if level.users and level.wall_s and level.output_tokens and not level.partial:
                self.by_users.setdefault(level.users, level.wall_s / level.output_tokens)
        self.runs += len(self.by_users) > known

    def token_s(self, level: Level) -> Span | None:
        """An open loop may keep as many requests in flight as it likes: the fastest that was measured."""
        if not self.by_users:
            return None
        if level.users is None:
            return Span.of(min(self.by_users.values()))
        smaller = max((users for users in self.by_users if users <= level.users), default=None)
        larger = min((users for users in self.by_users if users >= level.users), default=None)
        # Beyond what was measured: more users are together as fast as fewer, or up to in proportion faster.
        if smaller is None or larger is None:
            edge = larger if smaller is None else smaller
            assert edge is not None
            nearest = [self.by_users[edge], self.by_users[edge] * edge / level.users]
        else:
            nearest = [self.by_users[smaller], self.by_users[larger]]
        return Span(min(nearest), max(nearest))


def _levels(results: Mapping[str, Any]) -> Sequence[LevelResult]:
    try:
        return LoadResults.from_dict(results).levels
    except (LookupError, TypeError, ValueError, AttributeError):
        return ()  # a damaged run teaches nothing
