"""One colour and one name per engine, the same on every page and in both themes.

From the Okabe-Ito set (told apart with every kind of colour blindness), shifted so that each has a contrast of at
least 3:1 on the light and on the dark background. Charts also label every bar and line in words.
"""

from __future__ import annotations

from engine.compare_results import ENGINE_LABELS

COLOURS = {"vllm": "#2477D4", "hf": "#DB6B0B", "vllm_eager": "#089A78"}
NEUTRAL = "#7C8BA1"


def colour(engine: str) -> str:
    """Colour of an engine; grey for one that has none."""
    return COLOURS.get(engine, NEUTRAL)


def name(engine: str) -> str:
    """Name of an engine as people know it."""
    return ENGINE_LABELS.get(engine, engine)
