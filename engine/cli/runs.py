"""``runs``: what was measured."""

from __future__ import annotations

import argparse
import json
from typing import Any

from engine.cli.common import Answer, add_verb, open_store
from engine.config import Settings
from engine.errors import ConfigError

MOST_RUNS = 1_000_000


def register(verbs: Any) -> None:
    verb = add_verb(verbs, "runs", _run, _text, "list the saved runs, or show one")
    verb.add_argument("run_id", nargs="?")
    verb.add_argument("--limit", type=int, default=50)


def _run(arguments: argparse.Namespace, settings: Settings) -> Answer:
    store = open_store(settings)
    if arguments.run_id is None:
        return {"runs": [run.to_dict() for run in store.list(limit=min(arguments.limit, MOST_RUNS))]}, True
    run = store.get(arguments.run_id) if arguments.run_id.isascii() else None
    if run is None:
        raise ConfigError(f"There is no run {arguments.run_id}.", "List them: python -m engine runs.")
    return run.to_dict(), True


def _text(answer: dict[str, Any]) -> str:
    if "runs" not in answer:
        return json.dumps(answer, indent=2)
    lines = [f"{r['id']}  {r['created_at']}  {r['kind']:8} {r['status']:9} {r['title']}" for r in answer["runs"]]
    return "\n".join(lines) or "No runs yet: python -m engine compare makes one."
