"""A file → runs: bounded, recognised by what is in it, and refused with a cause where it can't be trusted.

Nothing is stored here, and nothing in a file is ever executed or taken for markup.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from engine.imports import guidellm, lab, vllm_bench
from engine.store import Run

MAX_BYTES = 32 << 20
MOST_RUNS = 50
KNOWN = "a run of vLLM Lab, or what vllm bench serve --save-result or guidellm has written"
READERS = (lab, guidellm, vllm_bench)


def read_file(path: Path) -> list[Run]:
    """Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}.", "Give another file.") from error
    return read_runs(content, path.name)


def read_runs(content: bytes, name: str) -> list[Run]:
    """Runs with new ids, not stored yet; raises ConfigError, and then there are none."""
    if len(content) > MAX_BYTES:
        remedy = "Save it without single requests (guidellm: sample_requests 0; vLLM: without --save-detailed)."
        raise ConfigError(f"{name} is larger than {MAX_BYTES >> 20} MiB.", remedy)
    documents = _documents(content, name)
    reader = next((reader for reader in READERS if reader.recognises(documents)), None)
    if reader is None:
        raise ConfigError(f"{name} holds no results that are known here.", f"Give {KNOWN}.")
    try:
        runs: list[Run] = reader.runs_of(documents, name)
    except ConfigError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        detail = f"{type(error).__name__}: {error}"[:200]
        raise ConfigError(f"{name} isn't complete or not what it seems ({detail}).", f"Give {KNOWN}.") from error
    if len(runs) > MOST_RUNS:
        raise ConfigError(f"{name} holds {len(runs)} runs.", f"Import at most {MOST_RUNS} at once.")
    return runs


def _documents(content: bytes, name: str) -> list[dict[str, Any]]:
    """The one JSON object of a file, or an object a line (``--append-result``)."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not a text file.", f"Give {KNOWN}.") from error
    whole = _parsed(text)
    lines = [whole] if whole is not None else [_parsed(line) for line in text.split("\n") if line.strip()]
    documents = [one for one in lines if isinstance(one, dict)]
    if not documents or len(documents) < len(lines):
        raise ConfigError(f"{name} is not JSON, or was cut off.", f"Give {KNOWN}.")
    return documents


def _parsed(text: str) -> Any:
    """None where it isn't JSON; NaN and infinities become unknown."""
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
