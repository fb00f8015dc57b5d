"""``stop``: leftovers of earlier runs, and on request the lab that is open."""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import Any

from engine.cli.common import Answer, add_verb
from engine.config import Settings
from engine.errors import ConfigError, ServerFailed
from engine.server.processes import start_ticks
from engine.server.record import end_leftover, read_record
from engine.services import owner_lock

OWNER_ENDS_S = 60.0


def register(verbs: Any) -> None:
    verb = add_verb(verbs, "stop", _run, _text, "remove leftovers of earlier runs")
    verb.add_argument("--owner", action="store_true", help="also end the lab that is open on this data folder")


def _run(arguments: argparse.Namespace, settings: Settings) -> Answer:
    lock = owner_lock(settings)
    if lock.acquire():
        ended = end_leftover(settings.state_dir)
        lock.release()
        return {"found": bool(ended), "ended_processes": ended, "owner": None}, True
    noted = lock.holder() or {}
    holder, running = noted.get("pid"), read_record(settings.state_dir)
    if not isinstance(holder, int):
        raise ConfigError("A vLLM Lab is open on this data folder; which process it is isn't known.", "End it there.")
    if not arguments.owner:
        raise ConfigError(
            f"vLLM Lab (process {holder}) is open and owns {running.base_url if running else 'no server'}.",
            "That is no leftover. Stop it there, or end it from here: python -m engine stop --owner.",
        )
    _end_owner(holder, noted.get("ticks"))
    deadline = time.monotonic() + OWNER_ENDS_S
    while not lock.acquire():
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"vLLM Lab (process {holder}) did not end within {OWNER_ENDS_S:.0f} s.", "End it by hand."
            )
        time.sleep(0.1)
    ended = end_leftover(settings.state_dir)
    lock.release()
    return {"found": True, "ended_processes": ended, "owner": holder}, True


def _end_owner(pid: int, ticks: object) -> None:
    """SIGTERM, if the process is still the one that took the data folder: numbers are used again."""
    if start_ticks(pid) != ticks:
        raise ConfigError(f"Process {pid} isn't the vLLM Lab that owns the data folder.", "End that one by hand.")
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it ended by itself just now
    except PermissionError as error:
        raise ConfigError(f"Process {pid} belongs to another user.", "Ask them to end their lab.") from error


def _text(answer: dict[str, Any]) -> str:
    ended, owner = answer["ended_processes"], answer["owner"]
    lines = [f"Ended vLLM Lab (process {owner})."] if owner else []
    if ended:
        lines.append(f"Ended {len(ended)} processes left over: {ended}")
    return "\n".join(lines) or "Nothing was left over."
