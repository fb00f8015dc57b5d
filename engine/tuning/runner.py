"""The tuning service: one study at a time, on its own thread. It outlives the app: what is left is in the database."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.compare_server import MeasuredServer
from engine.config import ServerConfig, Settings
from engine.environment import collect, detect_hardware
from engine.errors import AlreadyRunning, ConfigError, DataFolderInUse, LabError
from engine.exclusive import Exclusive, told
from engine.kv.shape import ModelShape
from engine.load.measure import Cancelled, measure
from engine.models import find_ready
from engine.server.supervisor import Supervisor
from engine.store import RunStore
from engine.tuning import studies, way_back
from engine.tuning.board import StudyBoard
from engine.tuning.estimate import Estimate, estimate
from engine.tuning.grid import combinations
from engine.tuning.knobs import Knob, in_words, knobs
from engine.tuning.prediction import Prediction, launch_of, predict
from engine.tuning.recommend import serve_yaml
from engine.tuning.search import next_changes
from engine.tuning.study import (
    Recommendation,
    Study,
    StudyConfig,
    StudyKind,
    StudyState,
    Trial,
    TrialState,
    TuneSnapshot,
)
from engine.tuning.trying import Bench, Measure, Trying

RESERVED = "Configurations are being tried."
AS_IT_WAS = "as it was"


class _Paused(Exception):
    pass


@dataclass(frozen=True)
class _Ending:
    """How a study ended; ``error`` and ``remedy`` where something went wrong."""

    state: StudyState
    error: str = ""
    remedy: str = ""

    def and_then(self, problem: Exception) -> _Ending:
        """The way back failed too; the first fault is told first."""
        error, remedy = told(problem)
        if not self.error:
            return _Ending(StudyState.FAILED, error, remedy)
        return replace(self, remedy=f"{self.remedy} The way back failed too: {error} {remedy}".strip())


class TuningRunner:
    """Start, pause, resume, cancel, watch; any thread may call any method.

    ``owner``: whether the server is ours to restart. A study that an earlier process left is found as paused.
    """

    def __init__(
        self,
        settings: Settings,
        supervisor: Supervisor,
        store: RunStore,
        answering: Callable[[], str] = lambda: "",
        *,
        owner: bool = True,
        load: Measure = measure,
    ) -> None:
        self._bench = Bench(settings, supervisor, store, load)
        self._work = Exclusive("tuning", supervisor.taken_by, answering)
        self._owner = owner
        left_over = _left_over(store) if owner else None
        self._interrupted = left_over is not None and left_over.state == StudyState.RUNNING
        previous = way_back.kept(store) if owner else None
        self._board = StudyBoard(studies.interrupted(left_over) if left_over else None, previous=previous)
        self._cancel, self._pause, self._closing = self._work.cancelled, threading.Event(), threading.Event()

    # -- what viewers read

    def snapshot(self) -> TuneSnapshot:
        return self._board.snapshot()

    def require_idle(self) -> None:
        """Raises AlreadyRunning while configurations are tried."""
        if self._board.snapshot().running:
            raise AlreadyRunning(RESERVED, "Wait until it is over, or pause or cancel it.")

    def knobs(self, config: ServerConfig) -> tuple[Knob, ...]:
        """Every knob with its values for this model on this machine."""
        source, shape = find_ready(config.model, self._bench.settings), None
        if source is not None:
            with contextlib.suppress(LabError):
                shape = ModelShape.from_config_file(source.path / "config.json")
        return knobs(detect_hardware(self._bench.settings), shape)

    def predict(self, base: ServerConfig, changes: Mapping[str, Any]) -> Prediction:
        """What a restart with these settings changed will do."""
        return predict(base, changes, self._bench.known(str(changes.get("model") or base.model)))

    def estimate(self, config: StudyConfig) -> Estimate:
        """How long a study will take, from starts and trials that were measured before on this machine."""
        return estimate(config, self._bench.store, collect(self._bench.settings), self._bench.running())

    # -- what people ask for

    def start(self, config: StudyConfig, *, restore: bool = True) -> None:
        """Begin and return; raises AlreadyRunning, DataFolderInUse, StoreError or DiskFull.

        ``restore``: after a grid, a set or a search the server goes back to the base.
        """
        self._begin(studies.new_study(config, self._first_trials(config)), restore)

    def resume(self, *, restore: bool = True) -> None:
        """Go on with the study that is paused; raises ConfigError when none is."""
        paused = self._board.snapshot()
        if paused.study is None or not paused.resumable:
            raise ConfigError("No study is paused.", "Start one.")
        self._begin(replace(paused.study, state=StudyState.RUNNING), restore)

    def resume_interrupted(self) -> bool:
        """Go on with a study in whose midst an earlier process ended (not with one that was paused); True if so."""
        if not self._interrupted or not self._board.snapshot().resumable:
            return False
        try:
            self.resume()
        except LabError:
            return False
        return True

    def pause(self) -> None:
        """After the trial that is worked on; it can be resumed then, also by a later process."""
        if self._board.snapshot().running:
            self._pause.set()
            self._board.publish(pausing=True)

    def interrupt(self) -> None:
        """Pause now: the trial that is worked on begins again when the study is resumed. Waits."""
        if self._board.snapshot().running:
            self._pause.set()
            self._cancel.set()
            self.wait()

    def cancel(self) -> None:
        """End it soon, or for good where it is paused. What was measured is kept."""
        with self._work.lock:
            current = self._board.snapshot()
            if current.study is not None and current.resumable:
                self._finish(current.study, StudyState.CANCELLED)
            self._pause.clear()
            self._cancel.set()

    def go_back(self) -> None:
        """Restart with the configuration before the last apply. Raises ConfigError when there is none."""
        self.require_idle()
        previous = self._board.snapshot().previous
        if previous is None:
            raise ConfigError("There is no earlier configuration to go back to.", "Choose one.")
        now = self._bench.supervisor.snapshot().config
        self._bench.supervisor.restart(previous)
        self._remember(now)
        self._board.publish(went_back="")

    def close(self) -> None:
        """End the work and wait. A study that runs is left as it is: a later process goes on with it."""
        self._closing.set()
        self._cancel.set()
        self.wait()

    def wait(self) -> None:
        """Until nothing is tried any more."""
        self._work.wait()

    def run_blocking(
        self, config: StudyConfig | None, progress: Callable[[str], None], *, restore: bool = False
    ) -> TuneSnapshot:
        """For the command line: start (None: resume), tell ``progress`` each new message, return how it ended."""
        if config is None:
            self.resume(restore=restore)
        else:
            self.start(config, restore=restore)
        self._work.follow(lambda: self.snapshot().message, progress)
        return self.snapshot()

    # -- the study

    def _begin(self, study: Study, restore: bool) -> None:
        def check() -> None:
            self.require_idle()
            self._check_server()

        def announce() -> Callable[[], None]:
            self._pause.clear()
            before = self._board
            expected_s = self.estimate(study.config).total_s
            self._board = StudyBoard(study, expected_s, before.snapshot().previous)
            return lambda: setattr(self, "_board", before)

        def prepare() -> None:
            studies.keep(self._bench.store, study)
            studies.forget_old(self._bench.store)

        self._work.start(check, announce, lambda: self._run(restore), prepare)

    def _check_server(self) -> None:
        """Whether the server is ours and free; raises AlreadyRunning or DataFolderInUse."""
        now = self._bench.supervisor.snapshot()
        if not self._owner:
            raise DataFolderInUse(
                "Another vLLM Lab owns the server, and tuning restarts it.",
                "Tune there, or set LAB_DATA_DIR to another folder.",
            )
        if now.attached:
            raise AlreadyRunning("The lab is attached to another server, which it can't restart.", "Detach first.")

    def _first_trials(self, config: StudyConfig) -> tuple[Trial, ...]:
        if config.kind == StudyKind.SEARCH:
            return ()
        if config.kind == StudyKind.GRID:
            return tuple(Trial(number, changes) for number, changes in enumerate(combinations(config.space)))
        labels = (*config.labels, *("" for _ in config.candidates))
        trials = [Trial(0, changes, label) for changes, label in zip(config.candidates, labels, strict=False)]
        if config.kind == StudyKind.APPLY and config.measure and self._bench.running() == config.base:
            trials.insert(0, Trial(0, {}, AS_IT_WAS))
        return tuple(replace(trial, number=number) for number, trial in enumerate(trials))

    def _run(self, restore: bool) -> None:
        study = self._board.study
        # A later process finds no server, but knows what had run.
        good = self._bench.running() or (study.config.base if any(trial.attempts for trial in study.trials) else None)
        ending = _Ending(StudyState.FAILED)
        try:
            with self._bench.supervisor.reserved(RESERVED):
                ending = self._try_and_say()
                self._leave(good, restore, failed=ending.state == StudyState.FAILED)
        except Cancelled:  # the lab closes
            pass
        except Exception as problem:  # the way back failed
            ending = ending.and_then(problem)
        if not self._closing.is_set():  # else it stands in the database as running: a later process finds it
            self._finish(self._board.study, ending.state, ending.error, ending.remedy)

    def _try_and_say(self) -> _Ending:
        """Try all; how that ended, whatever went wrong: the way back comes after it."""
        try:
            self._try_all()
        except _Paused:
            return _Ending(StudyState.PAUSED)
        except Cancelled:
            return _Ending(StudyState.PAUSED if self._pause.is_set() else StudyState.CANCELLED)
        except Exception as problem:  # a fault of ours must not leave the page at "running" for ever
            return _Ending(StudyState.FAILED, *told(problem))
        return _Ending(StudyState.DONE)

    def _try_all(self) -> None:
        trying = Trying(self._bench, self._board, self._cancel.is_set, self._when_called_off)
        while (trial := self._next()) is not None:
            if self._cancel.is_set():
                raise Cancelled
            if self._pause.is_set():
                raise _Paused
            if trial.number == len(self._board.study.trials):
                self._board.add(trial)
            trying.run(trial)
            self._board.sum_up(self._with_command)

    def _when_called_off(self) -> TrialState:
        """What becomes of the trial that was worked on."""
        again = self._pause.is_set() or self._closing.is_set()
        return TrialState.QUEUED if again else TrialState.CANCELLED

    def _next(self) -> Trial | None:
        study = self._board.study
        waiting = next((trial for trial in study.trials if trial.open), None)
        if waiting is not None or study.config.kind != StudyKind.SEARCH:
            return waiting
        if sum(trial.state != TrialState.REFUSED for trial in study.trials) >= study.config.budget:
            return None
        self._board.publish(message="Choosing what to try next")
        changes = next_changes(study.config, study.trials)
        return None if changes is None else Trial(len(study.trials), changes)

    def _finish(self, study: Study, state: StudyState, error: str = "", remedy: str = "") -> None:
        if state != StudyState.PAUSED:
            trials = (replace(one, state=TrialState.CANCELLED) if one.open else one for one in study.trials)
            study = replace(study, trials=tuple(trials))
        study = replace(study, state=state, error=error, remedy=remedy)
        try:
            studies.keep(self._bench.store, study)
        except LabError as problem:
            error, remedy = (error, remedy) if error else (problem.cause, problem.remedy)
        self._board.finish(study, error, remedy, self._with_command)

    # -- afterwards

    def _leave(self, good: ServerConfig | None, restore: bool, failed: bool) -> None:
        """The server that people find: the new one after an apply that worked, else the one that ran before."""
        study = self._board.study
        if study.config.kind == StudyKind.APPLY:
            self._leave_applied(study, good, failed)
        elif restore and not self._closing.is_set() and self._bench.running() != study.config.base:
            self._bench.supervisor.restart(study.config.base)

    def _leave_applied(self, study: Study, good: ServerConfig | None, failed: bool) -> None:
        changes = study.config.candidates[0]
        running = self._bench.running()
        if study.trials[-1].state == TrialState.REFUSED or good is None or self._closing.is_set():
            return
        if running is not None and running == study.config.server(changes) and not failed:
            if running != good:
                self._remember(good)
            return
        if running == good:
            return
        self._board.publish(message="Going back to the last good configuration")
        settings, supervisor = self._bench.settings, self._bench.supervisor
        MeasuredServer(settings, supervisor, lambda _: None, self._check_closing).restart(good)
        why = f"The server did not run with {in_words(changes)}"
        if failed:
            why = "The study could not go on"
        elif self._cancel.is_set():
            why = "It was called off"
        self._board.publish(went_back=f"{why}: the last good configuration runs again.")

    def _remember(self, previous: ServerConfig | None) -> None:
        """The way back of one click; a later process has it too, if the database takes it."""
        self._board.publish(previous=previous)
        with contextlib.suppress(LabError):
            way_back.keep(self._bench.store, previous)

    def _check_closing(self) -> None:
        if self._closing.is_set():
            raise Cancelled

    def _with_command(self, found: Recommendation) -> Recommendation:
        """How to start the recommended configuration elsewhere."""
        with contextlib.suppress(LabError):
            launch = launch_of(found.config, self._bench.known(found.config.model))
            if launch is not None:
                return replace(found, command=launch.shell_line(), yaml=serve_yaml(launch))
        return found


def _left_over(store: RunStore) -> Study | None:
    """The newest study, as it was left; None where there is none or the database can't be read."""
    with contextlib.suppress(LabError):
        return next(iter(studies.kept(store)), None)
    return None
