"""One colour per engine, the same on every page and in both themes.

From the Okabe-Ito set (told apart with every kind of colour blindness), shifted so that each has a contrast of at
least 3:1 on the light and on the dark background. Charts also label every bar and line in words.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineLook:
    """Name for people and colour of one engine."""

    name: str
    colour: str


ENGINES = {
    "vllm": EngineLook("vLLM", "#2477D4"),
    "hf": EngineLook("Hugging Face", "#DB6B0B"),
    "vllm_eager": EngineLook("vLLM eager", "#089A78"),
    "llamacpp": EngineLook("llama.cpp", "#B5609B"),
}
NEUTRAL = "#7C8BA1"


def colour(engine: str) -> str:
    """Colour of an engine; grey for one that has none."""
    return ENGINES[engine].colour if engine in ENGINES else NEUTRAL


def name(engine: str) -> str:
    """Name of an engine as people know it."""
    return ENGINES[engine].name if engine in ENGINES else engine
