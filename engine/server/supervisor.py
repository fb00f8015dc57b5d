"""Owns the server: start, readiness, stop, restart, crash, attach. One per data folder.

Every start has a thread of its own that lives as long as that server; public methods only note
what is wanted and return. Viewers read ``snapshot()``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engine.client import list_models, probe_one_token
from engine.config import Device, Endpoint, ServerConfig, Settings
from engine.environment import Hardware, detect_hardware
from engine.errors import AlreadyRunning, ConfigError, DataFolderInUse, LabError, ServerFailed, ServerNotReady
from engine.models import ModelSource, prepare
from engine.server import log, record
from engine.server.child import Exit, ServerChild
from engine.server.command import Launch, build_launch
from engine.server.diagnosis import diagnose_file
from engine.server.startup import StartupTracker
from engine.server.state import Diagnosis, KvCapacity, Phase, ServerSnapshot, ServerState
from engine.store import RunStore
from engine.telemetry.prometheus import scrape

POLL_S = 0.25
PROBE_TIMEOUT_S = 60.0
START_TIMEOUT_S = 30 * 60.0
PORT_TRIES = 3
CRASH_SETTLE_S = 8.0
MEMORY_BACK_S = 10.0
MEMORY_SLACK_BYTES = 64 * 1024**2

LaunchBuilder = Callable[..., Launch]


class _Stopped(Exception):
    """The start was called off."""


class Supervisor:
    """The one vLLM server of this process; every method may be called from any thread."""

    def __init__(
        self,
        settings: Settings,
        store: RunStore,
        *,
        owner: bool = True,
        build: LaunchBuilder = build_launch,
        prepare_model: Callable[..., ModelSource] = prepare,
        hardware: Callable[[Settings], Hardware] = detect_hardware,
    ) -> None:
        self._settings, self._store = settings, store
        self._build, self._prepare, self._detect = build, prepare_model, hardware
        self._lock = threading.RLock()
        self._snapshot = ServerSnapshot()
        self._tracker: StartupTracker | None = None
        self._stop = threading.Event()
        self._next: ServerConfig | None = None
        self._life: threading.Thread | None = None
        self._owner = owner
        self._ports_lost = 0
        self.leftovers = record.end_leftover(settings.state_dir) if owner else []

    # -- what viewers read

    def snapshot(self) -> ServerSnapshot:
        """The state now; while starting, with the phases' elapsed times up to this moment."""
        with self._lock:
            current, tracker = self._snapshot, self._tracker
        if tracker is None or current.attached or current.state == ServerState.STOPPED:
            return current
        return replace(
            current,
            phases=tracker.progress(),
            elapsed_s=tracker.elapsed_s if current.state == ServerState.STARTING else current.elapsed_s,
            expected_s=tracker.expected_s,
        )

    def endpoint(self) -> Endpoint:
        """Where requests go; raises ServerNotReady."""
        current = self.snapshot()
        if not current.ready or current.endpoint is None:
            raise ServerNotReady(f"The server is {current.state.value}.", "Start it on the Server page and wait.")
        return current.endpoint

    def log_tail(self, lines: int = 200, needle: str | None = None) -> list[str]:
        path = self.snapshot().log_path
        return log.tail(Path(path), lines, needle) if path else []

    # -- what people ask for

    def start(self, config: ServerConfig | None = None) -> None:
        """Begin a start and return. Raises AlreadyRunning unless the server is stopped or failed."""
        if not self._owner:
            raise DataFolderInUse(
                "Another vLLM Lab owns this data folder, and its server is not ready.",
                "Wait until it is, start it there, or set LAB_DATA_DIR to another folder.",
            )
        with self._lock:
            if self._snapshot.attached:
                raise AlreadyRunning("The lab is attached to another server.", "Detach from it first.")
            if self._snapshot.state not in (ServerState.STOPPED, ServerState.FAILED):
                raise AlreadyRunning(f"The server is {self._snapshot.state.value}.", "There is only one at a time.")
            self._begin(config or ServerConfig())
            if self._life is None:  # else the thread of the one before is just ending, and takes this one over
                self._life = threading.Thread(target=self._live, name="server-life", daemon=True)
                self._life.start()

    def stop(self, *, wait: bool = False) -> None:
        """End the server, or call off its start; nothing happens when there is none."""
        with self._lock:
            life = self._life
            self._next = None
            if self._snapshot.state in (ServerState.STARTING, ServerState.READY) and not self._snapshot.attached:
                self._snapshot = replace(self._snapshot, state=ServerState.STOPPING, message="Stopping")
                self._stop.set()
        if wait and life is not None:
            life.join()

    def restart(self, config: ServerConfig) -> None:
        """Stop (when something runs) and start with another configuration; returns at once."""
        with self._lock:
            if self._snapshot.attached or self._snapshot.state in (ServerState.STOPPED, ServerState.FAILED):
                self.start(config)
                return
            self.stop()
            self._next = config

    def attach(self, base_url: str, api_key: str | None = None) -> None:
        """Use a server that somebody else runs. Raises AlreadyRunning, ConfigError or ServerNotReady."""
        url = normal_base_url(base_url)
        with self._lock:
            if not self._snapshot.attached and self._snapshot.state not in (ServerState.STOPPED, ServerState.FAILED):
                raise AlreadyRunning("The lab's own server is running.", "Stop it, then attach.")
        served = list_models(url, api_key)
        if not served:
            raise ServerNotReady(f"{url} answers, but serves no model.", "Load a model there first.")
        endpoint = Endpoint(url, served[0].id, api_key, served[0].max_model_len)
        self._set(
            ServerSnapshot(
                state=ServerState.READY,
                generation=self._snapshot.generation + 1,
                attached=True,
                endpoint=endpoint,
                started_at=time.time(),
                message=f"Attached to {url}",
                capacity=_scraped_capacity(endpoint, KvCapacity()),
            )
        )

    def detach(self) -> None:
        with self._lock:
            if self._snapshot.attached:
                self._snapshot = ServerSnapshot(generation=self._snapshot.generation)

    def adopt(self, running: record.ServerRecord) -> None:
        """Use the server of another process on the same data folder (the command line beside the app)."""
        self._set(
            ServerSnapshot(
                state=ServerState.READY,
                generation=1,
                attached=True,
                config=ServerConfig.from_dict(running.config),
                endpoint=Endpoint(running.base_url, running.model, running.api_key, running.max_model_len),
                source=ModelSource.from_dict(running.source),
                ready_after_s=running.ready_after_s,
                message="Using the server of the running app",
                command=running.command,
                pid=running.pid,
                log_path=running.log_path,
            )
        )

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> ServerSnapshot:
        """Block until ready; raises ServerFailed with the diagnosis, or when time is up."""
        deadline = time.monotonic() + timeout_s
        while True:
            current = self.snapshot()
            if current.ready:
                return current
            if current.diagnosis and current.state == ServerState.FAILED:
                raise ServerFailed(current.diagnosis.cause, current.diagnosis.remedy)
            if current.state == ServerState.STOPPED:
                raise ServerFailed("The server was stopped.", "Start it again.")
            if time.monotonic() >= deadline:
                raise ServerFailed(f"The server was not ready after {timeout_s:.0f} s.", "Look at its log.")
            time.sleep(POLL_S)

    def close(self) -> None:
        """Stop and wait; for the end of the process."""
        self.stop(wait=True)

    # -- the life of one server, on its own thread

    def _begin(self, config: ServerConfig) -> None:
        """Publish STARTING at once, so that a second press of Start finds it."""
        self._stop.clear()
        self._tracker = StartupTracker(self._store.expected_start(_history_key(config)))
        self._snapshot = ServerSnapshot(
            state=ServerState.STARTING,
            generation=self._snapshot.generation + 1,
            config=config,
            started_at=time.time(),
            message="Preparing the model",
        )

    def _live(self) -> None:
        while True:
            self._live_once()
            with self._lock:
                config, self._next = self._next, None
                if config is not None:
                    self._begin(config)
                if self._snapshot.state != ServerState.STARTING:
                    self._life = None
                    return

    def _live_once(self) -> None:
        child: ServerChild | None = None
        free_before: int | None = None
        try:
            hardware = self._detect(self._settings)
            free_before = _gpu_free(hardware)
            child = self._spawn(hardware)
            self._wait_listening(child)
            self._make_ready(child)
            while not self._stop.is_set():
                if child.wait(POLL_S) is not None:
                    self._fail(child.exit, was_ready=True)
                    return
        except _Stopped:
            pass
        except _Died:
            assert child is not None
            self._fail(child.exit, was_ready=False)
            return
        except LabError as error:
            self._end(child)
            self._failed(Diagnosis("refused", error.cause, error.remedy))
            return
        except Exception as error:  # whatever it is, the state must not stay at "starting"
            self._end(child)
            self._failed(
                Diagnosis("internal", f"{type(error).__name__}: {error}", "This is a fault of the lab itself.")
            )
            return
        self._stopped(self._end(child), free_before)

    def _spawn(self, hardware: Hardware) -> ServerChild:
        config = self._config()
        source = self._prepare(config.model, self._settings, self._progress, self._check_stop)
        self._enter(Phase.IMPORT, "Starting vLLM", source=source)
        port, key = config.port or free_port(), secrets.token_urlsafe(32)
        if config.port is not None:
            _require_free(config.port)
        launch = self._build(config, hardware, source, port=port, api_key=key)
        endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", source.model_id, key, config.max_model_len)
        self._settings.logs_dir.mkdir(parents=True, exist_ok=True)
        log.prune(self._settings.logs_dir)
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{self._snapshot.generation}"
        log_path = self._settings.logs_dir / f"server-{stamp}.log"
        log_path.touch(mode=0o600)
        child = ServerChild(launch, log_path, os.environ)
        self._update(
            endpoint=endpoint,
            command=launch.shell_line(),
            pid=child.pid,
            log_path=str(log_path),
            message="Importing vLLM",
        )
        try:
            self._write_record(child, ready=False)
        except BaseException:
            child.stop()
            raise
        return child

    def _wait_listening(self, child: ServerChild) -> None:
        follower = log.LogFollower(Path(self._snapshot.log_path or ""))
        tracker = self._tracker
        assert tracker is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not tracker.listening:
            self._check_alive(child)
            for line in follower.new_lines():
                tracker.read(line)
            self._update(
                capacity=tracker.capacity, message=f"{tracker.progress()[list(Phase).index(tracker.phase)].label}"
            )
            if time.monotonic() > deadline:
                raise ServerFailed("The server did not begin to listen within 30 minutes.", "Look at its log.")
            child.wait(POLL_S)

    def _make_ready(self, child: ServerChild) -> None:
        """Ready means that a token came back, not that a port answers."""
        tracker, endpoint = self._tracker, self._snapshot.endpoint
        assert tracker is not None and endpoint is not None
        tracker.enter(Phase.READY)
        self._probe(child, endpoint)
        served = list_models(endpoint.base_url, endpoint.api_key)
        tracker.finish()
        length = served[0].max_model_len if served else endpoint.max_model_len
        self._store.add_start(_history_key(self._config()), tracker.durations(), tracker.elapsed_s)
        with self._lock:
            if self._stop.is_set():
                raise _Stopped
            self._snapshot = replace(
                self._snapshot,
                state=ServerState.READY,
                endpoint=replace(endpoint, max_model_len=length),
                elapsed_s=tracker.elapsed_s,
                ready_after_s=tracker.elapsed_s,
                message="Ready",
                capacity=_scraped_capacity(endpoint, tracker.capacity),
            )
        self._write_record(child, ready=True)

    def _probe(self, child: ServerChild, endpoint: Endpoint) -> None:
        """Have a first token made, on a thread of its own: a stop must not wait for a server that hangs."""
        errors: list[LabError] = []

        def ask() -> None:
            try:
                probe_one_token(endpoint, PROBE_TIMEOUT_S)
            except LabError as error:
                errors.append(error)

        asking = threading.Thread(target=ask, name="server-probe", daemon=True)
        asking.start()
        while asking.is_alive():
            self._check_alive(child)
            asking.join(POLL_S)
        if errors:
            # An engine that died takes a while to bring its server down: its log says more than the reply.
            deadline = time.monotonic() + CRASH_SETTLE_S
            while time.monotonic() < deadline:
                self._check_alive(child)
                child.wait(POLL_S)
            raise errors[0]

    def _check_alive(self, child: ServerChild) -> None:
        self._check_stop()
        if child.exit is not None:
            raise _Died

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _progress(self, message: str) -> None:
        self._update(message=message)

    # -- the end of it

    def _end(self, child: ServerChild | None) -> Exit | None:
        return child.stop() if child is not None else None

    def _stopped(self, ended: Exit | None, free_before: int | None) -> None:
        self._drop_record()
        if ended is not None and ended.left:
            self._failed(
                Diagnosis(
                    "left_behind",
                    f"Processes {', '.join(map(str, ended.left))} of the server could not be ended.",
                    "End them by hand before the next start.",
                )
            )
            return
        message = "Stopped: no process of it is left" if ended is not None else "Stopped before it began"
        if free_before is not None:
            back = self._gpu_memory_back(free_before)
            message += ", the GPU memory is back" if back else ", but GPU memory is still held by something"
        with self._lock:
            self._snapshot = replace(
                self._snapshot,
                state=ServerState.STOPPED if self._next is None else ServerState.STOPPING,
                endpoint=None,
                pid=None,
                message=message,
                capacity=KvCapacity(),
            )

    def _gpu_memory_back(self, free_before: int) -> bool:
        deadline = time.monotonic() + MEMORY_BACK_S
        while time.monotonic() < deadline:
            free = _gpu_free(self._detect(self._settings))
            if free is not None and free >= free_before - MEMORY_SLACK_BYTES:
                return True
            time.sleep(POLL_S)
        return False

    def _fail(self, ended: Exit | None, *, was_ready: bool) -> None:
        code = ended.code if ended else None
        path = Path(self._snapshot.log_path or "")
        config = self._config()
        diagnosis = diagnose_file(path, exit_code=code, config=config, was_ready=was_ready)
        if diagnosis.name == "port_taken" and config.port is None and self._ports_lost < PORT_TRIES:
            # Somebody took the port that we had found free: only another one is needed.
            self._ports_lost += 1
            with self._lock:
                self._next = self._next or config
                self._snapshot = replace(self._snapshot, state=ServerState.STOPPING, message=diagnosis.cause)
            return
        self._ports_lost = 0
        self._failed(diagnosis)

    def _drop_record(self) -> None:
        with contextlib.suppress(OSError):  # a folder that is gone or read-only must not hide the end of a server
            record.drop_record(self._settings.state_dir)

    def _failed(self, diagnosis: Diagnosis) -> None:
        self._drop_record()
        tracker = self._tracker
        if tracker is not None:
            tracker.finish()
        with self._lock:
            if self._next is not None:  # a restart was asked for meanwhile
                self._snapshot = replace(self._snapshot, state=ServerState.STOPPING, message=diagnosis.cause)
                return
            self._snapshot = replace(
                self._snapshot,
                state=ServerState.FAILED,
                diagnosis=diagnosis,
                message=diagnosis.cause,
                pid=None,
                elapsed_s=tracker.elapsed_s if tracker else None,
            )

    # -- small things

    def _config(self) -> ServerConfig:
        config = self._snapshot.config
        assert config is not None
        return config

    def _enter(self, phase: Phase, message: str, **changes: Any) -> None:
        if self._tracker is not None:
            self._tracker.enter(phase)
        self._update(message=message, **changes)

    def _update(self, **changes: Any) -> None:
        """Change what is published, except the message of a stop that is under way."""
        with self._lock:
            if self._snapshot.state == ServerState.STOPPING:
                changes.pop("message", None)
            self._snapshot = replace(self._snapshot, **changes)

    def _set(self, snapshot: ServerSnapshot) -> None:
        with self._lock:
            self._snapshot = snapshot

    def _write_record(self, child: ServerChild, *, ready: bool) -> None:
        current = self._snapshot
        assert current.endpoint and current.source and child.pid is not None and child.ticks is not None
        record.write_record(
            self._settings.state_dir,
            record.ServerRecord(
                pid=child.pid,
                ticks=child.ticks,
                base_url=current.endpoint.base_url,
                api_key=current.endpoint.api_key or "",
                model=current.endpoint.model,
                ready=ready,
                config=self._config().to_dict(),
                source=current.source.to_dict(),
                command=current.command,
                log_path=current.log_path or "",
                max_model_len=current.endpoint.max_model_len,
                ready_after_s=current.ready_after_s,
            ),
        )


