"""The app's side of the zygote: keep one that has vLLM imported, and have guards forked from it.

A start of vLLM on a CPU is mostly imports, the same ones in three processes one after the other. With a zygote they are
done once: a first start waits for one import instead of three, a restart for none. Where a fork would not be like a
start as a program, or the zygote fails, the answer is None and the caller starts the plain way.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO

from engine.config import PROJECT_ROOT
from engine.server.command import Launch
from engine.server.forking import AFFINITY
from engine.server.zygote import MESSAGE_BYTES, OPTIONAL, WARM
from engine.vllm_facts import MODULE

MODULES = (
    MODULE,
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
)
# What vLLM's processes import on their way to ready besides, a second of it; a version without one starts as well.
USEFUL_MODULES = (
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.entrypoints.anthropic.api_router",
    "vllm.entrypoints.generate.generative_scoring.api_router",
    "vllm.entrypoints.generate.structured_decisions.api_router",
    "vllm.entrypoints.openai.chat_completion.api_router",
    "vllm.entrypoints.openai.completion.api_router",
    "vllm.entrypoints.openai.responses.api_router",
    "vllm.entrypoints.scale_out.derender.api_router",
    "vllm.entrypoints.scale_out.render.api_router",
    "vllm.entrypoints.scale_out.token_in_token_out.api_router",
    "vllm.entrypoints.serve.elastic_ep.api_router",
    "vllm.entrypoints.serve.instrumentator.metrics",
    "vllm.entrypoints.serve.middleware.authenticate",
    "vllm.entrypoints.serve.profile.api_router",
    "vllm.entrypoints.serve.tokenize.api_router",
    "model_hosting_container_standards.sagemaker",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "anyio._backends._asyncio",
)
# Variables of a launch that are read when they are used, so a process that imported without them can serve it.
READ_LATE = frozenset(
    {"VLLM_API_KEY", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "TMPDIR", "VLLM_RPC_BASE_PATH"}
)
OPENMP = "libiomp5"
IMPORT_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 5.0
END_TIMEOUT_S = 5.0
POLL_S = 0.1


class ForkedGuard:
    """A guard that the zygote forked; used as ``ServerChild`` uses one that it started itself."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.stdin, self.stdout = stdin, stdout
        self._pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self) -> None:
        _readable(self._pidfd, None)
        ended, self._pidfd = self._pidfd, -1
        os.close(ended)


class WarmStarts:
    """Thread-safe; ``guard`` waits while the zygote imports. ``why_not`` says why the last one was refused."""

    def __init__(
        self, output: Path, modules: Sequence[str] = MODULES, useful_modules: Sequence[str] = USEFUL_MODULES
    ) -> None:
        """``output`` gets what the imports print. ``useful_modules`` may be missing. Nothing starts yet."""
        self._output = output
        self._modules = (*modules, *(f"{OPTIONAL}{name}" for name in useful_modules))
        self._lock = threading.Lock()
        self._zygote: _Zygote | None = None
        self.why_not = ""

    def guard(self, launch: Launch, inherited: Mapping[str, str], check: Callable[[], None]) -> ForkedGuard | None:
        """A guard that will fork this launch's server; None where only a plain start will do.

        ``check`` is called now and then, and calls it off by raising.
        """
        self.why_not = ""
        if not can_fork(launch):
            return None
        with self._lock:
            try:
                zygote = self._zygote_for(launch.full_env(inherited))
                zygote.wait_warm(check)
                return zygote.fork_guard()
            except (OSError, _Unfit) as error:
                self.why_not = str(error)
                self._end()
                return None

    def pids(self) -> tuple[int, ...]:
        """The zygote's, if there is one."""
        zygote = self._zygote
        return () if zygote is None or zygote.pid is None else (zygote.pid,)

    def close(self) -> None:
        """End the zygote; guards and servers that came from it go on."""
        with self._lock:
            self._end()

    def _zygote_for(self, environment: Mapping[str, str]) -> _Zygote:
        early = {name: value for name, value in environment.items() if name not in READ_LATE}
        if self._zygote is not None and (self._zygote.environment != early or self._zygote.pid is None):
            self._end()
        if self._zygote is None:
            self._zygote = _Zygote(early, self._output, self._modules)
        return self._zygote

    def _end(self) -> None:
        if self._zygote is not None:
            self._zygote.end()
            self._zygote = None


