"""How the processes of a warm start fork and end, so that they are like ones that were started as programs."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing import util
from typing import NoReturn

from engine.server.processes import openmp_files

AFFINITY = "KMP_AFFINITY"


def fork_with(environment: Mapping[str, str]) -> int:
    """``os.fork()``, the child having this environment. It is set in both, and before: Intel's OpenMP reads it then.

    Without an affinity of its own the child's OpenMP is told "none": that is its default when a program starts, but
    not at a fork.
    """
    os.environ.clear()
    os.environ.update({AFFINITY: "none", **environment})
    pid = os.fork()
    if AFFINITY not in environment:
        del os.environ[AFFINITY]
    return pid


def exit_like_python(run: Callable[[], int]) -> NoReturn:
    """Run, then end this forked process as its interpreter would, but never through the frames it was forked in."""
    code = 1
    try:
        code = _exit_code(run)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        with contextlib.suppress(Exception):
            util._flush_std_streams()  # type: ignore[attr-defined]
        os._exit(code)


def _exit_code(run: Callable[[], int]) -> int:
    try:
        return run()
    except SystemExit as end:
        if isinstance(end.code, int) or end.code is None:
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    return 1


def remove_openmp_files(pid: int) -> None:
    """What Intel's OpenMP removes when a program ends, but not at the end of a fork of one."""
    for path in openmp_files(pid):
        path.unlink(missing_ok=True)


def name_process(title: str) -> None:
    """What ``ps`` shows. The first call finds out where that is kept, and must come before the environment changes."""
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle(title)
