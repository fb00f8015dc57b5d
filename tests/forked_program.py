"""A program with children for the tests of warm starts: every process tells what it is, as a line of JSON.

``python -m tests.forked_program [--loader] [--kill-nursery] [--end-parent SIGNAL | --exit CODE | --raise | …]``. It starts a child
and that a grandchild by multiprocessing's "spawn", as vLLM does, and gives each a pipe, a queue and a lock; then it
waits for SIGTERM. ``--loader`` changes a variable of the loader before, ``--kill-nursery`` ends the nursery before.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

from engine.server.processes import children_of
from tests.forked_import import IMPORTED_BY

SPAWN = multiprocessing.get_context("spawn")


def told(**more: Any) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "imported_by": IMPORTED_BY,
        "cwd": os.getcwd(),
        "tempdir": tempfile.gettempdir(),
        "environment": dict(os.environ),
        "name": multiprocessing.current_process().name,
        "argv": sys.argv[1:],
        "main": sys.modules["__main__"].__spec__.name if sys.modules["__main__"].__spec__ else None,
        **more,
    }


def grandchild(queue: Any, lock: Any) -> None:
    with lock:
        queue.put(told())
    sys.exit(5)


def sleeper() -> None:
    time.sleep(600)


def parent_of_sleeper(pipe: Connection) -> None:
    process = SPAWN.Process(target=sleeper)
    process.start()
    pipe.send(process.pid)
    sleeper()


def end_parent_of_sleeper(number: signal.Signals) -> None:
    ours, its = SPAWN.Pipe()
    process = SPAWN.Process(target=parent_of_sleeper, args=(its,))
    process.start()
    print(json.dumps([{"sleeper": ours.recv()}]), flush=True)
    os.kill(process.pid or 0, number)
    process.join()
    print("ended", flush=True)
    sleeper()


def child(pipe: Connection, queue: Any, lock: Any) -> None:
    os.environ["SET_BY_CHILD"] = "for its own child"
    process = SPAWN.Process(target=grandchild, args=(queue, lock), name="Grandchild")
    process.start()
    process.join()
    pipe.send(told(exit_code_of_child=process.exitcode))
    pipe.recv()  # until it is killed


def main() -> None:
    words = sys.argv[1:]
    for word, end in (("--exit", lambda: sys.exit(int(words[-1]))), ("--exit-text", lambda: sys.exit("no reason"))):
        if word in words:
            end()
    if "--raise" in words:
        raise RuntimeError("raised by the program")
    if "--loader" in words:
        os.environ["LD_LIBRARY_PATH"] = "/nowhere"
    if "--kill-nursery" in words:
        (nursery,) = children_of(os.getpid())
        os.kill(nursery, signal.SIGKILL)
        os.waitpid(nursery, 0)
    if "--end-parent" in words:
        end_parent_of_sleeper(signal.Signals(int(words[-1])))
    ours, its = SPAWN.Pipe()
    queue, lock = SPAWN.Queue(), SPAWN.Lock()
    os.environ["SET_BY_SERVER"] = "for its child"
    process = SPAWN.Process(target=child, args=(its, queue, lock), name="Child", daemon=False)
    process.start()
    its.close()
    of_grandchild, of_child = queue.get(), ours.recv()
    alive = process.is_alive()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    print(json.dumps([told(), of_child, of_grandchild, {"alive": alive, "killed": process.exitcode}]), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
