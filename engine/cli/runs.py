"""``runs``: what was measured; against each other, as a file, and from a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from engine.cli.common import Answer, add_verb, open_store, write_file
from engine.config import Settings
from engine.errors import ConfigError
from engine.imports.reading import read_file
from engine.report.comparing import Change, compare
from engine.report.export import FORMATS, export
from engine.report.finding import find
from engine.report.measures import MEASURES, text_of
from engine.report.words import change_words
from engine.store import RunStore

MOST_RUNS = 1_000_000
WORDS = """runs                          list the saved runs
runs ID                       show one
runs compare A B [C …]        two to six runs, the others against the first
runs export A [B …]           as html, csv or json
runs import FILE [FILE …]     a lab's JSON, or results of vllm bench serve or guidellm

A run is its id, the beginning of it, or "latest"."""


def register(verbs: Any) -> None:
    verb = add_verb(verbs, "runs", _run, _text, "list, compare, export and import the saved runs")
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.description = WORDS
    verb.set_defaults(refuse=verb.error)
    verb.add_argument("words", nargs="*", metavar="WORD", help="see above")
    verb.add_argument("--limit", type=int, default=50, help="of the list")
    verb.add_argument("--format", choices=FORMATS, default="html", help="of an export")
    verb.add_argument("--out", help="file to export to; standard output without it")
    verb.add_argument(
        "--price-per-hour", type=float, help="of a GPU (of the machine without one): adds the cost of tokens"
    )


def _run(arguments: argparse.Namespace, settings: Settings) -> Answer:
    store = open_store(settings)
    words = arguments.words
    if not words:
        return {"runs": [run.to_dict() for run in store.list(limit=min(arguments.limit, MOST_RUNS))]}, True
    action = ACTIONS.get(words[0])
    if action is not None:
        return action(store, arguments, words[1:])
    if len(words) > 1:
        arguments.refuse(f"there is nothing called {words[0]!r}: compare, export or import")
    return find(store, words[0]).to_dict(), True


def _compare(store: RunStore, _: argparse.Namespace, words: list[str]) -> Answer:
    return compare([find(store, word) for word in words]).to_dict(), True


def _export(store: RunStore, arguments: argparse.Namespace, words: list[str]) -> Answer:
    runs = [find(store, word) for word in words]
    content = export(runs, arguments.format, arguments.price_per_hour)
    answer: dict[str, Any] = {"exported": [run.id for run in runs], "format": arguments.format, "file": arguments.out}
    if arguments.out is None:
        return answer | {"content": content}, True
    problem = write_file(arguments.out, content)
    return answer | {"bytes": len(content.encode())} | problem, not problem


def _import(store: RunStore, _: argparse.Namespace, words: list[str]) -> Answer:
    """All files are read before the first run is stored: a bad one leaves nothing behind."""
    if not words:
        raise ConfigError("No file was given.", "python -m engine runs import FILE")
    runs = [run for word in words for run in read_file(Path(word))]
    for run in runs:
        store.add(run)
    return {"imported": [{"id": run.id, "kind": run.kind, "title": run.title} for run in runs]}, True


ACTIONS = {"compare": _compare, "export": _export, "import": _import}


def _text(answer: dict[str, Any]) -> str:
    if "metrics" in answer:
        return _comparison_text(answer)
    if "imported" in answer:
        return "\n".join(f"{one['id']}  {one['title']}" for one in answer["imported"])
    if "exported" in answer:
        return str(answer["content"]) if "content" in answer else f"{answer['file']}: {answer['bytes']:,} bytes"
    if "runs" not in answer:
        return json.dumps(answer, indent=2)
    lines = [f"{r['id']}  {r['created_at']}  {r['kind']:8} {r['status']:9} {r['title']}" for r in answer["runs"]]
    return "\n".join(lines) or "No runs yet: python -m engine compare makes one."


def _comparison_text(answer: dict[str, Any]) -> str:
    lines = [f"{number}  {run['id']}  {run['title']}" for number, run in enumerate(answer["runs"], 1)]
    lines += [f"Warning: {words}" for words in answer["warnings"]] + answer["notes"]
    lines += ["", "What differs"] if answer["differences"] else ["", "Configuration and environment are the same."]
    lines += [
        f"  {one['name']}: {' | '.join(value or '—' for value in one['values'])}" for one in answer["differences"]
    ]
    for row in answer["metrics"]:
        values = [text_of(row["metric"], value) for value in row["values"]]
        changes = ["", *(change_words(row["metric"], Change(**change)) for change in row["changes"])]
        words = " | ".join(f"{value} {change}".strip() for value, change in zip(values, changes, strict=True))
        lines.append(f"  {row['point']}, {MEASURES[row['metric']].label}: {words}")
    return "\n".join(lines)
