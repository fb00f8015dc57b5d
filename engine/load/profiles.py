"""When requests are sent: the levels of a load test, and the arrivals within one.

A closed loop keeps a number of users busy, so a slow server is asked less often. An open loop sends by the clock,
whatever the server does, as a public service is asked.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, islice, takewhile

from engine.config import LOAD_LIMITS, LoadTestConfig
from engine.errors import ConfigError
from engine.kv.traces import Row, read_trace
from engine.load.results import LevelResult

# A p95 of fewer than 20 values is their maximum; three rounds a user are more than one wave of equal requests.
LEAST_REQUESTS, LEAST_ROUNDS = 20, 3
OPEN_LOOP_S = 30.0
MOST_REQUESTS = int(LOAD_LIMITS["requests"][1])
# Of the growth of the load: twice as many users must give 5% more tokens per second, a tenth more users 0.5%.
FLAT_GAIN = 0.05
LEAST_LEVELS_FOR_KNEE = 3


@dataclass(frozen=True)
class Level:
    """One level: ``users`` in a closed loop, or arrivals. ``requests`` None: as many as ``duration_s`` allows.

    ``rows`` are the lengths of a replayed trace, one for each arrival.
    """

    label: str
    users: int | None = None
    rate_req_s: float | None = None
    requests: int | None = None
    duration_s: float | None = None
    arrivals_s: tuple[float, ...] | None = None
    rows: tuple[Row, ...] = ()

    @property
    def load(self) -> float | None:
        """What it was set to, users or requests per second."""
        return self.rate_req_s if self.users is None else self.users


def levels_of(config: LoadTestConfig) -> tuple[Level, ...]:
    """All levels in order; those of a ramp end early where it saturates. Raises ConfigError for a trace."""
    match config.profile:
        case "closed":
            return tuple(_closed(config, users) for users in config.users)
        case "constant" | "poisson":
            return tuple(_by_rate(config, rate) for rate in config.rates)
        case "burst":
            return tuple(_burst(users) for users in config.users)
        case "ramp" if config.rates:
            return tuple(_by_rate(config, rate) for rate in doubling(config.rates))
        case "ramp":
            return tuple(_closed(config, round(users)) for users in doubling(config.users))
        case _:
            return (_replay(config),)


def doubling(ends: Sequence[float]) -> tuple[float, ...]:
    """From the lowest, doubling, to the highest."""
    low, high = min(ends), max(ends)
    steps = takewhile(lambda load: load < high, (low * 2**step for step in range(64)))
    return (*steps, high)


def constant(rate: float) -> Iterator[float]:
    """Evenly spaced seconds, without end; the first at once."""
    return (number / rate for number in count())


def poisson(rate: float, rng: random.Random) -> Iterator[float]:
    """Independent arrivals, without end: gaps are exponential, so that requests come in clusters and leave holes.

    Not stretched to the exact rate (as ``vllm bench serve`` does): a short level may hold more or fewer.
    """
    return accumulate(rng.expovariate(rate) for _ in count())


def saturated(before: LevelResult, after: LevelResult) -> bool:
    """More load gave (nearly) no more throughput for its growth, and requests wait longer."""
    if after.throughput_tok_s is None or before.throughput_tok_s is None:
        return after.requests_ok == 0
    flat = after.throughput_tok_s < (1 + FLAT_GAIN * _growth(before, after)) * before.throughput_tok_s
    return flat and _waits_longer(before, after)


def knee_of(levels: Sequence[LevelResult]) -> int | None:
    """Where throughput / E2E is highest: beyond it, latency grows faster than throughput (Kleinrock's power, 1979).

    None where that is the last level: nothing beyond it was measured.
    """
    powers = [
        level.throughput_tok_s / level.e2e_ms.mean if level.throughput_tok_s and level.e2e_ms else None
        for level in levels
    ]
    known = [power for power in powers if power is not None]
    best = powers.index(max(known)) if len(known) >= LEAST_LEVELS_FOR_KNEE else None
    return best if best != len(levels) - 1 else None


def _closed(config: LoadTestConfig, users: int) -> Level:
    requests = None if config.requests is None else max(config.requests, users)
    if requests is None and config.duration_s is None:
        requests = users * max(LEAST_ROUNDS, math.ceil(LEAST_REQUESTS / users))
    return Level(_users(users), users=users, requests=requests, duration_s=config.duration_s)


def _by_rate(config: LoadTestConfig, rate: float) -> Level:
    seconds = _open_loop_s(config)
    if config.requests is None and rate * seconds > MOST_REQUESTS:
        raise ConfigError(
            f"{rate:g} requests/s for {seconds:g} s are more than {MOST_REQUESTS:,}.", "Lower the rate or the duration."
        )
    rng = random.Random(f"arrivals {config.seed} {rate}")
    times = poisson(rate, rng) if config.profile == "poisson" else constant(rate)
    arrivals = tuple(takewhile(lambda time_s: time_s < seconds, islice(times, config.requests or MOST_REQUESTS)))
    if not arrivals:
        raise ConfigError(f"At {rate:g} requests/s none came within {seconds:g} s.", "Make the level longer.")
    return Level(
        f"{rate:g} requests/s",
        rate_req_s=rate,
        requests=len(arrivals),
        duration_s=config.duration_s,
        arrivals_s=arrivals,
    )


def _burst(users: int) -> Level:
    return Level(f"{users} at once", users=users, requests=users, arrivals_s=(0.0,) * users)


def _replay(config: LoadTestConfig) -> Level:
    rows = read_trace(config.trace, timed=True)
    first_s = rows[0].arrival or 0.0
    times = [((row.arrival or 0.0) - first_s) / config.trace_speed for row in rows]
    seconds = _open_loop_s(config)
    timed = ((time_s, row) for time_s, row in zip(times, rows, strict=True) if time_s < seconds)
    kept = list(islice(timed, config.requests or MOST_REQUESTS))
    return Level(
        f"trace, {config.trace_speed:g}×",
        requests=len(kept),
        arrivals_s=tuple(time_s for time_s, _ in kept),
        rows=tuple(row for _, row in kept),
    )


def _open_loop_s(config: LoadTestConfig) -> float:
    if config.duration_s is not None:
        return config.duration_s
    return OPEN_LOOP_S if config.requests is None else math.inf


def _growth(before: LevelResult, after: LevelResult) -> float:
    """By how much of itself the load grew, 1 for twice as much; not below 0."""
    earlier, later = (one.rate_req_s if one.users is None else one.users for one in (before, after))
    return 1.0 if not earlier or later is None else max(0.0, later / earlier - 1)


def _waits_longer(before: LevelResult, after: LevelResult) -> bool:
    for name in ("server_queue_ms", "ttft_ms"):
        earlier, later = getattr(before, name), getattr(after, name)
        if earlier is not None and later is not None:
            return bool(later.mean > earlier.mean)
    return False


def _users(users: int) -> str:
    return "1 user" if users == 1 else f"{users} users"
