"""Numbers of a load test by the convention that was chosen, their formulas, and what speaks against each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.config import LoadTestConfig
from engine.load.badges import NEEDED
from engine.load.results import PARTS, Badge, LevelResult, LoadResults
from engine.metrics import METRIC_HELP
from engine.store import Run

LAB = "lab"
CONVENTIONS = {LAB: "this lab", "vllm_bench": "vLLM bench", "guidellm": "guidellm"}
MEASURES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
# What other tools define differently; from ``engine.load.conventions``, which computes it.
OTHERS_HELP: dict[str, dict[str, str]] = {
    "vllm_bench": {
        "TTFT": "request sent → first chunk with a choice, even without text",
        "TPOT": "(last chunk − first chunk) / (output tokens − 1)",
        "ITL": "gaps between consecutive chunks, pooled; the finish reason counts as a chunk",
        "E2E": "request sent → last chunk, finish reason included",
        "throughput": "Σ output tokens of finished requests / time from first send until the last stream closed",
    },
    "guidellm": {
        "TTFT": "request sent → first chunk with text",
        "TPOT": "(last chunk − request sent) / output tokens: the wait for the first token is in it; "
        "weighted by tokens",
        "ITL": "(last chunk − first chunk) / (output tokens − 1), which we call TPOT; weighted by tokens",
        "E2E": "request sent → the stream has closed",
        "throughput": "Σ output tokens of finished requests / time from first send until the last stream closed",
        "percentile": "the smallest value that reaches the share; nothing is interpolated",
    },
}
WHOLE_LEVEL = "level"
# Which numbers a badge speaks against; "few_samples" is about percentiles, whatever is measured.
SPEAKS_AGAINST: dict[str, tuple[str, ...]] = {
    "failed": ("requests",),
    "partial": ("requests",),
    "cache_warm": ("ttft",),
    "client_bound": (WHOLE_LEVEL,),
    "client_late": ("ttft", "itl"),
    "others_busy": (WHOLE_LEVEL,),
    "sent_late": ("ttft", "e2e"),
    "first_slow": ("ttft",),
    "not_warmed": ("ttft",),
    "preempted": ("throughput", "tpot", "e2e"),
    "unequal_lengths": ("throughput",),
}


def value_of(level: LevelResult, name: str, convention: str = LAB) -> float | None:
    """A number by its name in ``LevelResult.to_dict``: ``ttft_p95_ms``, ``throughput_tok_s``."""
    measure, part = split(name)
    if convention != LAB and (measure in MEASURES or name in ("throughput_tok_s", "throughput_req_s")):
        return level.conventions.get(convention, {}).get(name)
    if measure not in MEASURES:
        found: float | None = getattr(level, name)
        return found
    values = getattr(level, f"{measure}_ms")
    return None if values is None else getattr(values, part)


def split(name: str) -> tuple[str, str]:
    """“ttft_p95_ms” → ttft and p95; what is no statistic has no part."""
    measure, _, part = name.removesuffix("_ms").rpartition("_")
    return (measure, part) if part in PARTS else (name.partition("_")[0], "")


def formula(measure: str, convention: str = LAB) -> str:
    """How a measure ("TTFT", "throughput") is defined in a convention."""
    others = OTHERS_HELP.get(convention, {})
    words = others.get(measure, METRIC_HELP.get(measure, ""))
    return words if convention == LAB or measure not in others else f"{CONVENTIONS[convention]}: {words}"


def percentile_formula(convention: str = LAB) -> str:
    return OTHERS_HELP.get(convention, {}).get("percentile", METRIC_HELP["percentile"])


def doubts(level: LevelResult, name: str) -> tuple[Badge, ...]:
    """The badges that speak against one number of a level, or against all of them (``WHOLE_LEVEL``)."""
    return tuple(badge for badge in level.badges if _speaks_against(badge, level, *split(name)))


def _speaks_against(badge: Badge, level: LevelResult, measure: str, part: str) -> bool:
    if badge.code == "few_samples":
        return level.requests_ok < NEEDED.get(part, 0)
    return measure in SPEAKS_AGAINST.get(badge.code, ())


def load_of(level: LevelResult) -> float | None:
    """What the level was set to: users or requests per second; None for a trace."""
    return level.rate_req_s if level.users is None else level.users


def load_title(config: LoadTestConfig | None, levels: Iterable[LevelResult]) -> str:
    """Title of an axis of loads."""
    if any(level.rate_req_s is not None for level in levels):
        return "Requests per second, as sent"
    return "Requests at the same moment" if config and config.profile == "burst" else "Users at the same time"


def best(levels: Sequence[LevelResult], convention: str = LAB) -> LevelResult | None:
    """The level with the most tokens per second, which is the headline; else the last one."""
    known = [level for level in levels if value_of(level, "throughput_tok_s", convention) is not None]
    if known:
        return max(known, key=lambda level: value_of(level, "throughput_tok_s", convention) or 0.0)
    return levels[-1] if levels else None


def times_one_user(level: LevelResult, levels: Sequence[LevelResult], convention: str = LAB) -> float | None:
    """Throughput as a multiple of what one user alone got in the same test."""
    one = next((other for other in levels if other.users == 1), None)
    if one is None or one is level or level.users is None:
        return None
    alone, together = (value_of(each, "throughput_tok_s", convention) for each in (one, level))
    return together / alone if together is not None and alone else None


def saved_load(run: Run) -> LoadResults | None:
    """Results of a saved load test; None for another kind of run, and for one that is damaged."""
    if run.kind != "load":
        return None
    try:
        results = LoadResults.from_dict(run.results)
        sound = all(_is_number(value_of(level, name)) for level in results.levels for name in NUMBERS)
        sound = sound and all(_is_number(load_of(level)) and _texts(level) for level in results.levels)
        return results if sound and _is_index(results.knee, len(results.levels)) else None
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


NUMBERS = (
    *(f"{measure}_{part}_ms" for measure in MEASURES for part in PARTS),
    *("throughput_tok_s", "throughput_req_s", "total_tok_s", "goodput_req_s", "goodput_pct", "wall_s"),
    *("requests_ok", "requests_failed", "requests_cancelled", "preemptions", "kv_cache_peak_pct", "prefix_hit_pct"),
    *("client_cpu_ms_per_token", "client_cpu_pct", "loop_lag_p99_ms", "server_waiting_peak"),
)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_index(value: object, length: int) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < length)


def _texts(level: LevelResult) -> bool:
    badges = (text for badge in level.badges for text in (badge.code, badge.label, badge.why, badge.severity))
    samples = (sample.ttft_ms for sample in level.samples)
    tools = (number for values in level.conventions.values() for number in values.values())
    return (
        isinstance(level.partial, str)
        and all(isinstance(text, str) for text in badges)
        and all(map(_is_number, (*samples, *tools)))
    )
