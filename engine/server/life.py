"""One server from its start to its end, on the thread that calls ``run``.

Whatever happens, what comes back says how it ended and what was verified: no process left, memory back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from engine.config import Device, Endpoint, ServerConfig, Settings
from engine.endpoint_api import list_models, probe_one_token
from engine.environment import Hardware
from engine.errors import ConfigError, LabError, ServerFailed
from engine.models import ModelSource
from engine.server import log, record
from engine.server.child import Exit, ServerChild
from engine.server.command import Launch
from engine.server.diagnosis import diagnose_file
from engine.server.startup import StartupTracker
from engine.server.state import Diagnosis, KvCapacity, Phase, ServerState
from engine.server.warm import WarmStarts
from engine.telemetry.prometheus import scrape

POLL_S = 0.25
PROBE_TIMEOUT_S = 60.0
START_TIMEOUT_S = 30 * 60.0
CRASH_SETTLE_S = 8.0
MEMORY_BACK_S = 10.0
MEMORY_SLACK_BYTES = 64 * 1024**2


class _Stopped(Exception):
    """The server is to end."""


class _Died(Exception):
    """It ended by itself."""


class BlockEvents(Protocol):
    """Who listens to what a server says about its KV blocks, from before its start to after its end."""

    def open(self, config: ServerConfig) -> str | None:
        """The value of vLLM's ``--kv-events-config``; None where there is nothing to listen to. Raises nothing."""

    def close(self) -> None:
        """The server is gone."""


@dataclass(frozen=True)
class Tools:
    """What a life works with; tests put their own in."""

    settings: Settings
    build: Callable[..., Launch]
    prepare_model: Callable[..., ModelSource]
    hardware: Callable[[Settings], Hardware]
    publish: Callable[..., None]
    remember: Callable[[Mapping[str, float]], None]
    events: BlockEvents | None = None
    warm: WarmStarts | None = None


@dataclass(frozen=True)
class Ending:
    """How a life ended: STOPPED (asked for) or FAILED, with the words for people."""

    state: ServerState
    message: str
    diagnosis: Diagnosis | None = None

    @property
    def lost_port(self) -> bool:
        """Somebody took the port between our look and the server's."""
        return self.diagnosis is not None and self.diagnosis.name == "port_taken"