def can_fork(launch: Launch) -> bool:
    """Whether a fork of an importing process can be what this command starts.

    Only with Intel's OpenMP, which takes up its settings anew at a fork (GNU's keeps those it was loaded with), and so
    only on a CPU: a launch for a GPU does not preload it.
    """
    return launch.argv[:2] == (sys.executable, "-m") and OPENMP in launch.env.get("LD_PRELOAD", "")


def _readable(fd: int, timeout_s: float | None) -> bool:
    """``poll`` and not ``select``, which takes no descriptor from 1024 on."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


class _Unfit(Exception):
    """The zygote can't be used, and why."""


class _Zygote:
    """One zygote from its start to its end."""

    def __init__(self, environment: dict[str, str], output: Path, modules: tuple[str, ...]) -> None:
        """Starts it and returns at once; raises OSError when there is nothing to start."""
        self.environment = environment
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._deadline = time.monotonic() + IMPORT_TIMEOUT_S
        self._warm = False
        started: Future[subprocess.Popen[bytes]] = Future()
        # The kernel ends the zygote with the thread that started it, so that thread stays.
        self._keeper = threading.Thread(
            target=self._keep, args=(its, output, modules, started), name="vllm-zygote", daemon=True
        )
        self._keeper.start()
        self._process = started.result()

    def _keep(
        self, its: socket.socket, output: Path, modules: tuple[str, ...], started: Future[subprocess.Popen[bytes]]
    ) -> None:
        try:
            with its, output.open("wb") as printed:
                process = subprocess.Popen(
                    [sys.executable, "-m", "engine.server.zygote", *modules],
                    env=self.environment | {AFFINITY: "none"},
                    cwd=PROJECT_ROOT,
                    stdin=its.fileno(),
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self._socket.close()
            started.set_exception(error)
            return
        started.set_result(process)
        process.wait()

    @property
    def pid(self) -> int | None:
        """None once it has ended."""
        return self._process.pid if self._process.poll() is None else None

    def wait_warm(self, check: Callable[[], None]) -> None:
        """Until it has imported everything; raises _Unfit, or what ``check`` raises."""
        while not self._warm:
            check()
            message = self._receive(POLL_S)
            if message is None and time.monotonic() > self._deadline:
                raise _Unfit(f"importing took more than {IMPORT_TIMEOUT_S:.0f} s")
            if message is not None and message != WARM:
                raise _Unfit(message.decode() or "importing failed")
            self._warm = message == WARM

    def fork_guard(self) -> ForkedGuard:
        """A guard that waits for its order; raises _Unfit or OSError."""
        stdin_r, stdin_w = os.pipe()
        stdout_r, stdout_w = os.pipe()
        stdin, stdout = os.fdopen(stdin_w, "wb"), os.fdopen(stdout_r, "rb")
        try:
            socket.send_fds(self._socket, [b"guard"], [stdin_r, stdout_w])
            answer = self._receive(ANSWER_TIMEOUT_S)
            if not answer:
                raise _Unfit("the process that has vLLM imported does not answer")
            return ForkedGuard(int(answer), stdin, stdout)
        except BaseException:
            stdin.close()
            stdout.close()
            raise
        finally:
            os.close(stdin_r)
            os.close(stdout_w)

    def _receive(self, timeout_s: float) -> bytes | None:
        """A message, b"" when the other end is gone, None when time is up."""
        if not _readable(self._socket.fileno(), timeout_s):
            return None
        with contextlib.suppress(ConnectionResetError):
            return self._socket.recv(MESSAGE_BYTES)
        return b""

    def end(self) -> None:
        """It ends by itself when nobody holds the socket; while it imports it is told to."""
        self._socket.close()
        if not self._warm:
            self._process.terminate()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._keeper.join()
