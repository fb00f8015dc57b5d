"""What changed between two measured levels of the same load, in words: from measured differences only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from engine.load.results import LevelResult
from engine.metrics import Distribution
from engine.units import counted

# Two levels of one and the same server differ by some percent; less than this is not called a change.
NOTICEABLE = 0.1
# The queue is named as the cause where it makes up at least so much of a change in TTFT.
MOST_OF_IT = 0.5
MS_PER_S = 1000


@dataclass(frozen=True)
class Delta:
    """One measure before and after; None where it is not known. ``better``: which way is good, None for neither."""

    name: str
    label: str
    unit: str
    before: float | None
    after: float | None
    good: Literal["up", "down"] | None

    @property
    def change(self) -> float | None:
        """Relative: 0.5 is half as much again. None where it can't be said."""
        if self.before is None or self.after is None:
            return None
        if self.before == 0:
            return 0.0 if self.after == 0 else None
        return (self.after - self.before) / abs(self.before)

    @property
    def noticeable(self) -> bool:
        if self.before is None or self.after is None:
            return False
        return self.change is None or abs(self.change) >= NOTICEABLE

    @property
    def better(self) -> bool | None:
        """None where nothing worth a word changed, or neither way is better."""
        if self.good is None or not self.noticeable or self.before is None or self.after is None:
            return None
        return (self.after > self.before) == (self.good == "up")

    @property
    def words(self) -> str:
        """Like "TTFT p95 fell from 1.3 s to 0.4 s"; empty where nothing worth a word changed."""
        if not self.noticeable or self.before is None or self.after is None:
            return ""
        verb = "rose" if self.after > self.before else "fell"
        return f"{self.label} {verb} from {_show(self.before, self.unit)} to {_show(self.after, self.unit)}"


@dataclass(frozen=True)
class Difference:
    """``headline`` is one sentence, ``causes`` say what the server's own numbers tell of it, ``caveats`` what may spoil
    the comparison."""

    headline: str
    causes: tuple[str, ...]
    caveats: tuple[str, ...]
    deltas: tuple[Delta, ...]


def difference(before: LevelResult, after: LevelResult) -> Difference:
    """Between two levels of the same load, measured before and after a change."""
    deltas = _deltas(before, after)
    named = {one.name: one for one in deltas}
    told = [named[name].words for name in ("ttft_p95_ms", "tpot_p50_ms", "throughput_tok_s") if named[name].words]
    headline = (
        f"{'; '.join([*told[:1], *map(_inside, told[1:])])}."
        if told
        else f"Nothing changed by {NOTICEABLE:.0%} or more."
    )
    causes = (_queue(before, after), _preempted(before, after), _cached(before, after), _trade(named), _room(named))
    return Difference(headline, tuple(filter(None, causes)), _caveats(before, after), deltas)


def _inside(words: str) -> str:
    """Inside a sentence; TTFT stays as it is."""
    return words[0].lower() + words[1:] if words[1:2].islower() else words


def _deltas(before: LevelResult, after: LevelResult) -> tuple[Delta, ...]:
    def delta(name: str, label: str, unit: str, good: Literal["up", "down"] | None, read: _Read) -> Delta:
        return Delta(name, label, unit, read(before), read(after), good)

    return (
        delta("throughput_tok_s", "Throughput", "tok/s", "up", lambda level: level.throughput_tok_s),
        delta("throughput_req_s", "Requests", "req/s", "up", lambda level: level.throughput_req_s),
        delta("ttft_p50_ms", "TTFT p50", "ms", "down", lambda level: _part(level.ttft_ms, "p50")),
        delta("ttft_p95_ms", "TTFT p95", "ms", "down", lambda level: _part(level.ttft_ms, "p95")),
        delta("tpot_p50_ms", "TPOT p50", "ms", "down", lambda level: _part(level.tpot_ms, "p50")),
        delta("tpot_p95_ms", "TPOT p95", "ms", "down", lambda level: _part(level.tpot_ms, "p95")),
        delta("e2e_p95_ms", "E2E p95", "ms", "down", lambda level: _part(level.e2e_ms, "p95")),
        delta("goodput_pct", "Goodput", "%", "up", lambda level: level.goodput_pct),
        delta("server_queue_mean_ms", "Queue time", "ms", "down", lambda level: _part(level.server_queue_ms, "mean")),
        delta("server_waiting_peak", "Most requests waiting", "", "down", lambda level: level.server_waiting_peak),
        delta("preemptions", "Preemptions", "", "down", lambda level: level.preemptions),
        delta("kv_cache_peak_pct", "KV cache in use, at most", "%", None, lambda level: level.kv_cache_peak_pct),
        delta("prefix_hit_pct", "Prompt tokens from the prefix cache", "%", "up", lambda level: level.prefix_hit_pct),
    )


