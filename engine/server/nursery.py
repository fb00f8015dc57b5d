"""Gives multiprocessing's "spawn" children whose imports are done: forks of a process that did nothing but import.

vLLM's CPU build spawns its engine core, and that spawns its workers: each a fresh interpreter that imports everything
again. In a server that was itself forked from the zygote, ``open_nursery`` forks one more process before anything
runs, and from then on every ``Process.start()`` of the start method "spawn" is a fork of that one. The child gets what
a spawned one gets: the parent's environment of this moment, its arguments pickled, the file descriptors that were
passed. One that is killed takes along those it had started: vLLM, which kills a tree, does not find them among its
children. What a fork can't give is spawned as ever: when the loader's variables are not those that this image was
loaded with, or the nursery is gone.

All who may ask share one socket. A message is one child: JSON of who asks and the environment, and with it the
descriptors [write end for its pid and exit code, read end of its pickled process, that socket, the resource tracker's,
passed …].
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import selectors
import signal
import socket
from collections.abc import Mapping
from multiprocessing import context, forkserver, popen_forkserver, reduction, resource_tracker, spawn, util
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar, NamedTuple, cast

from engine.server.forking import exit_like_python, fork_with, name_process, remove_openmp_files

MAX_MESSAGE_BYTES = 128 * 1024
MAX_FDS = 200
# Read by the loader or the interpreter before main(): a fork can't take up a change of these.
EARLY_PREFIXES = ("LD_", "GLIBC_", "MALLOC_", "PYTHON")


def open_nursery() -> None:
    """Fork the nursery of this process, which must have one thread, and let "spawn" use it from here on."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if fork_with(dict(os.environ)) == 0:
        ours.close()
        exit_like_python(lambda: _serve(its))
    its.close()
    _install(ours)


# -- the side that starts processes


class _NoNursery(Exception):
    """Nobody answers at the socket, or the message does not fit."""


def _install(client: socket.socket) -> None:
    spawn_for_real = context.SpawnProcess._Popen
    loaded_with = _early(os.environ)

    def start(process_obj: BaseProcess) -> Any:
        if _early(os.environ) == loaded_with:
            with contextlib.suppress(_NoNursery):
                return _Popen(process_obj, client)
        return spawn_for_real(process_obj)

    cast(Any, context.SpawnProcess)._Popen = staticmethod(start)


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(EARLY_PREFIXES)}


class _PassedFd:
    """A descriptor in a pickled process: its place among those that were passed."""

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        return _passed[self._place]


_passed: list[int] = []


class _Popen(popen_forkserver.Popen):
    """As multiprocessing's own fork server has it, but with the environment, and through our socket."""

    method = "spawn"
    DupFd: ClassVar[Any] = _PassedFd
    _fds: list[int]

    def __init__(self, process_obj: BaseProcess, client: socket.socket) -> None:
        self._client = client
        super().__init__(process_obj)

    def _launch(self, process_obj: BaseProcess) -> None:
        pickled = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process_obj.name), pickled)
            reduction.dump(process_obj, pickled)
        finally:
            context.set_spawning_popen(None)
        self.sentinel, data_w = self._ask()
        # A second write end stays open for as long as we live: the child's sentinel of its parent.
        self.finalizer = util.Finalize(self, _close_all, (os.dup(data_w), self.sentinel))
        with open(data_w, "wb") as data:
            data.write(pickled.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)

    def _ask(self) -> tuple[int, int]:
        """Have a child forked; where it tells its pid and exit code, and where it reads what to do."""
        message = json.dumps([os.getpid(), dict(os.environ)]).encode()
        if len(message) > MAX_MESSAGE_BYTES or len(self._fds) + 4 > MAX_FDS:
            raise _NoNursery
        tracker = resource_tracker._resource_tracker.getfd()
        status_r, status_w = os.pipe()
        data_r, data_w = os.pipe()
        try:
            fds = [status_w, data_r, self._client.fileno(), int(tracker or 0), *self._fds]
            socket.send_fds(self._client, [message], fds)
        except OSError as error:
            os.close(status_r)
            os.close(data_w)
            raise _NoNursery from error
        finally:
            os.close(status_w)
            os.close(data_r)
        return status_r, data_w


def _close_all(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


# -- the nursery itself


class _Child(NamedTuple):
    """``status_w`` is where its end is waited for, ``asker`` the pid of who had it started."""

    pid: int
    status_w: int
    asker: int


class _Nursery:
    """Forks a child for every message and tells how each ends."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._children: dict[int, _Child] = {}  # by pidfd

    def serve(self) -> None:
        """Until nobody is left who could ask."""
        while True:
            for key, _ in self._selector.select():
                if key.fd in self._children:
                    self._tell_end(key.fd)
                elif not self._take_request():
                    return

    def _take_request(self) -> bool:
        message, fds, _, _ = socket.recv_fds(self._requests, MAX_MESSAGE_BYTES, MAX_FDS)
        if not message:
            return False
        status_w, *childs = fds
        asker, environment = json.loads(message)
        try:
            pid = fork_with(environment)
            if pid == 0:
                exit_like_python(lambda: self._become_child(status_w, childs))
            forkserver.write_signed(status_w, pid)
            pidfd = os.pidfd_open(pid)
            self._children[pidfd] = _Child(pid, status_w, asker)
            self._selector.register(pidfd, selectors.EVENT_READ)
        except OSError:  # no memory for a process, or nobody waits for it any more
            os.close(status_w)
        finally:
            for fd in childs:
                os.close(fd)
        return True

    def _become_child(self, status_w: int, childs: list[int]) -> int:
        self._selector.close()
        self._requests.close()
        for fd in (status_w, *self._children, *(child.status_w for child in self._children.values())):
            os.close(fd)
        return _run_child(*childs)

    def _tell_end(self, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        pid, status_w, _ = self._children.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            for child in self._children.values():
                if child.asker == pid:
                    os.kill(child.pid, signal.SIGKILL)
        remove_openmp_files(pid)
        with contextlib.suppress(OSError):  # who started it is gone
            forkserver.write_signed(status_w, code)
        os.close(status_w)
        os.close(pidfd)


def _serve(requests: socket.socket) -> int:
    name_process("vLLM Lab: forks the server's processes")
    _Nursery(requests).serve()
    remove_openmp_files(os.getpid())
    return 0


def _run_child(data_r: int, client: int, tracker: int, *passed: int) -> int:
    _passed.extend(passed)
    cast(Any, resource_tracker._resource_tracker)._fd = tracker
    _install(socket.socket(fileno=client))
    return int(spawn._main(data_r, os.dup(data_r)))
