"""Starts a server in the guard by a fork: what ``python -m module …`` would run, with the module imported already."""

from __future__ import annotations

import multiprocessing.process
import os
import runpy
import signal
import sys
import tempfile

from engine.server.forking import exit_like_python, fork_with, name_process
from engine.server.guard import Order, follow_guard
from engine.server.nursery import open_nursery


def fork_server(order: Order, set_by_imports: dict[str, str]) -> int:
    """The new process's pid; it leads a group of its own, as the guard's other way of starting has it.

    ``set_by_imports`` are variables that importing has set, which the modules count on.
    """
    pid = fork_with(set_by_imports | order.env)
    if pid == 0:
        exit_like_python(lambda: _serve(order))
    return pid


def _serve(order: Order) -> int:
    """Be the process that ``order`` asks for, from its first line of Python to its end."""
    _, _, module, *words = order.argv
    os.setsid()
    follow_guard()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(order.cwd)
    _redirect(order.log)
    name_process(" ".join(order.argv))
    sys.path[0] = multiprocessing.process.ORIGINAL_DIR = order.cwd  # type: ignore[attr-defined]
    tempfile.tempdir = None  # TMPDIR is another one now
    sys.modules.pop(module, None)  # it runs as __main__
    open_nursery()
    sys.argv = ["-m", *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _redirect(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