_Read = Callable[[LevelResult], float | None]


def _part(values: Distribution | None, name: str) -> float | None:
    return float(getattr(values, name)) if values else None


def _queue(before: LevelResult, after: LevelResult) -> str:
    """Means, because only they add up: TTFT is time in the queue and everything else."""
    means = [_part(level.server_queue_ms, "mean") for level in (before, after)]
    firsts = [_part(level.ttft_ms, "mean") for level in (before, after)]
    if None in means or None in firsts:
        return ""
    queued_ms, first_ms = ((pair[1] or 0.0) - (pair[0] or 0.0) for pair in (means, firsts))
    if not Delta("", "", "ms", firsts[0], firsts[1], None).noticeable or not first_ms:
        return ""
    share = queued_ms / first_ms
    if share < MOST_OF_IT:
        return ""
    words = (
        f"Of the change in TTFT, {min(share, 1):.0%} is the queue: before, a request waited "
        f"{_show(means[0] or 0.0, 'ms')} on average until the server took it up, now {_show(means[1] or 0.0, 'ms')}"
    )
    return f"{words}. {_waiting(before.server_waiting_peak, after.server_waiting_peak)}".strip()


def _waiting(before: int | None, after: int | None) -> str:
    if before is None or after is None or not (before or after):
        return ""
    if not before:
        return f"None waited before, at most {after} at once now."
    return f"At most {before} waited at once before, {after or 'none'} now."


def _preempted(before: LevelResult, after: LevelResult) -> str:
    if before.preemptions is None or after.preemptions is None or before.preemptions == after.preemptions:
        return ""
    return (
        f"Requests were preempted {before.preemptions or 'no'} times before and {after.preemptions or 'no'} times now: "
        "a preempted request is computed again, because the KV cache was full."
    )


def _cached(before: LevelResult, after: LevelResult) -> str:
    shares = (before.prefix_hit_pct, after.prefix_hit_pct)
    if shares[0] is None or shares[1] is None or abs(shares[0] - shares[1]) < 100 * NOTICEABLE:
        return ""
    return f"{shares[0]:.0f}% of the prompt tokens came from the prefix cache before, {shares[1]:.0f}% now."


def _trade(named: dict[str, Delta]) -> str:
    """The trade of batching, where it is what was measured."""
    throughput, tpot = named["throughput_tok_s"], named["tpot_p50_ms"]
    if throughput.better and tpot.better is False:
        return "Each request is written more slowly than before, all of them together faster: they share the steps."
    if throughput.better is False and tpot.better:
        return "Each request is written faster than before, all of them together more slowly: fewer share a step."
    return ""


def _room(named: dict[str, Delta]) -> str:
    peak = named["kv_cache_peak_pct"]
    if peak.before is None or peak.after is None or abs(peak.before - peak.after) < 100 * NOTICEABLE:
        return ""
    return f"The KV cache was {peak.before:.0f}% full at most before, {peak.after:.0f}% now."


def _caveats(before: LevelResult, after: LevelResult) -> tuple[str, ...]:
    found: list[str] = []
    for level, when in ((before, "before"), (after, "after")):
        if level.partial:
            found.append(f"The level {when} is not whole: {level.partial}")
        if level.requests_failed:
            found.append(f"{level.requests_failed} of {counted(level.requests, 'request')} failed {when}.")
        found += [f"{badge.label} ({when}): {badge.why}" for badge in level.badges if badge.severity == "warning"]
    if (before.users, before.rate_req_s) != (after.users, after.rate_req_s):
        found.append("The two were not measured under the same load.")
    return tuple(found)


def _show(value: float, unit: str) -> str:
    if unit == "ms":
        return f"{value / MS_PER_S:.1f} s" if value >= MS_PER_S else f"{value:.{1 if 0 < value < 10 else 0}f} ms"
    shown = f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:,.1f}"
    return f"{shown}%" if unit == "%" else f"{shown} {unit}".strip()
