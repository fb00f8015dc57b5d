"""``python -m engine.load.generator``: the process that sends, so that screen and measurement don't disturb each other.

One JSON object per line: orders on standard input, events on standard output. It ends when its input does, so it never
outlives the app, and Ctrl-C in a terminal is the app's affair.

================================================= ======================================================
order                                             events
================================================= ======================================================
``{"do": "level", "endpoint", "order"}``          ``progress`` four times a second, ``sent`` (rows, in
                                                  parts), ``over`` (began_s, cpu_s, loop_lag_p99_ms, stopped)
``{"do": "cancel"}``                              the running level is over soon
================================================= ======================================================

Anything that goes wrong is an event ``error`` (text).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from engine.client import new_session
from engine.config import Endpoint
from engine.load.order import LevelOrder, pack
from engine.load.sending import LagProbe, LevelSender

PROGRESS_S = 0.25
ROWS_AT_ONCE = 200
PIPE_BYTES = 1 << 20
Emit = Callable[..., None]


async def serve(orders: asyncio.Queue[dict[str, Any]], emit: Emit) -> None:
    """Carry out orders until the process ends. Connections stay open: a warm-up opens those of its level."""
    async with new_session() as session:
        while True:
            order = await orders.get()
            if order["do"] == "level":
                sender = LevelSender(session, Endpoint(**order["endpoint"]), LevelOrder.from_dict(order["order"]))
                try:
                    await _level(sender, orders, emit)
                except Exception as error:
                    emit("error", text=f"{type(error).__name__}: {error}")


async def _level(sender: LevelSender, orders: asyncio.Queue[dict[str, Any]], emit: Emit) -> None:
    gc.collect()
    gc.freeze()
    probe = LagProbe()
    cpu_s = time.process_time()
    sending = asyncio.create_task(sender.run())
    helpers = [asyncio.create_task(work) for work in (probe.run(), _tell(sender, emit), _obey(sender, orders))]
    try:
        await sending
    finally:
        cpu_s = time.process_time() - cpu_s
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
    emit("progress", **sender.progress())
    rows = [pack(flight.sent()) for flight in sorted(sender.over, key=lambda flight: flight.number)]
    for first in range(0, len(rows), ROWS_AT_ONCE):
        emit("sent", rows=rows[first : first + ROWS_AT_ONCE])
    emit("over", began_s=sender.began_s, cpu_s=cpu_s, loop_lag_p99_ms=probe.p99_ms(), stopped=sender.stopped)


async def _tell(sender: LevelSender, emit: Emit) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        emit("progress", **sender.progress())


async def _obey(sender: LevelSender, orders: asyncio.Queue[dict[str, Any]]) -> None:
    while True:
        if (await orders.get())["do"] == "cancel":
            sender.cancel()


def _read(source: BinaryIO, take: Callable[[dict[str, Any]], None]) -> None:
    """On a thread of its own: the end of the input ends the process, whatever it does."""
    for line in source:
        take(json.loads(line))
    os._exit(0)


async def _main(emit: Emit) -> None:
    orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def take(order: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(orders.put_nowait, order)

    threading.Thread(target=_read, args=(sys.stdin.buffer, take), daemon=True).start()
    await serve(orders, emit)


def _raise_limits() -> None:
    """Every stream is an open file; the soft limit is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.suppress(OSError):  # a reader that is late must not hold the sender up
        fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _raise_limits()
    gc.set_threshold(100_000, 50, 1000)
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def emit(event: str, **values: Any) -> None:
        events.write(json.dumps({"event": event, **values}).encode() + b"\n")
        events.flush()

    try:  # uvloop comes with vLLM's own server; a token costs a sixth less with it
        import uvloop
    except ImportError:
        asyncio.run(_main(emit))
    else:
        uvloop.run(_main(emit))


if __name__ == "__main__":
    main()
