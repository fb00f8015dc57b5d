"""A process that has imported vLLM and does nothing else, so that a server can be forked from it instead of started.

The app starts ``python -m engine.server.zygote MODULE …`` (``?MODULE`` may be missing) with a socket as its standard
input, and hears ``warm`` there once the modules are imported, or why that won't do. Each message after that brings two
descriptors, the standard input and output of a guard; the guard is forked, and its pid is the answer. The guard forks
the server (see ``engine.server.launcher``), and all else is as with a server that was started as a program.

It has one thread, no port, no model; it ends when the app closes the socket or dies.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import select
import selectors
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path

from engine.server import guard
from engine.server.forking import exit_like_python, fork_with, name_process, remove_openmp_files
from engine.server.launcher import fork_server

WARM = b"warm"
OPTIONAL = "?"
MESSAGE_BYTES = 4096
IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
OPENBLAS = re.compile(r"/[^/\s]*openblas[^/\s]*\.so\S*$", re.MULTILINE)


def main(modules: list[str]) -> int:
    """Import, say so, fork a guard for every message; 0 when the app is gone."""
    name_process(f"{sys.executable} -m engine.server.zygote")
    app = socket.socket(fileno=os.dup(0))
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _end())
    guard.LIBC.prctl(guard.PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if select.select([app], [], [], 0)[0]:  # the app died before the line above
        return 0
    before = dict(os.environ)
    for module in modules:
        _import(module)
    threads = unexplained_threads()
    if threads:
        app.send(f"importing started {threads} threads, and a fork would lose them".encode())
        return 1
    # What is there now is shared with every fork: the collector must not touch it.
    gc.collect()
    gc.freeze()
    sys.stdout.flush()
    app.send(WARM)
    set_by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    _Zygote(app, set_by_imports).serve()
    return 0


def _import(module: str) -> None:
    try:
        importlib.import_module(module.removeprefix(OPTIONAL))
    except ImportError:
        if not module.startswith(OPTIONAL):
            raise


def unexplained_threads() -> int:
    """Threads besides the main one and those of OpenBLAS, which ends its own before a fork and starts them after."""
    if threading.active_count() > 1:
        return threading.active_count() - 1
    libraries = set(OPENBLAS.findall(Path("/proc/self/maps").read_text()))
    explained = 1 + len(libraries) * ((os.cpu_count() or 1) - 1)
    return max(0, len(os.listdir("/proc/self/task")) - explained)


class _Zygote:
    def __init__(self, app: socket.socket, set_by_imports: dict[str, str]) -> None:
        self._app, self._set_by_imports = app, set_by_imports
        self._selector = selectors.DefaultSelector()
        self._selector.register(app, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._app:
                    self._bury(key.fd, key.data)
                elif not self._take_order():
                    return

    def _take_order(self) -> bool:
        message, fds, _, _ = socket.recv_fds(self._app, MESSAGE_BYTES, 2)
        if not message:
            return False
        pid = fork_with(dict(os.environ))
        if pid == 0:
            exit_like_python(lambda: self._become_guard(fds))
        for fd in fds:
            os.close(fd)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
        with contextlib.suppress(OSError):
            self._app.send(str(pid).encode())
        return True

    def _become_guard(self, fds: list[int]) -> int:
        self._selector.close()
        self._app.close()
        for fd, target in zip(fds, (0, 1), strict=True):
            os.dup2(fd, target)
            os.close(fd)
        name_process(f"{sys.executable} -m engine.server.guard")
        return guard.main(partial(fork_server, set_by_imports=self._set_by_imports))

    def _bury(self, pidfd: int, pid: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        os.waitpid(pid, 0)
        remove_openmp_files(pid)


def _end() -> None:
    remove_openmp_files(os.getpid())
    os._exit(0)


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    finally:
        remove_openmp_files(os.getpid())
    sys.exit(code)
