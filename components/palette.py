"""One colour and one name per engine and per kind of memory, the same on every page and in both themes.

From the Okabe-Ito set (told apart with every kind of colour blindness), shifted so that each has a contrast of at
least 3:1 on the light and on the dark background. Charts also label every bar and line in words.
"""

from __future__ import annotations

from engine.compare_results import ENGINE_LABELS

COLOURS = {
    "vllm": "#2477D4",
    "hf": "#DB6B0B",
    "vllm_eager": "#089A78",
    "llamacpp": "#BB3398",
    "transformers": "#857505",
}
NEUTRAL = "#7C8BA1"

# Kinds of memory differ in lightness and pattern (reserved is hatched), so they are told apart without colour too.
MEMORY_KINDS = ("tokens", "reserved", "internal", "external", "free")
MEMORY_NAMES = {
    "tokens": "Token states",
    "reserved": "Reserved",
    "internal": "Internal fragmentation",
    "external": "External fragmentation",
    "free": "Free",
}
# Of published values and of what is chosen, on top of the kinds.
MARK = "#F2B705"
MEMORY_LIGHT = {
    "tokens": "#5B57D9",
    "reserved": "#C9C8F4",
    "internal": "#DEDDF8",
    "external": "#B4BECC",
    "free": "#FFFFFF",
}
MEMORY_DARK = {
    "tokens": "#8380F0",
    "reserved": "#3C3B78",
    "internal": "#35355F",
    "external": "#566275",
    "free": "#0B111C",
}
# Contiguous allocators are grey, told apart by their dashes; every paged one has the colour of token states.
CONTIGUOUS_DASH = {"contiguous_max": "solid", "contiguous_pow2": "dash", "contiguous_oracle": "dot"}
PAGED = "#6C68E3"
# What a request is doing, and the measures that come of it: TTFT is queue and prefill, TPOT is decode.
PHASES = {"queued": NEUTRAL, "prefill": "#B07D00", "decode": COLOURS["vllm"], "failed": "#D43A3A"}
MEASURES = {
    "throughput": COLOURS["vllm"],
    "ttft": PHASES["prefill"],
    "tpot": "#BB3398",
    "e2e": "#8F5BD8",
    "goodput": "#0B7D5E",
}
# From little load to much of it; each at least 3:1 against both backgrounds.
LOADS = ("#10A49E", "#0A87B8", "#2477D4", "#635CE5", "#9A54E0", "#BB3398", "#DD3B6F", "#C44402")
# One per request, in turn: neighbours differ in hue and lightness, each at least 3:1 against both backgrounds.
REQUESTS = (
    "#EE4A73",
    "#078A5A",
    "#B464E8",
    "#857505",
    "#0F92F7",
    "#C44402",
    "#10A49E",
    "#BB3398",
    "#6AA300",
    "#635CE5",
    "#C47D04",
    "#0A819D",
)


def colour(engine: str) -> str:
    """Colour of an engine; grey for one that has none."""
    return COLOURS.get(engine, NEUTRAL)


def name(engine: str) -> str:
    """Name of an engine as people know it."""
    return ENGINE_LABELS.get(engine, engine)


def memory(theme: str | None) -> dict[str, str]:
    """Colours of the kinds of memory in the theme that Streamlit names ("light", "dark", or None: not known)."""
    return MEMORY_DARK if theme == "dark" else MEMORY_LIGHT


def load(number: int, of: int) -> str:
    """Colour of one level among several, the first the least load."""
    return LOADS[round(number * (len(LOADS) - 1) / max(1, of - 1))]


def allocator(name: str) -> str:
    return PAGED if name.startswith("paged") else NEUTRAL
