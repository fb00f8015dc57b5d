"""The vLLM server as a comparison needs it: ready, restarted in another mode, or away while memory is short."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.config import Device, ServerConfig, Settings
from engine.environment import Hardware, detect_hardware
from engine.errors import AlreadyRunning, ConfigError, LabError, RequestRejected, ServerFailed
from engine.models import ModelSource, find_ready
from engine.server.processes import group_members, proportional_bytes
from engine.server.supervisor import Supervisor

POLL_S = 0.3
# A server takes a while to notice that a part of it died, and to end.
CRASH_TOLD_S = 20.0
BOTH_FIT_FACTOR, BOTH_FIT_EXTRA = 1.3, int(1.5 * 1024**3)


class MeasuredServer:
    """``say`` tells people what happens and ``check`` raises when it was called off; both are called while waiting."""

    def __init__(
        self, settings: Settings, supervisor: Supervisor, say: Callable[[str], None], check: Callable[[], None]
    ) -> None:
        self._settings, self._supervisor, self._say, self._check = settings, supervisor, say, check

    @contextmanager
    def ready(self, config: ServerConfig | None) -> Iterator[None]:
        """A server that is ready: the one that runs, else one of our own, stopped again in the end."""
        mine = False
        if not (self._supervisor.snapshot().ready or self._supervisor.snapshot().busy):
            self._say("Starting the vLLM server")
            with contextlib.suppress(AlreadyRunning):
                self._supervisor.start(config or self._supervisor.snapshot().config)
                mine = True
        try:
            self._await()
            yield
        finally:
            if mine:
                self._supervisor.stop(wait=True)

    def has_room_beside(self, source: ModelSource) -> bool:
        """Whether Hugging Face fits into memory while the server runs; somebody else's is left alone anyway."""
        return self._supervisor.snapshot().attached or _both_fit(detect_hardware(self._settings), source)

    @contextmanager
    def away(self, served: ServerConfig) -> Iterator[None]:
        """Stopped meanwhile, and ready again afterwards."""
        self._supervisor.stop(wait=True)
        try:
            yield
        finally:
            self._supervisor.start(served)
        self._await()

    def restart(self, config: ServerConfig) -> None:
        """Returns when it is ready again."""
        before = self._supervisor.snapshot().generation
        self._supervisor.restart(config)
        while self._supervisor.snapshot().generation == before:
            self._check()
            time.sleep(POLL_S)
        self._await()

    def weights(self) -> ModelSource:
        """What the server serves, as Hugging Face can load it."""
        snapshot = self._supervisor.snapshot()
        source = snapshot.source
        if source is None and snapshot.endpoint is not None:
            with contextlib.suppress(LabError):
                source = find_ready(snapshot.endpoint.model, self._settings)
        if source is None:
            raise ConfigError(
                "The weights of the attached server's model are not on this machine, so Hugging Face can't run them.",
                "Measure vLLM alone, or compare with the lab's own server.",
            )
        return source

    def memory_bytes(self) -> int | None:
        """Memory of the lab's own server, all processes; None on a GPU and for somebody else's."""
        pid = self._supervisor.snapshot().pid
        if pid is None or detect_hardware(self._settings).device != Device.CPU:
            return None
        return proportional_bytes(group_members(pid))

    def cause_of(self, failure: LabError) -> LabError:
        """Why a request failed. A server whose engine died says so little, and later than the request: wait for it."""
        refused = isinstance(failure, RequestRejected) and failure.status is not None and failure.status < 500
        if refused or self._supervisor.snapshot().attached:
            return failure
        self._say("A request failed: looking whether the server died")
        deadline = time.monotonic() + CRASH_TOLD_S
        while time.monotonic() < deadline:
            self._check()
            snapshot = self._supervisor.snapshot()
            if snapshot.diagnosis is not None:
                return ServerFailed(snapshot.diagnosis.cause, snapshot.diagnosis.remedy)
            if not snapshot.ready and not snapshot.busy:
                break
            time.sleep(POLL_S)
        return failure

    def _await(self) -> None:
        while True:
            self._check()
            snapshot = self._supervisor.snapshot()
            if snapshot.ready:
                return
            if not snapshot.busy:
                self._supervisor.wait_ready(0)  # raises what is wrong
            self._say(f"Starting the vLLM server: {snapshot.message}")
            time.sleep(POLL_S)


def _both_fit(hardware: Hardware, source: ModelSource) -> bool:
    """Whether the baseline fits beside the running server, by an estimate."""
    need = int((source.weights_bytes or 0) * BOTH_FIT_FACTOR) + BOTH_FIT_EXTRA
    if hardware.device == Device.CPU:
        return hardware.ram_available_bytes > need
    free = [gpu.memory_free_bytes for gpu in hardware.gpus]
    return bool(free) and free[0] is not None and free[0] > need
