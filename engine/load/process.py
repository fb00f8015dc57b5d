"""The app's end of the sending process."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from engine.config import PROJECT_ROOT, Endpoint
from engine.errors import LabError
from engine.load.order import LevelOrder, LevelOutcome, Sent, unpack

COMMAND = (sys.executable, "-m", "engine.load.generator")
POLL_S = 0.1
CANCEL_S = 10.0
READ_BYTES = 1 << 16
MOST_ERROR_BYTES = 4096
REMEDY = "This is a fault of the lab; try again."


class LoadGenerator:
    """The process that sends; use it as a context manager on a thread that lives as long as it does."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            cwd=PROJECT_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._rest = b""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._selector.close()
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(
        self,
        endpoint: Endpoint,
        order: LevelOrder,
        on_progress: Callable[[dict[str, Any]], None] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> LevelOutcome:
        """Send one level and wait for all of it. Raises LabError when the process fails.

        ``cancelled`` is asked ten times a second; after it said so, what was measured comes back soon.
        """
        self._tell(do="level", endpoint=asdict(endpoint), order=order.to_dict())
        sent: list[Sent] = []
        give_up_s: float | None = None
        for event in self._events():
            if event is None:
                if give_up_s is None and cancelled():
                    self._tell(do="cancel")
                    give_up_s = time.monotonic() + CANCEL_S
                if give_up_s is not None and time.monotonic() > give_up_s:
                    raise LabError("The sending process didn't stop.", REMEDY)
            elif event["event"] == "progress":
                on_progress(event)
            elif event["event"] == "sent":
                sent += map(unpack, event["rows"])
                give_up_s = None if give_up_s is None else time.monotonic() + CANCEL_S  # it stopped, and tells
            elif event["event"] == "over":
                return LevelOutcome(
                    tuple(sent), event["began_s"], event["cpu_s"], event["loop_lag_p99_ms"], event["stopped"]
                )
            else:
                raise LabError(f"The sending process failed: {event['text'][:MOST_ERROR_BYTES]}", REMEDY)
        raise LabError(f"The sending process ended (exit code {self._process.wait()}).", REMEDY)

    def _tell(self, **order: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise LabError(f"The sending process ended (exit code {self._process.wait()}).", REMEDY) from None

    def _events(self) -> Iterator[dict[str, Any] | None]:
        """Events as they come, and None at least ten times a second; ends when the process does."""
        asked_s = time.monotonic()
        while True:
            if time.monotonic() - asked_s >= POLL_S or not self._selector.select(POLL_S):
                asked_s = time.monotonic()
                yield None
                continue
            assert self._process.stdout is not None
            read = os.read(self._process.stdout.fileno(), READ_BYTES)
            if not read:
                return
            *lines, self._rest = (self._rest + read).split(b"\n")
            yield from map(json.loads, lines)
