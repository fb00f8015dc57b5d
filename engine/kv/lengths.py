"""How long prompts and answers are: samplers of (prompt tokens, output tokens).

ShareGPT: quantiles of the 79,725 first rounds that the PagedAttention paper's experiments ran (its artifact's list,
prompt + output < 2048), joined by a Gaussian copula with their rank correlation. Only these statistics are used; none
of them was chosen by looking at the paper's results. Alpaca: its list could not be had; the shapes are the reference
note's fit to the paper's batch sizes, with the paper's printed means (19.31 in, 58.45 out).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from statistics import NormalDist

Lengths = Iterator[tuple[int, int]]

SHAREGPT_PERCENTS = (
    *(0, 1, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90),
    *(92.5, 95, 97, 98, 99, 99.5, 100),
)
SHAREGPT_PROMPTS = (
    *(1, 2, 3, 7, 9, 11, 13, 15, 18, 21, 24, 29, 35, 44, 55, 71, 94, 133, 203, 324, 506),
    *(654, 863, 1087, 1229, 1460, 1636, 2028),
)
SHAREGPT_OUTPUTS = (
    *(1, 4, 10, 22, 45, 75, 101, 128, 157, 188, 216, 244, 271, 300, 330, 364, 405, 458, 525, 619, 754),
    *(799, 899, 1040, 1139, 1280, 1443, 2009),
)
SHAREGPT_RANK_CORRELATION = 0.20
SHAREGPT_TOTAL_BELOW = 2048
ALPACA_PROMPT_MU, ALPACA_PROMPT_SIGMA = 2.837, 0.5
ALPACA_OUTPUT_MEAN = 58.45
SHORT_PROMPT, LONG_PROMPT, LAB_OUTPUT = (8, 40), (120, 240), (16, 64)
USER_PROMPT, USER_OUTPUT = (8, 64), (16, 96)
SAMPLED_PROMPT, SAMPLED_OUTPUT = (40, 120), (32, 96)


def sharegpt(rng: random.Random) -> Lengths:
    """Pairs as in the paper's ShareGPT experiments."""
    pearson = 2 * math.sin(math.pi * SHAREGPT_RANK_CORRELATION / 6)
    share_below = NormalDist().cdf
    while True:
        first = rng.gauss()
        second = pearson * first + math.sqrt(1 - pearson**2) * rng.gauss()
        prompt = _quantile(SHAREGPT_PROMPTS, 100 * share_below(first))
        output = _quantile(SHAREGPT_OUTPUTS, 100 * share_below(second))
        if prompt + output < SHAREGPT_TOTAL_BELOW:
            yield prompt, output


def alpaca(rng: random.Random) -> Lengths:
    """Short instructions and answers; a fit, not the data set."""
    while True:
        prompt = round(rng.lognormvariate(ALPACA_PROMPT_MU, ALPACA_PROMPT_SIGMA))
        yield max(prompt, 1), max(round(rng.expovariate(1 / ALPACA_OUTPUT_MEAN)), 1)


def lab(rng: random.Random, long_share: float) -> Lengths:
    """The workshop's: short and long prompts, short answers."""
    while True:
        prompt = rng.randint(*(LONG_PROMPT if rng.random() < long_share else SHORT_PROMPT))
        yield prompt, rng.randint(*LAB_OUTPUT)


def with_prefix(rng: random.Random, prefix_tokens: int) -> Lengths:
    """A system prompt and a short question."""
    while True:
        yield prefix_tokens + rng.randint(*USER_PROMPT), rng.randint(*USER_OUTPUT)


def for_samples(rng: random.Random) -> Lengths:
    """A prompt to which several answers are sampled."""
    while True:
        yield rng.randint(*SAMPLED_PROMPT), rng.randint(*SAMPLED_OUTPUT)


def _quantile(values: tuple[int, ...], percent: float) -> int:
    """Linear between the known quantiles."""
    place = min(bisect_right(SHAREGPT_PERCENTS, percent), len(values) - 1)
    low, high = SHAREGPT_PERCENTS[place - 1], SHAREGPT_PERCENTS[place]
    return round(values[place - 1] + (values[place] - values[place - 1]) * (percent - low) / (high - low))
