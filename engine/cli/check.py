"""``check``: is this machine fit?"""

from __future__ import annotations

import argparse
from typing import Any

from engine.checks import run_checks
from engine.cli.common import Answer, add_verb, say
from engine.config import Settings


def register(verbs: Any) -> None:
    verb = add_verb(verbs, "check", _run, _text, "look whether this machine is fit, with one real generation")
    verb.add_argument("--no-generation", action="store_true", help="leave the real generation out")


def _run(arguments: argparse.Namespace, settings: Settings) -> Answer:
    report = run_checks(settings, generate=not arguments.no_generation, progress=say)
    return report.to_dict(), report.ready


def _text(answer: dict[str, Any]) -> str:
    lines = [
        f"{'ok ' if c['ok'] else 'NO '} {c['name']}: {c['value']} {c['remedy']}".rstrip() for c in answer["checks"]
    ]
    return "\n".join([*lines, "Ready." if answer["ready"] else "Not ready: see the lines marked NO."])
