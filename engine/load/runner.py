"""One load test at a time, on its own thread; the result is saved as a run, whole or not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from engine.compare_server import MeasuredServer
from engine.config import LoadTestConfig, ServerConfig, Settings
from engine.environment import collect, detect_hardware
from engine.errors import AlreadyRunning, LabError, RequestError
from engine.exclusive import WAIT_OR_CANCEL, Exclusive, told
from engine.load.board import LoadBoard
from engine.load.measure import Cancelled, measure
from engine.load.results import LoadResults, LoadSnapshot, LoadState
from engine.models import ModelSource
from engine.server.supervisor import Supervisor
from engine.store import RunStore, new_run
from engine.telemetry.host import CoreWatch

KIND = "load"
RESERVED = "A load test is running."


class LoadTestRunner:
    """Start, watch, cancel; any thread may call any method."""

    def __init__(
        self,
        settings: Settings,
        supervisor: Supervisor,
        store: RunStore,
        answering: Callable[[], str] = lambda: "",
    ) -> None:
        self._settings, self._supervisor, self._store = settings, supervisor, store
        self._server = MeasuredServer(settings, supervisor, self._say, self._check_cancel)
        self._work = Exclusive("load-test", supervisor.taken_by, answering)
        self._board = LoadBoard()
        self._subject: dict[str, Any] = {}
        self._cancel = self._work.cancelled

    def snapshot(self) -> LoadSnapshot:
        return self._board.snapshot()

    def require_idle(self) -> None:
        """Raises AlreadyRunning while something is measured."""
        if self._board.running:
            raise AlreadyRunning(RESERVED, WAIT_OR_CANCEL)

    def start(self, config: LoadTestConfig, server: ServerConfig | None = None) -> None:
        """Begin and return; raises AlreadyRunning. ``server`` is what to start where none runs."""

        def announce() -> Callable[[], None]:
            before = self._board, self._subject
            self._board, self._subject = LoadBoard(config), {}
            return lambda: self._take_back(*before)

        self._work.start(self.require_idle, announce, lambda: self._run(config, server))

    def cancel(self) -> None:
        """End it soon; what was measured is kept and marked."""
        self._cancel.set()

    def close(self) -> None:
        """Cancel and wait, so that nothing of it is left."""
        self.cancel()
        self.wait()

    def wait(self) -> None:
        """Until it is over, if one runs."""
        self._work.wait()

    def run_blocking(
        self, config: LoadTestConfig, server: ServerConfig | None, progress: Callable[[str], None]
    ) -> LoadSnapshot:
        """For the command line: start, tell ``progress`` each new message, and return how it ended."""
        self.start(config, server)
        self._work.follow(lambda: self._board.message, progress)
        return self.snapshot()

    # -- on the runner's thread

    def _take_back(self, board: LoadBoard, subject: dict[str, Any]) -> None:
        self._board, self._subject = board, subject

    def _run(self, config: LoadTestConfig, server: ServerConfig | None) -> None:
        state = LoadState.DONE
        error: str | None = None
        remedy = ""
        try:
            with self._supervisor.reserved(RESERVED):
                self._measure(config, server)
        except Cancelled:
            state = LoadState.CANCELLED
        except Exception as problem:  # a fault of ours must not leave the page at "running" for ever
            state, (error, remedy) = LoadState.FAILED, told(problem)
            if self._cancel.is_set() and isinstance(problem, LabError):
                state, error, remedy = LoadState.CANCELLED, None, ""
        run_id = None
        try:
            run_id = self._save(config, state, error)
        except Exception as problem:
            error, remedy = (error, remedy) if error else told(problem)
        self._board.finish(state, error=error, remedy=remedy, run_id=run_id)

    def _measure(self, config: LoadTestConfig, server: ServerConfig | None) -> None:
        with self._server.ready(server):
            self._describe()
            try:
                measure(self._supervisor.endpoint(), config, self._board, self._cancel.is_set, self._watch_cores)
            except RequestError as failure:
                raise self._server.cause_of(failure) from failure

    def _describe(self) -> None:
        """What is measured; a run is saved with this, not with what the lab happens to hold at the end."""
        now = self._supervisor.snapshot()
        source: ModelSource | None = now.source
        self._subject = {
            "server": now.config.to_dict() if now.config else None,
            "command": now.command,
            "engine": now.engine_name,
            "model": source.to_dict() if source else {"model_id": now.endpoint.model if now.endpoint else None},
        }

    def _watch_cores(self) -> CoreWatch:
        return CoreWatch(detect_hardware(self._settings), self._supervisor.snapshot().pid)

    def _say(self, message: str) -> None:
        self._check_cancel()
        self._board.say(message)

    def _check_cancel(self) -> None:
        if self._cancel.is_set():
            raise Cancelled

    def _save(self, config: LoadTestConfig, state: LoadState, error: str | None) -> str | None:
        results = self._board.results
        if not any(level.requests for level in results.levels):
            return None
        run = new_run(
            KIND,
            title_of(config, results),
            state.value,
            duration_s=time.monotonic() - self._board.began_s,
            config=config.to_dict() | {"server": self._subject.get("server")},
            environment=collect(self._settings).to_dict() | {"engine": self._subject.get("engine")},
            model=self._subject.get("model") or {},
            command=self._subject.get("command") or "",
            results=results.to_dict() | ({"error": error} if error else {}),
        )
        self._store.add(run)
        return run.id


def title_of(config: LoadTestConfig, results: LoadResults) -> str:
    """Such as "1, 5, 10, 20 users: up to 340 tok/s"."""
    levels = results.levels
    loads = [level.rate_req_s if level.users is None else level.users for level in levels]
    unit = "users" if any(level.users is not None for level in levels) else "requests/s"
    words = f"{', '.join(f'{load:g}' for load in loads if load is not None)} {unit}"
    if config.profile == "trace" or len(levels) > 6:
        words = levels[0].label if len(levels) == 1 else f"{levels[0].label} to {levels[-1].label}"
    speeds = [level.throughput_tok_s for level in levels if level.throughput_tok_s is not None]
    return f"{words}: up to {max(speeds):,.0f} tok/s" if speeds else words
