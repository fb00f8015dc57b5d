"""Which engine when, in sentences that follow from what was measured."""

from __future__ import annotations

from components import palette
from components.format import ratio
from engine.compare_results import CompareResults, Level, Mode
from engine.config import PEER_ENGINES

# An engine that shares its cores may lose far more than its share: the order itself is in doubt.
DISTURBED = "Other programs disturbed this measurement, so the order may be wrong: measure again at rest."


def sentences(results: CompareResults) -> list[str]:
    """One for every other server that vLLM was measured beside: with the fewest users, and with the most.

    Where the run warns of other work, a last one says that this may be wrong.
    """
    found = [sentence for engine in PEER_ENGINES if (sentence := _sentence(results, engine))]
    return [*found, DISTURBED] if found and results.warnings else found


def _sentence(results: CompareResults, engine: str) -> str:
    pairs = [
        (ours, theirs)
        for theirs in results.levels
        if theirs.engine == engine and (ours := results.level(theirs.users, Mode.CONCURRENT, "vllm")) is not None
    ]
    pairs = [pair for pair in pairs if all(level.throughput_tok_s for level in pair)]
    if not pairs:
        return ""
    few, many = min(pairs, key=_users), max(pairs, key=_users)
    parts = [_against(few)] if few == many else [_against(few), _against(many)]
    words = "; ".join(parts)
    return f"{words[0].upper()}{words[1:]}."


def _users(pair: tuple[Level, Level]) -> int:
    return pair[0].users


def _against(pair: tuple[Level, Level]) -> str:
    """Who writes more tokens per second, and how many times; nobody where the ranges of the repeats overlap."""
    users = pair[0].users
    who = "for one user" if users == 1 else f"with {users} at once"
    slow, fast = sorted(pair, key=lambda level: level.throughput_tok_s or 0.0)
    names = f"{palette.name(fast.engine)} writes", palette.name(slow.engine)
    if _overlap(slow, fast):
        return f"{who} {palette.name(pair[0].engine)} and {palette.name(pair[1].engine)} are about as fast"
    times = (fast.throughput_tok_s or 0.0) / (slow.throughput_tok_s or 1.0)
    return f"{who} {names[0]} {ratio(times)} the tokens per second of {names[1]}"


def _overlap(slow: Level, fast: Level) -> bool:
    return bool(slow.spread and fast.spread and slow.spread[1] >= fast.spread[0])
