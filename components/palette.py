"""One colour and one name per engine and per kind of memory, the same on every page and in both themes.

From the Okabe-Ito set (told apart with every kind of colour blindness), shifted so that each has a contrast of at
least 3:1 on the light and on the dark background. Charts also label every bar and line in words.
"""

from __future__ import annotations

from engine.compare_results import ENGINE_LABELS

COLOURS = {"vllm": "#2477D4", "hf": "#DB6B0B", "vllm_eager": "#089A78"}
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


def allocator(name: str) -> str:
    return PAGED if name.startswith("paged") else NEUTRAL