class _Died(Exception):
    """The server ended before it was ready."""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def normal_base_url(text: str) -> str:
    """``host:port``, with or without scheme and ``/v1`` → ``http://host:port/v1``; raises ConfigError."""
    url = text.strip()
    if "://" not in url:
        url = f"http://{url}"
    url = url.rstrip("/")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or any(c.isspace() for c in url) or any(mark in url for mark in "@?#"):
        raise ConfigError(f"{text!r} is not a base URL.", "Write it like http://127.0.0.1:8000/v1.")
    return url if url.endswith("/v1") else f"{url}/v1"


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        # A port that only waits out old connections (TIME_WAIT) is free for a server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"Port {port} is taken by another program.", f"Leave the port open, or use {free_port()}."
            ) from error


def _gpu_free(hardware: Hardware) -> int | None:
    """Free bytes of all GPUs together; None without a GPU, or where one does not tell."""
    if hardware.device != Device.CUDA:
        return None
    free = [gpu.memory_free_bytes for gpu in hardware.gpus]
    return None if None in free else sum(value for value in free if value is not None)


def _scraped_capacity(endpoint: Endpoint, known: KvCapacity) -> KvCapacity:
    with contextlib.suppress(LabError):
        metrics = scrape(endpoint, 5.0)
        return KvCapacity(
            tokens=metrics.kv_tokens or known.tokens,
            block_size=metrics.block_size or known.block_size,
            num_blocks=metrics.num_blocks or known.num_blocks,
            max_concurrency=metrics.max_concurrency or known.max_concurrency,
        )
    return known


def _history_key(config: ServerConfig) -> str:
    return f"{config.model}|eager={config.enforce_eager}"