class ServerLife:
    """One start. ``stop`` ends it, from any thread, at any moment."""

    def __init__(
        self, tools: Tools, config: ServerConfig, expected: Mapping[str, float], stop: threading.Event, number: int
    ) -> None:
        self._tools, self._config, self._stop, self._number = tools, config, stop, number
        self._tracker = StartupTracker(expected)
        self._child: ServerChild | None = None
        self._log_path: Path | None = None
        self._record: record.ServerRecord | None = None
        self._free_before: int | None = None

    def run(self) -> Ending:
        diagnosis: Diagnosis | None = None
        try:
            self._live()
        except _Stopped:
            pass
        except _Died:
            diagnosis = self._explain()
        except LabError as error:
            diagnosis = Diagnosis("refused", error.cause, error.remedy)
        except OSError as error:
            full = error.errno == errno.ENOSPC
            cause = "The disk is full." if full else f"The lab's data folder can't be written: {error}."
            diagnosis = Diagnosis("disk_full" if full else "refused", cause, "Free some space, or set LAB_DATA_DIR.")
        except Exception as error:  # whatever it is, the state must not stay at "starting"
            cause = f"{type(error).__name__}: {error}"
            diagnosis = Diagnosis("internal", cause, "This is a fault of the lab itself.")
        return self._end(diagnosis)

    def _live(self) -> None:
        """Returns never: ends with _Stopped, _Died or an error."""
        hardware = self._tools.hardware(self._tools.settings)
        self._free_before = _gpu_free(hardware)
        endpoint = self._spawn(hardware)
        self._wait_listening()
        self._probe(endpoint)
        self._announce(endpoint)
        while True:
            self._check()
            self._child_or_fail().wait(POLL_S)

    # -- the start

    def _spawn(self, hardware: Hardware) -> Endpoint:
        tools, config = self._tools, self._config
        source = tools.prepare_model(config.model, tools.settings, self._say, self._check)
        self._enter(Phase.IMPORT)
        tools.publish(source=source, message="Starting vLLM")
        port, key = config.port or free_port(), secrets.token_urlsafe(32)
        if config.port is not None:
            require_free(config.port)
        kv_events = tools.events.open(config) if tools.events else None
        compiled = tools.settings.compiled_dir
        launch = tools.build(config, hardware, source, port=port, api_key=key, kv_events=kv_events, compiled=compiled)
        endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", source.model_id, key, config.max_model_len)
        log_path = self._new_log()
        warm = tools.warm
        guard = warm.guard(launch, os.environ, self._check) if warm is not None else None
        if warm is not None and warm.why_not:
            log.note(log_path, f"Started as a program, not from a process with vLLM imported: {warm.why_not}.")
        child = self._child = ServerChild(launch, log_path, os.environ, guard)
        assert child.pid is not None and child.ticks is not None
        self._record = record.ServerRecord(
            pid=child.pid,
            ticks=child.ticks,
            base_url=endpoint.base_url,
            api_key=key,
            model=endpoint.model,
            ready=False,
            config=config.to_dict(),
            source=source.to_dict(),
            command=launch.shell_line(),
            log_path=str(log_path),
            max_model_len=endpoint.max_model_len,
            scratch=str(child.scratch),
        )
        tools.publish(
            endpoint=endpoint,
            command=launch.shell_line(),
            pid=child.pid,
            forked=guard is not None,
            log_path=str(log_path),
            message="Importing vLLM",
        )
        record.write_record(tools.settings.state_dir, self._record)
        return endpoint

    def _new_log(self) -> Path:
        folder = self._tools.settings.logs_dir
        folder.mkdir(parents=True, exist_ok=True)
        log.prune(folder)
        self._log_path = folder / f"server-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{self._number}.log"
        self._log_path.touch(mode=0o600)
        return self._log_path

    def _wait_listening(self) -> None:
        assert self._log_path is not None
        follower = log.LogFollower(self._log_path)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._tracker.listening:
            self._check()
            for line in follower.new_lines():
                self._tracker.read(line)
            self._show_progress()
            if time.monotonic() > deadline:
                raise ServerFailed("The server did not begin to listen within 30 minutes.", "Look at its log.")
            self._child_or_fail().wait(POLL_S)

    def _probe(self, endpoint: Endpoint) -> None:
        """Ready means that a token came back, not that a port answers.

        Asked on a thread of its own: a stop must not wait for a server that hangs.
        """
        self._enter(Phase.READY)
        errors: list[LabError] = []

        def ask() -> None:
            try:
                probe_one_token(endpoint, PROBE_TIMEOUT_S)
            except LabError as error:
                errors.append(error)

        asking = threading.Thread(target=ask, name="server-probe", daemon=True)
        asking.start()
        while asking.is_alive():
            self._check()
            self._show_progress()
            asking.join(POLL_S)
        if errors:
            # An engine that died takes a while to bring its server down: its log says more than the reply.
            deadline = time.monotonic() + CRASH_SETTLE_S
            while time.monotonic() < deadline:
                self._check()
                self._child_or_fail().wait(POLL_S)
            raise errors[0]

    def _announce(self, endpoint: Endpoint) -> None:
        served = list_models(endpoint.base_url, endpoint.api_key)
        self._tracker.finish()
        durations = self._tracker.durations()
        # Preparing the model may have been a download: it says nothing about the next start.
        preparing_s = durations.pop(Phase.MODEL.value, 0.0)
        self._tools.remember(durations)
        self._check()
        if served:
            endpoint = replace(endpoint, max_model_len=served[0].max_model_len)
        elapsed_s = self._tracker.elapsed_s
        assert self._record is not None
        self._record = replace(self._record, ready=True, max_model_len=endpoint.max_model_len, ready_after_s=elapsed_s)
        record.write_record(self._tools.settings.state_dir, self._record)
        self._tools.publish(
            state=ServerState.READY,
            endpoint=endpoint,
            phases=self._tracker.progress(),
            elapsed_s=elapsed_s,
            ready_after_s=elapsed_s,
            load_s=elapsed_s - preparing_s,
            message="Ready",
            capacity=scraped_capacity(endpoint, self._tracker.capacity),
        )

    # -- the end

    def _explain(self) -> Diagnosis:
        """Why a server ended that nobody had asked to."""
        ended = self._child.exit if self._child else None
        if ended is not None and ended.error:
            return Diagnosis("guard_killed", f"The server was ended, because {ended.error}.", "Start it again.")
        return diagnose_file(
            self._log_path or Path(),
            exit_code=ended.code if ended else None,
            config=self._config,
            was_ready=self._record is not None and self._record.ready,
        )

    def _end(self, diagnosis: Diagnosis | None) -> Ending:
        """End what runs, look whether it is gone and its memory back, and say so."""
        self._tracker.finish()
        ended = self._child.stop() if self._child is not None else None
        if self._tools.events is not None:
            self._tools.events.close()
        self._tools.publish(phases=self._tracker.progress(), elapsed_s=self._tracker.elapsed_s)
        left = ended.left if ended is not None else ()
        if not left:
            with contextlib.suppress(OSError):  # a folder that is gone or read-only must not hide the end
                record.drop_record(self._tools.settings.state_dir)
        memory = self._memory_words(ended)
        if left:
            numbers = ", ".join(map(str, left))
            found = f"Processes {numbers} of the server could not be ended."
            remedy = "End them by hand before the next start."
            if diagnosis is None:
                diagnosis = Diagnosis("left_behind", found, remedy)
            else:
                diagnosis = replace(diagnosis, fix=None, remedy=f"{diagnosis.remedy} {found} {remedy}")
        if diagnosis is not None:
            return Ending(ServerState.FAILED, diagnosis.cause + memory, diagnosis)
        words = "Stopped: no process of it is left" if ended is not None else "Stopped before it began"
        return Ending(ServerState.STOPPED, words + memory)

    def _memory_words(self, ended: Exit | None) -> str:
        if ended is None or self._free_before is None:
            return ""
        deadline = time.monotonic() + MEMORY_BACK_S
        while time.monotonic() < deadline:
            free = _gpu_free(self._tools.hardware(self._tools.settings))
            if free is not None and free >= self._free_before - MEMORY_SLACK_BYTES:
                return ", the GPU memory is back"
            time.sleep(POLL_S)
        return ", but GPU memory is still held by something"

    # -- small things

    def _child_or_fail(self) -> ServerChild:
        assert self._child is not None
        return self._child

    def _check(self) -> None:
        """Raises when it is over."""
        if self._stop.is_set():
            raise _Stopped
        if self._child is not None and self._child.exit is not None:
            raise _Died

    def _enter(self, phase: Phase) -> None:
        self._tracker.enter(phase)
        self._show_progress()

    def _say(self, message: str) -> None:
        self._tools.publish(message=message)
        self._show_times()

    def _show_progress(self) -> None:
        self._tools.publish(message=self._tracker.label, capacity=self._tracker.capacity)
        self._show_times()

    def _show_times(self) -> None:
        self._tools.publish(
            phases=self._tracker.progress(), elapsed_s=self._tracker.elapsed_s, expected_s=self._tracker.expected_s
        )


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Whether a server could listen there; one that only waits out old connections (TIME_WAIT) is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def require_free(port: int) -> None:
    """Raises ConfigError when somebody listens there already."""
    if not port_is_free(port):
        raise ConfigError(f"Port {port} is taken by another program.", f"Leave the port open, or use {free_port()}.")


def scraped_capacity(endpoint: Endpoint, known: KvCapacity) -> KvCapacity:
    """KV cache as ``/metrics`` tells, and what the log told where it doesn't."""
    with contextlib.suppress(LabError):
        metrics = scrape(endpoint, 5.0)
        return KvCapacity(
            tokens=metrics.kv_tokens or known.tokens,
            block_size=metrics.block_size or known.block_size,
            num_blocks=metrics.num_blocks or known.num_blocks,
            max_concurrency=metrics.max_concurrency or known.max_concurrency,
        )
    return known


def _gpu_free(hardware: Hardware) -> int | None:
    """Free bytes of all GPUs together; None without a GPU, or where one does not tell."""
    if hardware.device != Device.CUDA:
        return None
    free = [gpu.memory_free_bytes for gpu in hardware.gpus]
    return None if None in free else sum(value for value in free if value is not None)
