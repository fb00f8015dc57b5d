"""Owns the server: start, readiness, stop, restart, crash, attach. One per data folder.

Public methods only note what is wanted and return; the server lives on a thread of its own
(``engine.server.life``). Viewers read ``snapshot()``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.config import Endpoint, ServerConfig, Settings
from engine.dialects import detect
from engine.endpoint_api import list_models, probe_one_token
from engine.environment import Hardware, detect_hardware
from engine.errors import (
    AlreadyRunning,
    ConfigError,
    DataFolderInUse,
    LabError,
    ServerFailed,
    ServerNotReady,
)
from engine.fetch import api_key_of, base_url_of
from engine.models import ModelSource, prepare
from engine.server import log, measuring, record
from engine.server.command import Launch, build_launch
from engine.server.life import (
    POLL_S,
    START_TIMEOUT_S,
    BlockEvents,
    Ending,
    ServerLife,
    Tools,
    scraped_capacity,
)
from engine.server.startup import StartupTracker
from engine.server.state import Diagnosis, KvCapacity, ServerSnapshot, ServerState
from engine.server.warm import WarmStarts
from engine.store import RunStore

PORT_TRIES = 3
ATTACH_PROBE_S = 30.0
WATCH_S = 5.0
# Ends the history's key of starts that waited for the imports of all that follow.
IMPORTING = "|importing"
OVER = (ServerState.STOPPED, ServerState.FAILED)


class Supervisor:
    """The one vLLM server of this process; every method may be called from any thread."""

    def __init__(
        self,
        settings: Settings,
        store: RunStore,
        *,
        owner: bool = True,
        build: Callable[..., Launch] = build_launch,
        prepare_model: Callable[..., ModelSource] = prepare,
        hardware: Callable[[Settings], Hardware] = detect_hardware,
        events: BlockEvents | None = None,
        warm: WarmStarts | None = None,
    ) -> None:
        self._settings, self._store, self._owner = settings, store, owner
        self._tools = Tools(settings, build, prepare_model, hardware, self._publish, self._remember, events, warm)
        self._lock = threading.RLock()
        self._snapshot = ServerSnapshot()
        self._stop = threading.Event()
        self._next: ServerConfig | None = None
        self._life: threading.Thread | None = None
        self._holder: int | None = None
        self._importing = False
        if owner and (ended := record.end_leftover(settings.state_dir)):
            words = f"Ended {len(ended)} processes that an earlier run had left behind."
            self._snapshot = ServerSnapshot(message=words)

    # -- what viewers read

    def snapshot(self) -> ServerSnapshot:
        """The state now."""
        with self._lock:
            return self._snapshot

    def endpoint(self) -> Endpoint:
        """Where requests go; raises ServerNotReady."""
        current = self.snapshot()
        if not current.ready or current.endpoint is None:
            raise ServerNotReady(f"The server is {current.state.value}.", "Start it on the Server page and wait.")
        return current.endpoint

    def log_tail(self, lines: int = 200, needle: str | None = None) -> list[str]:
        path = self.snapshot().log_path
        return log.tail(Path(path), lines, needle) if path else []

    # -- what people ask for; AlreadyRunning while somebody else has reserved the server

    def start(self, config: ServerConfig | None = None) -> None:
        """Begin a start and return. Raises AlreadyRunning unless the server is stopped or failed."""
        if not self._owner:
            raise DataFolderInUse(
                "Another vLLM Lab owns this data folder, and its server is not ready.",
                "Start it there, name a server with --base-url, or set LAB_DATA_DIR to another folder.",
            )
        with self._lock:
            self._check_reserved()
            if self._snapshot.attached:
                raise AlreadyRunning("The lab is attached to another server.", "Detach from it first.")
            if self._snapshot.state not in OVER:
                raise AlreadyRunning(f"The server is {self._snapshot.state.value}.", "There is only one at a time.")
            self._begin(config or ServerConfig())
            self._life = threading.Thread(target=self._live, name="server-life", daemon=True)
            self._life.start()

    def stop(self, *, wait: bool = False) -> None:
        """End the server, or call off its start; nothing happens when there is none."""
        with self._lock:
            self._check_reserved()
            life = self._life
            if not self._snapshot.attached:
                self._call_off()
        if wait and life is not None:
            life.join()

    def restart(self, config: ServerConfig) -> None:
        """Stop (when something runs) and start with another configuration; returns at once."""
        with self._lock:
            if self._snapshot.attached or self._snapshot.state in OVER:
                self.start(config)
                return
            self.stop()
            self._next = config

    def attach(self, base_url: str, api_key: str | None = None, model: str | None = None) -> None:
        """Use a server that somebody else runs, once it has given a first token.

        Raises AlreadyRunning, ConfigError (also when it serves several models and none is named),
        ServerNotReady or RequestRejected.
        """
        url = base_url_of(base_url)
        api_key = api_key_of(api_key)
        self._check_attachable()
        endpoint = _served_endpoint(url, api_key, model)
        probe_one_token(endpoint, ATTACH_PROBE_S)
        found = detect(endpoint)
        endpoint = replace(endpoint, engine=found.dialect.key if found.known else None)
        capacity = scraped_capacity(endpoint, KvCapacity())
        with self._lock:
            self._check_attachable()
            self._snapshot = ServerSnapshot(
                state=ServerState.READY,
                generation=self._snapshot.generation + 1,
                attached=True,
                endpoint=endpoint,
                started_at=time.time(),
                message=f"Attached to {url}",
                capacity=capacity,
                detected=found,
            )
            watched = self._snapshot.generation
        threading.Thread(target=self._watch, args=(endpoint, watched), name="server-watch", daemon=True).start()

    def detach(self) -> None:
        with self._lock:
            self._check_reserved()
            if self._snapshot.attached:
                self._snapshot = ServerSnapshot(generation=self._snapshot.generation + 1)

    def adopt(self, running: record.ServerRecord) -> None:
        """Use the server of another process on the same data folder (the command line beside the app)."""
        with self._lock:
            self._snapshot = ServerSnapshot(
                state=ServerState.READY,
                generation=1,
                attached=True,
                adopted=True,
                config=ServerConfig.from_dict(running.config),
                endpoint=running.endpoint,
                source=ModelSource.from_dict(running.source),
                ready_after_s=running.ready_after_s,
                message="Using the server of the running app",
                command=running.command,
                pid=running.pid,
                log_path=running.log_path,
            )

    @contextmanager
    def reserved(self, reason: str) -> Iterator[None]:
        """Only the calling thread may start, stop, attach or detach meanwhile; others get ``reason``.

        Other processes that use this server are refused too. Raises AlreadyRunning while one of them measures.
        """
        with self._lock:
            self._check_reserved()
            self._holder = threading.get_ident()
            self._snapshot = replace(self._snapshot, reserved=reason)
        try:
            with self._claimed(reason):
                yield
        finally:
            with self._lock:
                self._holder = None
                self._snapshot = replace(self._snapshot, reserved="")

    def measured_elsewhere(self) -> str:
        """What another process measures on our server, empty when none does; a server of somebody else is not ours."""
        return measuring.elsewhere(self._settings.state_dir) if self._shared() else ""

    def taken_by(self) -> str:
        """What has the server to itself now, here or in another process; empty when nothing has."""
        return self.snapshot().reserved or self.measured_elsewhere()

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
        """Stop and wait, whoever has reserved it; for the end of the process."""
        with self._lock:
            life = self._life
            self._call_off()
        if life is not None:
            life.join()
        if self._tools.warm is not None:
            self._tools.warm.close()

    # -- inside

    def _call_off(self) -> None:
        self._next = None
        if self._snapshot.state in (ServerState.STARTING, ServerState.READY):
            self._snapshot = replace(self._snapshot, state=ServerState.STOPPING, message="Stopping")
        self._stop.set()

    def _begin(self, config: ServerConfig) -> None:
        """Publish STARTING at once, so that a second press of Start finds it."""
        self._stop.clear()
        self._snapshot = ServerSnapshot(
            state=ServerState.STARTING,
            generation=self._snapshot.generation + 1,
            config=config,
            started_at=time.time(),
            phases=StartupTracker(None).progress(),
            elapsed_s=0.0,
            message="Preparing the model",
            reserved=self._snapshot.reserved,
        )

    def _live(self) -> None:
        """One life after the other, while a restart asks for the next. The last word is said under the lock."""
        ports_lost = 0
        while True:
            current = self.snapshot()
            assert current.config is not None
            self._importing = self._tools.warm is not None and not self._tools.warm.pids()
            ending = ServerLife(
                self._tools, current.config, self._expected(current.config), self._stop, current.generation
            ).run()
            with self._lock:
                following, self._next = self._next, None
                if following is None and ending.lost_port and current.config.port is None and ports_lost < PORT_TRIES:
                    ports_lost += 1
                    following = current.config
                if following is None or self._closing(ending):
                    self._over(ending)
                    return
                self._begin(following)

    def _closing(self, ending: Ending) -> bool:
        """A server that can't be ended must not be followed by another."""
        return ending.diagnosis is not None and ending.diagnosis.name == "left_behind"

    def _over(self, ending: Ending) -> None:
        self._life = None
        after = replace(
            self._snapshot, state=ending.state, message=ending.message, diagnosis=ending.diagnosis, pid=None
        )
        if ending.state == ServerState.STOPPED:
            after = replace(after, endpoint=None, capacity=KvCapacity())
        self._snapshot = after

    def _publish(self, **changes: Any) -> None:
        """What a life shows; while it is being stopped it can't become ready any more."""
        with self._lock:
            if self._snapshot.state == ServerState.STOPPING:
                changes = {name: value for name, value in changes.items() if name not in ("state", "message")}
            self._snapshot = replace(self._snapshot, **changes)

    def _expected(self, config: ServerConfig) -> Mapping[str, float]:
        """Seconds that the phases took before; history is a comfort, not a condition."""
        key = history_key(config)
        try:
            importing = self._store.expected_start(key + IMPORTING) if self._importing else {}
            return importing or self._store.expected_start(key)
        except LabError:
            return {}

    def _remember(self, durations: Mapping[str, float]) -> None:
        current = self.snapshot()
        assert current.config is not None
        key = history_key(current.config) + (IMPORTING if self._importing and current.forked else "")
        with contextlib.suppress(LabError):  # a full disk too
            self._store.add_start(key, durations, sum(durations.values()))

    def _watch(self, endpoint: Endpoint, generation: int) -> None:
        """Look at an attached server now and then: it may go away, and come back."""
        while True:
            time.sleep(WATCH_S)
            lost: LabError | None = None
            try:
                list_models(endpoint.base_url, endpoint.api_key)
            except LabError as error:
                lost = error
            with self._lock:
                current = self._snapshot
                if current.generation != generation or not current.attached:
                    return
                diagnosis = Diagnosis("unreachable", lost.cause, lost.remedy) if lost else None
                if (diagnosis is None) != current.ready:
                    state = ServerState.FAILED if lost else ServerState.READY
                    message = lost.cause if lost else f"Attached to {endpoint.base_url}"
                    self._snapshot = replace(current, state=state, diagnosis=diagnosis, message=message)

    def _shared(self) -> bool:
        """Whether the server is this data folder's, which other processes may use as well."""
        now = self.snapshot()
        return now.adopted or not now.attached

    def _claimed(self, reason: str) -> contextlib.AbstractContextManager[None]:
        return measuring.claimed(self._settings.state_dir, reason) if self._shared() else contextlib.nullcontext()

    def _check_reserved(self) -> None:
        if self._holder is not None and self._holder != threading.get_ident():
            raise AlreadyRunning(self._snapshot.reserved, "Wait until it is over, or cancel it.")

    def _check_attachable(self) -> None:
        with self._lock:
            self._check_reserved()
            if not self._snapshot.attached and self._snapshot.state not in OVER:
                raise AlreadyRunning("The lab's own server is running.", "Stop it, then attach.")


def _served_endpoint(url: str, api_key: str | None, model: str | None) -> Endpoint:
    served = {one.id: one for one in list_models(url, api_key)}
    if not served:
        raise ServerNotReady(f"{url} answers, but serves no model.", "Load a model there first.")
    if model is None and len(served) > 1:
        raise ConfigError(f"{url} serves several models: {', '.join(served)}.", "Name one of them.")
    chosen = model or next(iter(served))
    if chosen not in served:
        raise ConfigError(f"{url} doesn't serve {chosen}, but {', '.join(served)}.", "Name one of these.")
    return Endpoint(url, chosen, api_key, served[chosen].max_model_len)


def history_key(config: ServerConfig) -> str:
    """Starts that take about the same time share it."""
    return f"{config.model}|eager={config.enforce_eager}"
