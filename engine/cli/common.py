"""What the verbs share."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from engine.errors import ConfigError
from engine.services import LabServices

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


class closing:
    """Close the services on the way out, also after SIGTERM (which becomes KeyboardInterrupt)."""

    def __init__(self, services: LabServices) -> None:
        self._services = services

    def __enter__(self) -> LabServices:
        signal.signal(signal.SIGTERM, interrupt)
        if notice := self._services.store.notice:
            say(notice)
        return self._services

    def __exit__(self, *_: object) -> None:
        self._services.close()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def number(value: float | None, unit: str) -> str:
    return "—" if value is None else f"{value:,.1f} {unit}"


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
