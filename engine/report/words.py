"""The few words and numbers that stand for a run, and for a change."""

from __future__ import annotations

from collections.abc import Sequence

from engine.imports.mark import kind_of
from engine.imports.values import mapping, number
from engine.report.comparing import Change
from engine.report.measures import MEASURES, text_of
from engine.report.points import Point
from engine.store import Run
from engine.units import UNKNOWN, ratio

LONGEST_NAME = 48


def name_of(run: Run, place: int) -> str:
    """Short, and different for every run of a comparison: “2 · 1, 5, 10, 20 users”."""
    what = run.title.partition(": ")[0]
    return f"{place} · {what if len(what) <= LONGEST_NAME else what[: LONGEST_NAME - 1] + '…'}"


def headline(run: Run, points: Sequence[Point]) -> list[tuple[str, str]]:
    """At most four (label, value): the ratio of a comparison, or the level with the most tokens per second."""
    found: list[tuple[str, str]] = []
    if kind_of(run.kind) == "compare" and (times := number(mapping(run.results).get("ratio"))) is not None:
        found.append(("vLLM against Hugging Face, one request", ratio(times)))
    top = _fastest(points)
    if top is None:
        return found
    names = ("throughput_tok_s", "ttft_p95_ms", "ttft_ms", "ttft_median_ms", "tpot_p95_ms", "tpot_ms", "tpot_median_ms")
    known = [name for name in (*names, "goodput_pct") if top.values.get(name) is not None]
    found += [(f"{MEASURES[name].label}, {top.name}", text_of(name, top.values[name])) for name in known]
    return found[:4]


def _fastest(points: Sequence[Point]) -> Point | None:
    known = [point for point in points if point.values.get("throughput_tok_s") is not None]
    if known:
        return max(known, key=lambda point: point.values["throughput_tok_s"] or 0.0)
    return points[0] if points else None


def change_words(metric: str, change: Change) -> str:
    """“(+12 tok/s, +3.4%, beyond the spread)”; empty where one of the two is unknown."""
    if change.absolute is None:
        return ""
    if not change.absolute:
        return "(the same)"
    sign = "+" if change.absolute > 0 else "−"
    amount = f"{sign}{text_of(metric, abs(change.absolute))}"
    share = "" if change.relative_pct is None else f", {sign}{abs(change.relative_pct):.1f}%"
    return f"({amount}{share}{SPREAD_WORDS[change.beyond_spread]})"


SPREAD_WORDS = {True: ", beyond the spread", False: ", within the spread", None: ""}


def verdict(metric: str, change: Change) -> str:
    """“better”, “worse”, “same” or “” where that can't be said; for colours, never the only sign."""
    better = MEASURES[metric].better
    if not change.absolute or not better:
        return ""
    return "better" if change.absolute * better > 0 else "worse"


def spread_words(metric: str, repeats: Sequence[float] | None) -> str:
    """“31 tok/s to 35 tok/s over 3 repeats”."""
    if not repeats:
        return UNKNOWN
    return f"{text_of(metric, min(repeats))} to {text_of(metric, max(repeats))} over {len(repeats)} repeats"
