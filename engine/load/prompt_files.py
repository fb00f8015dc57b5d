"""Prompts from a file: JSONL, CSV, or the ShareGPT format. What is in it is sent as it is."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.config import LOAD_LIMITS
from engine.errors import ConfigError
from engine.load.order import Prompt

MOST_BYTES = 256 << 20
MOST_TOKENS = int(LOAD_LIMITS["max_tokens"][1])
LENGTH_NAMES = ("max_tokens", "output_tokens", "output_len")
TEXT_NAMES = ("prompt", "text", "question", "instruction")
FORMAT = (
    'JSONL: a line like {"prompt": "…", "max_tokens": 50}. CSV: a column prompt. '
    'ShareGPT: [{"conversations": [{"from": "human", "value": "…"}]}].'
)


def read_prompts(path: str, max_tokens: int) -> list[Prompt]:
    """All prompts of a file, in order; its own ``max_tokens`` where it has some. Raises ConfigError."""
    name = Path(path).name
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigError(f"{name} is larger than {MOST_BYTES >> 20} MiB.", "Cut it into parts.")
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"The prompts {name} can't be read: {reason}.", FORMAT) from error
    try:
        prompts = [prompt for prompt in _parse(text, path, max_tokens) if any(turn.strip() for turn in prompt.turns)]
    except (ValueError, RecursionError, csv.Error) as error:
        raise ConfigError(f"The prompts {name} can't be read: {error}.", FORMAT) from error
    if not prompts:
        raise ConfigError(f"{name} holds no prompts.", FORMAT)
    return prompts


def _parse(text: str, path: str, max_tokens: int) -> Iterator[Prompt]:
    if path.lower().endswith(".csv"):
        rows: Iterator[Any] = iter(csv.DictReader(io.StringIO(text, newline="")))
    elif text.lstrip().startswith("["):
        rows = iter(json.loads(text))
    else:
        rows = _json_lines(text)
    for number, row in enumerate(rows, 1):
        prompt = _prompt(row, max_tokens, f"entry {number}")
        if prompt is not None:
            yield prompt


def _json_lines(text: str) -> Iterator[Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} isn't JSON ({error})") from error


def _prompt(row: Any, max_tokens: int, where: str) -> Prompt | None:
    """None for a ShareGPT conversation in which nobody asks."""
    if isinstance(row, str):
        return Prompt(max_tokens, (row,))
    if not isinstance(row, dict):
        raise ValueError(f"{where} isn't an object")
    length = next((row[name] for name in LENGTH_NAMES if row.get(name) not in (None, "")), max_tokens)
    return _with_turns(row, _length(length, where), where)


def _with_turns(row: dict[Any, Any], max_tokens: int, where: str) -> Prompt | None:
    said = row.get("conversations") or row.get("messages")
    if isinstance(said, list):
        asked = [
            str(one.get("value") or one.get("content") or "")
            for one in said
            if isinstance(one, dict) and (one.get("from") or one.get("role")) in ("human", "user")
        ]
        # As vLLM's own benchmark does: the first question only.
        return Prompt(max_tokens, (asked[0],)) if asked else None
    for name in TEXT_NAMES:
        if isinstance(row.get(name), str):
            return Prompt(max_tokens, (row[name],))
    raise ValueError(f"{where} has no prompt")


def _length(value: Any, where: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{where}: max_tokens is {str(value)[:30]!r}") from None
    if not 1 <= number <= MOST_TOKENS:
        raise ValueError(f"{where}: max_tokens is {number}")
    return number
