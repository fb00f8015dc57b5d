"""A real supervisor whose server is ``tests.fake_server``: a real process, with known behaviour."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from engine.config import PROJECT_ROOT, Device, ServerConfig, Settings
from engine.environment import Hardware
from engine.models import ModelOrigin, ModelSource
from engine.server.command import Launch
from engine.server.startup import Phase
from engine.server.state import ServerSnapshot, ServerState
from engine.server.supervisor import Supervisor
from engine.store import RunStore

TIMEOUT_S = 30.0
CPU = Hardware(Device.CPU, "A CPU", (0,), 1, frozenset(), 2**34, 2**34)


def eventually(condition: Callable[[], Any]) -> Any:
    """The first true value of a condition; fails after a generous while."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
    return value


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Lab:
    """A supervisor whose server is the fake one; ``words`` are its options, ``launched`` what was built."""

    def __init__(self, tmp_path: Path) -> None:
        self.settings = Settings.from_env()
        self.store = RunStore(self.settings.database)
        self.words: list[str] = []
        self.preload: dict[str, str] = {}
        self.launched: list[Launch] = []
        self.gate = tmp_path / "gate"
        self._guards_before = set(guards())
        self.hardware = CPU
        self.prepare: Callable[..., ModelSource] = lambda model, *_: ModelSource(
            model, tmp_path, ModelOrigin.LOCAL, "a folder", 1
        )
        self.supervisor = self.open()

    def open(self, **kwargs: Any) -> Supervisor:
        return Supervisor(
            self.settings,
            self.store,
            build=self._build,
            prepare_model=lambda *args: self.prepare(*args),
            hardware=lambda _: self.hardware,
            **kwargs,
        )

    def _build(
        self,
        config: ServerConfig,
        hardware: Hardware,
        source: ModelSource,
        *,
        port: int,
        api_key: str,
        kv_events: str | None = None,
        **_: Any,
    ) -> Launch:
        argv = (sys.executable, "-m", "tests.fake_server", "--port", str(port), "--model", source.model_id)
        env = {"VLLM_API_KEY": api_key, "PYTHONPATH": str(PROJECT_ROOT)} | self.preload
        told = ("--kv-events-config", kv_events) if kv_events else ()
        self.launched.append(Launch((*argv, *told, *self.words, "--gate", str(self.gate)), env))
        return self.launched[-1]

    def at(self, phase: Phase, action: str) -> None:
        self.words = ["--at", phase.value, "--do", action]

    def snapshot(self) -> ServerSnapshot:
        return self.supervisor.snapshot()

    def start_and_wait(self, config: ServerConfig | None = None) -> ServerSnapshot:
        self.supervisor.start(config)
        return self.supervisor.wait_ready(TIMEOUT_S)

    def wait_for(self, state: ServerState) -> ServerSnapshot:
        eventually(lambda: self.snapshot().state == state)
        return self.snapshot()

    def wait_for_phase(self, phase: Phase) -> ServerSnapshot:
        """Until a start is in this phase."""

        def current() -> ServerSnapshot | None:
            found = self.snapshot()
            assert found.state == ServerState.STARTING, found
            now = next(item.phase for item in found.phases if not item.done)
            return found if now == phase else None

        return eventually(current)  # type: ignore[no-any-return]

    def processes(self) -> list[int]:
        """Living processes of any server of this lab, found by the gate in their command line, and guards."""
        servers = [process.pid for process in psutil.process_iter() if str(self.gate) in cmdline(process)]
        return [pid for pid in (*servers, *(set(guards()) - self._guards_before)) if alive(pid)]


def guards() -> list[int]:
    return [child.pid for child in psutil.Process().children() if "engine.server.guard" in cmdline(child)]


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
