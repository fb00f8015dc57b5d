"""Requests from a CSV file (``arrival_s,input_tokens,output_tokens``) or typed by hand."""

from __future__ import annotations

import csv
import errno
import math
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from engine.config import SIMULATION_LIMITS
from engine.errors import ConfigError

COLUMNS = ("input_tokens", "output_tokens")
ARRIVAL = "arrival_s"
SAMPLE_TRACE = Path(__file__).parent / "samples" / "azure_conversation_sample.csv"
SAMPLE_CREDIT = "Azure LLM inference trace 2023, conversation (Patel et al., Splitwise, ISCA 2024; CC BY 4.0)"
MOST_SLOTS = SIMULATION_LIMITS["memory_tokens"][1]
MOST_ROWS = 1_000_000
MOST_BYTES = 256 * 1024**2
MOST_TOKENS = 10_000_000
LATEST_S = 1e8
MOST_TYPED = 1000
FORMAT = "It needs the columns arrival_s, input_tokens and output_tokens, with a header line."


class Row(NamedTuple):
    """``arrival_s`` is seconds (a trace) or a step (typed); None where the source has no times."""

    arrival: float | None
    prompt: int
    output: int


def read_trace(path: str, *, timed: bool) -> list[Row]:
    """All rows of a trace, in order of arrival where they are ``timed``. Raises ConfigError naming file and line."""
    if not path.strip():
        raise ConfigError("No trace file was given.", "Give the path of a CSV file. " + FORMAT)
    name = Path(path).name
    try:
        _require_plain_file(Path(path))
        with open(path, newline="", encoding="utf-8-sig") as lines:
            rows = list(_parse(lines, name, timed))
    except (OSError, ValueError, csv.Error) as error:
        reason = _reason(error)
        raise ConfigError(f"The trace {name} can't be read: {reason}.", "Give a CSV file of text. " + FORMAT) from error
    if not rows:
        raise ConfigError(f"The trace {name} has no rows.", FORMAT)
    return sorted(rows, key=lambda row: row.arrival or 0.0)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return getattr(error, "strerror", None) or str(error)


def fitting(rows: Sequence[Row]) -> tuple[int, int]:
    """A max_model_len that holds the longest request (a power of two), and a memory for eight of that length."""
    longest = max(row.prompt + row.output for row in rows)
    low, high = SIMULATION_LIMITS["max_model_len"]
    max_model_len = int(min(max(1 << (longest - 1).bit_length(), low), high))
    return max_model_len, int(min(8 * max_model_len, MOST_SLOTS))


def read_typed(text: str) -> list[Row]:
    """One request a line (or before a ``;``): ``prompt output`` or ``arrival_step prompt output``, in tokens."""
    rows = []
    for number, line in enumerate(text.replace(";", "\n").splitlines(), 1):
        words = line.replace(",", " ").split()
        if not words:
            continue
        where = f"Line {number}"
        if len(words) not in (2, 3):
            raise ConfigError(f"{where} has {len(words)} numbers.", "Write prompt and output tokens, like 32 50.")
        arrival = _whole(words[0], "the arrival step", where, least=0) if len(words) == 3 else 0
        prompt = _whole(words[-2], "the prompt", where)
        rows.append(Row(arrival, prompt, _whole(words[-1], "the output", where)))
    if not rows:
        raise ConfigError("No request was typed.", "Write one a line: prompt and output tokens, like 32 50.")
    if len(rows) > MOST_TYPED:
        raise ConfigError(f"{len(rows)} requests were typed.", f"Type at most {MOST_TYPED}; use a trace file for more.")
    return sorted(rows, key=lambda row: row.arrival or 0.0)


def _require_plain_file(path: Path) -> None:
    """A device or a pipe may never end; a file without line ends would be read in one piece."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not a plain file")
    if found.st_size > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES // 1024**2} MiB")


def _parse(lines: Iterable[str], name: str, timed: bool) -> Iterator[Row]:
    reader = csv.DictReader(lines, skipinitialspace=True)
    wanted = (ARRIVAL, *COLUMNS) if timed else COLUMNS
    missing = [column for column in wanted if column not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(f"The trace {name} has no column {', '.join(missing)}.", FORMAT)
    for number, values in enumerate(reader, 1):
        if number > MOST_ROWS:
            raise ConfigError(f"The trace {name} has more than {MOST_ROWS:,} rows.", "Cut it into parts.")
        where = f"Line {reader.line_num} of {name}"
        prompt, output = (_whole(values[column], column, where) for column in COLUMNS)
        yield Row(_seconds(values[ARRIVAL], where) if timed else None, prompt, output)


def _whole(word: str | None, what: str, where: str, least: int = 1) -> int:
    try:
        number = int((word or "").strip())
    except ValueError:
        raise ConfigError(f"{where}: {what} is {_shown(word)}, not a whole number.", "Mend that line.") from None
    if not least <= number <= MOST_TOKENS:
        raise ConfigError(f"{where}: {what} is {_shown(word)}.", f"Use {least} to {MOST_TOKENS:,}.")
    return number


def _seconds(word: str | None, where: str) -> float:
    if not (word or "").strip():
        raise ConfigError(f"{where} has no arrival_s.", "Leave the step time out: all requests then wait at once.")
    try:
        seconds = float(word or "")
    except ValueError:
        raise ConfigError(f"{where}: arrival_s is {_shown(word)}, not a number.", "Mend that line.") from None
    if not math.isfinite(seconds) or not 0 <= seconds <= LATEST_S:
        raise ConfigError(f"{where}: arrival_s is {_shown(word)}.", f"Use 0 to {LATEST_S:,.0f} seconds.")
    return seconds


def _shown(word: str | None) -> str:
    return "missing" if word is None else repr(word if len(word) <= 30 else word[:30] + "…")
