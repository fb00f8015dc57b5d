"""What the verbs share."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from engine.config import Settings
from engine.errors import ConfigError
from engine.services import LabServices
from engine.store import RunStore

Answer = tuple[dict[str, Any], bool]


def attach(services: LabServices, arguments: argparse.Namespace) -> None:
    key = arguments.api_key or os.environ.get("OPENAI_API_KEY")
    services.supervisor.attach(arguments.base_url, key, arguments.model)


def require_model(services: LabServices, model: str | None) -> None:
    """Never silently another model than the one that was asked for."""
    current = services.supervisor.snapshot()
    if model and current.ready and current.endpoint and current.endpoint.model != model:
        raise ConfigError(
            f"The running server serves {current.endpoint.model}.", "Leave --model out, or stop that server first."
        )


def wait_ready(services: LabServices) -> None:
    """Wait with the phases on standard error."""
    done = threading.Event()

    def tell() -> None:
        last = ""
        while not done.wait(0.5):
            snapshot = services.supervisor.snapshot()
            if snapshot.message != last:
                last = snapshot.message
                say(f"{snapshot.elapsed_s or 0:5.0f} s  {last}")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        services.supervisor.wait_ready()
    finally:
        done.set()
        teller.join()


def open_store(settings: Settings) -> RunStore:
    """The saved runs; says it where a damaged file had to be kept aside."""
    store = RunStore(settings.database)
    say_notice(store)
    return store


def say_notice(store: RunStore) -> None:
    if store.notice:
        say(store.notice)


class WrongCommand(Exception):
    """What argparse refuses, with the parser that refused it."""

    def __init__(self, message: str, parser: argparse.ArgumentParser) -> None:
        self.parser = parser
        super().__init__(message)


class Parser(argparse.ArgumentParser):
    """Raises WrongCommand where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise WrongCommand(message, self)


class closing:
    """Close the services on the way out, also after SIGTERM or SIGINT (which become KeyboardInterrupt)."""

    def __init__(self, services: LabServices) -> None:
        self._services = services

    def __enter__(self) -> LabServices:
        take_signals(interrupt)
        say_notice(self._services.store)
        return self._services

    def __exit__(self, *_: object) -> None:
        self._services.close()


def take_signals(handler: Callable[..., None]) -> None:
    """Have SIGTERM and SIGINT handled.

    A shell without job control starts what it puts in the background with SIGINT ignored, so that only SIGTERM would
    end it. Under nohup (SIGHUP ignored too) that is meant: what is to outlive its terminal gets no Ctrl-C from it.
    """
    signal.signal(signal.SIGTERM, handler)
    under_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    if not (under_nohup and signal.getsignal(signal.SIGINT) == signal.SIG_IGN):
        signal.signal(signal.SIGINT, handler)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def number(value: float | None, unit: str) -> str:
    """1,234.5 with its unit; counts without places."""
    return "—" if value is None else f"{value:,} {unit}" if isinstance(value, int) else f"{value:,.1f} {unit}"


def numbers(text: str, kind: Callable[[str], Any] = int) -> list[Any]:
    """A list like 1,5,10; raises ConfigError."""
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"{text!r} is not a list of numbers.", "Write it like 1,5,10,20.") from None


def write_file(path: str, text: str) -> dict[str, str]:
    """Nothing where it is written; else why not, as a part of the answer: what was measured must not be lost for it."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        return {"error": f"{path} can't be written: {error.strerror or error}.", "remedy": "Give another file."}
    return {}


def add_endpoint(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--base-url", help="use this OpenAI-compatible server")
    verb.add_argument("--api-key", help="its key; OPENAI_API_KEY is used when this is left out")


def add_verb(
    verbs: Any, name: str, run: Callable[..., Answer], text: Callable[[dict[str, Any]], str], words: str
) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=words, description=words)
    verb.add_argument("--json", action="store_true", help="one JSON document on standard output")
    verb.set_defaults(run=run, text=text)
    return verb
