"""The command line. With ``--json``: one JSON document on standard output, everything else on standard error.

Exit codes: 0 it worked, 1 it did not, 2 the command was wrong.
"""

from __future__ import annotations

import argparse
import traceback

from engine.cli import capacity, chat, check, compare, load, runs, scrape, serve, simulate, stop, tune
from engine.cli.common import say
from engine.config import Settings
from engine.errors import LabError
from engine.store import to_json

VERBS = (
    check,
    serve,
    compare,
    load,
    tune,
    chat,
    simulate,
    capacity,
    scrape,
    runs,
    stop,
)


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        answer, worked = arguments.run(arguments, Settings.from_env())
    except LabError as error:
        answer, worked = {"error": error.cause, "remedy": error.remedy}, False
    except KeyboardInterrupt:
        answer, worked = {"error": "Interrupted.", "remedy": ""}, False
    except Exception as error:  # still one document for whoever reads it; the traceback is for us
        traceback.print_exc()
        answer, worked = {"error": f"{type(error).__name__}: {error}", "remedy": "This is a fault of the lab."}, False
    if arguments.json:
        print(to_json(answer))
    elif "error" in answer:
        say(f"{answer['error']} {answer['remedy']}".strip())
    elif text := arguments.text(answer):
        print(text)
    return 0 if worked else 1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine", description="vLLM Lab without a browser.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in VERBS:
        verb.register(verbs)
    return parser
