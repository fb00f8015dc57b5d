"""Several servers at once: one view each, and all of them summed.

Targets live in memory only, with their keys. They are read once a second while somebody looks, each on a thread of its
own, so that one that hangs keeps no other waiting.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from engine.config import Endpoint
from engine.dialects import Detected, detect
from engine.errors import AlreadyRunning, ConfigError, LabError
from engine.fetch import api_key_of, base_url_of
from engine.telemetry.prometheus import ServerMetrics, scrape

MOST_TARGETS = 16
EVERY_S = 1.0
LOOK_LASTS_S = 5.0
TIMEOUT_S = 2.0
RATE_OVER_S = 5.0
# A server that nobody knows isn't asked again at every reading.
DETECT_EVERY_S = 15.0
HISTORY = 300
N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Moment:
    """One reading. ``at_s`` is Unix time; ``metrics`` is None where the target said nothing: a gap, no zero."""

    at_s: float
    metrics: ServerMetrics | None
    prompt_tok_s: float | None = None
    generation_tok_s: float | None = None


@dataclass(frozen=True)
class TargetView:
    """One target now. ``moments`` are the last minutes, oldest first; ``problem`` is empty where it answers."""

    name: str
    base_url: str
    detected: Detected | None = None
    problem: str = ""
    moments: tuple[Moment, ...] = ()

    @property
    def now(self) -> Moment | None:
        return self.moments[-1] if self.moments else None

    @property
    def answers(self) -> bool:
        return self.now is not None and self.now.metrics is not None


@dataclass(frozen=True)
class Totals:
    """Sums over the targets that tell; None where none does. ``kv_cache_usage`` (0 to 1) is that of the fullest."""

    answering: int = 0
    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    prompt_tok_s: float | None = None
    generation_tok_s: float | None = None
    kv_cache_usage: float | None = None


@dataclass(frozen=True)
class FleetSnapshot:
    targets: tuple[TargetView, ...] = ()

    @property
    def totals(self) -> Totals:
        """Of the targets that answer now."""
        now = [target.now for target in self.targets if target.answers]
        metrics = [moment.metrics for moment in now if moment and moment.metrics]
        fullest = [one.kv_cache_usage for one in metrics if one.kv_cache_usage is not None]
        return Totals(
            answering=len(metrics),
            running=_sum(one.running for one in metrics),
            waiting=_sum(one.waiting for one in metrics),
            preemptions=_sum(one.preemptions for one in metrics),
            prompt_tok_s=_sum(moment.prompt_tok_s for moment in now if moment),
            generation_tok_s=_sum(moment.generation_tok_s for moment in now if moment),
            kv_cache_usage=max(fullest, default=None),
        )


@dataclass
class _Target:
    """``stop`` ends its thread; the rest is guarded by the fleet's lock."""

    endpoint: Endpoint
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    detected: Detected | None = None
    asked_s: float = -math.inf
    problem: str = ""
    moments: deque[Moment] = field(default_factory=lambda: deque(maxlen=HISTORY))


class Fleet:
    """Any thread may call."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._targets: dict[str, _Target] = {}
        self._looked_s = 0.0
        self._closed = False

    def add(self, base_url: str, name: str = "", api_key: str = "") -> str:
        """Watch one more; returns its name. Raises ConfigError, or AlreadyRunning when that name is taken."""
        url = base_url_of(base_url)
        endpoint = Endpoint(url, "", api_key_of(api_key))
        name = " ".join(name.split()) or url.split("://", 1)[1].removesuffix("/v1")
        with self._lock:
            if name in self._targets:
                raise AlreadyRunning(f"{name} is watched already.", "Give another name.")
            if len(self._targets) >= MOST_TARGETS:
                raise ConfigError(f"More than {MOST_TARGETS} targets are too many for one page.", "Use Prometheus.")
            self._targets[name] = _Target(endpoint)
        return name

    def remove(self, name: str) -> None:
        """Forget it, and its key; nothing happens when it isn't there."""
        with self._lock:
            gone = self._targets.pop(name, None)
        if gone is not None:
            gone.stop.set()

    def look(self) -> FleetSnapshot:
        """The state now; keeps readings coming for the next few seconds."""
        with self._lock:
            self._looked_s = time.monotonic()
            for target in self._targets.values():
                if not self._closed and (target.thread is None or not target.thread.is_alive()):
                    target.thread = threading.Thread(target=self._watch, args=(target,), name="fleet", daemon=True)
                    target.thread.start()
            return FleetSnapshot(tuple(_view(name, target) for name, target in self._targets.items()))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            targets = list(self._targets.values())
            self._targets.clear()
        for target in targets:
            target.stop.set()

    # -- on a target's thread

    def _watch(self, target: _Target) -> None:
        while not target.stop.is_set():
            with self._lock:
                if time.monotonic() - self._looked_s > LOOK_LASTS_S:
                    target.thread = None
                    return
            began = time.monotonic()
            self._read(target)
            target.stop.wait(max(0.0, EVERY_S - (time.monotonic() - began)))

    def _read(self, target: _Target) -> None:
        metrics: ServerMetrics | None = None
        problem, detected = "", target.detected
        try:
            if detected is None and time.monotonic() - target.asked_s > DETECT_EVERY_S:
                detected = detect(target.endpoint, timeout_s=TIMEOUT_S)
                target.asked_s = time.monotonic()
            engine = detected.dialect.key if detected and detected.known else None
            metrics = scrape(replace(target.endpoint, engine=engine), TIMEOUT_S)
            if metrics == ServerMetrics(engine=engine):
                problem, metrics = "It answers, but sends no metrics that are known here.", None
        except LabError as error:
            problem = str(error)
        except Exception as error:  # the page shows it; a thread's traceback nobody sees
            problem = f"{type(error).__name__}: {error}"
        with self._lock:
            # One that is lost, or was not known, may be another engine when it comes back.
            target.detected = detected if metrics is not None else None
            target.problem = problem
            target.moments.append(_moment(self._clock(), metrics, target.moments))


def _view(name: str, target: _Target) -> TargetView:
    return TargetView(name, target.endpoint.base_url, target.detected, target.problem, tuple(target.moments))


def _moment(at_s: float, metrics: ServerMetrics | None, before: Iterable[Moment]) -> Moment:
    if metrics is None:
        return Moment(at_s, None)
    prompt = _rate(at_s, metrics, before, lambda one: one.prompt_tokens)
    generation = _rate(at_s, metrics, before, lambda one: one.generation_tokens)
    return Moment(at_s, metrics, prompt, generation)


def _rate(
    at_s: float, metrics: ServerMetrics, before: Iterable[Moment], count: Callable[[ServerMetrics], int | None]
) -> float | None:
    """Tokens per second over the last moments; None across a gap or a restart, when a counter begins anew."""
    now = count(metrics)
    first: tuple[float, int] | None = None
    last = now
    for moment in reversed(list(before)):
        value = count(moment.metrics) if moment.metrics else None
        if value is None or last is None or value > last or not 0 < at_s - moment.at_s <= RATE_OVER_S:
            break
        first, last = (moment.at_s, value), value
    return None if first is None or now is None else (now - first[1]) / (at_s - first[0])


def _sum(values: Iterable[N | None]) -> N | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
