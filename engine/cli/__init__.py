"""The command line. With ``--json``: one JSON document on standard output, everything else on standard error.

Exit codes: 0 it worked, 1 it did not, 2 the command was wrong.
"""

from __future__ import annotations

import argparse
import sys
import traceback

from engine.cli import capacity, chat, check, compare, load, runs, scrape, serve, simulate, stop, tune
from engine.cli.common import Parser, WrongCommand, say
from engine.config import Settings
from engine.errors import LabError
from engine.exclusive import LAB_FAULT
from engine.store import to_json

WRONG_COMMAND = 2
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
    words = sys.argv[1:] if argv is None else argv
    try:
        arguments = build_parser().parse_args(words)
    except WrongCommand as wrong:
        return refuse(wrong, as_json="--json" in words)
    try:
        answer, worked = arguments.run(arguments, Settings.from_env())
    except LabError as error:
        answer, worked = {"error": error.cause, "remedy": error.remedy}, False
    except KeyboardInterrupt:
        answer, worked = {"error": "Interrupted.", "remedy": ""}, False
    except Exception as error:  # still one document for whoever reads it; the traceback is for us
        traceback.print_exc()
        answer, worked = {"error": f"{type(error).__name__}: {error}", "remedy": LAB_FAULT}, False
    if arguments.json:
        print(to_json(answer))
    elif "error" in answer:
        say(f"{answer['error']} {answer['remedy']}".strip())
    elif text := arguments.text(answer):
        print(text)
    return 0 if worked else 1


def refuse(wrong: WrongCommand, *, as_json: bool) -> int:
    """Say what is wrong with a command, as argparse does; also as a document where one was asked for."""
    wrong.parser.print_usage(sys.stderr)
    say(f"{wrong.parser.prog}: error: {wrong}")
    if as_json:
        print(to_json({"error": f"The command is wrong: {wrong}.", "remedy": f"See {wrong.parser.prog} --help."}))
    return WRONG_COMMAND


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m engine", description="vLLM Lab without a browser.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in VERBS:
        verb.register(verbs)
    return parser
