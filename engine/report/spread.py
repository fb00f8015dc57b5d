"""Is a change larger than what repeats of the same thing differ by?

The rule: each run's own repeats, from the lowest to the highest. Ranges that don't overlap are a change beyond the
spread; ranges that do are within it. Where nothing was repeated it is unknown: the spread between the requests of
one run says nothing about the spread between runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb


def is_beyond_spread(before: Sequence[float], after: Sequence[float]) -> bool | None:
    """None where one of them was not repeated."""
    if len(before) < 2 or len(after) < 2:
        return None
    return max(before) < min(after) or max(after) < min(before)


def chance_pct(before: Sequence[float], after: Sequence[float]) -> float | None:
    """How often the ranges of two equal things lie apart by chance alone: 10% for three repeats each.

    Of all orders of n + m values, two keep the n together at one end: 2 / C(n + m, n).
    """
    if len(before) < 2 or len(after) < 2:
        return None
    return 200 / comb(len(before) + len(after), len(before))
