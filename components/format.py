"""Numbers as people read them (from ``engine.units``), and text from outside made harmless for markdown."""

from __future__ import annotations

import re

from engine.units import (
    UNKNOWN,
    millis,
    moment,
    number,
    percent,
    ratio,
    roughly,
    seconds,
    short,
    size,
    speed,
    with_unit,
)

__all__ = [
    "UNKNOWN",
    "millis",
    "moment",
    "number",
    "percent",
    "plain",
    "ratio",
    "roughly",
    "seconds",
    "short",
    "size",
    "speed",
    "with_unit",
]
LINE_ENDS = re.compile(r"[\r\n]+")
MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:&])")


def plain(text: object) -> str:
    """Text from outside (a model, a log, a file name) for a place that reads markdown: every mark is escaped."""
    return MARKDOWN_SPECIAL.sub(r"\\\1", LINE_ENDS.sub(" ", str(text)))
