"""The tuning service: one study at a time, on its own thread. It outlives the app: what is left is in the database."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from engine.compare_server import MeasuredServer
from engine.config import Endpoint, LoadTestConfig, ServerConfig, Settings
from engine.environment import collect, detect_hardware
from engine.errors import AlreadyRunning, ConfigError, DataFolderInUse, LabError, RequestError
from engine.kv.shape import ModelShape
from engine.load.board import LoadBoard
from engine.load.measure import Cancelled, measure
from engine.load.results import LoadResults
from engine.models import find_ready
from engine.server.supervisor import Supervisor
from engine.store import RunStore, new_run
from engine.telemetry.host import CoreWatch
from engine.tuning import studies
from engine.tuning.board import StudyBoard
from engine.tuning.estimate import Estimate, estimate
from engine.tuning.grid import combinations
from engine.tuning.knobs import Knob, in_words, knobs
from engine.tuning.prediction import Known, Prediction, known_now, launch_of, predict
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

KIND = "tune"
POLL_S = 0.2
RESERVED = "Configurations are being tried."
AS_IT_WAS = "as it was"
LAB_FAULT = "This is a fault of the lab itself."


class Measure(Protocol):
    """How a trial is measured: ``engine.load.measure.measure``; tests put their own in."""

    def __call__(
        self,
        endpoint: Endpoint,
        config: LoadTestConfig,
        board: LoadBoard | None = ...,
        cancelled: Callable[[], bool] = ...,
        watch_cores: Callable[[], CoreWatch | None] = ...,
    ) -> LoadResults: ...


class _Paused(Exception):
    pass


class TuningRunner:
    """Start, pause, resume, cancel, watch; any thread may call any method.

    ``owner``: whether the server is ours to restart. A study that an earlier process left is found as paused.
    """

    def __init__(
        self,
        settings: Settings,
        supervisor: Supervisor,
        store: RunStore,
        is_busy: Callable[[], bool] = lambda: False,
        *,
        owner: bool = True,
        measure: Measure = measure,
    ) -> None:
        self._settings, self._supervisor, self._store = settings, supervisor, store
        self._is_busy, self._owner, self._load = is_busy, owner, measure
        self._server = MeasuredServer(settings, supervisor, self._say, self._check)
        self._way_back = MeasuredServer(settings, supervisor, self._say, self._check_closing)
        self._lock = threading.Lock()
        left_over = _left_over(store) if owner else None
        self._interrupted = left_over is not None and left_over.state == StudyState.RUNNING
        self._board = StudyBoard(studies.interrupted(left_over) if left_over else None)
        self._cancel, self._pause, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._measured: tuple[int, LoadTestConfig, Trial] | None = None

    # -- what viewers read

    def snapshot(self) -> TuneSnapshot:
        return self._board.snapshot()

    def require_idle(self) -> None:
        """Raises AlreadyRunning while configurations are tried."""
        if self._board.snapshot().running:
            raise AlreadyRunning(RESERVED, "Wait until it is over, or pause or cancel it.")

    def knobs(self, config: ServerConfig) -> tuple[Knob, ...]:
        """Every knob with its values for this model on this machine."""
        source = find_ready(config.model, self._settings)
        shape = None
        if source is not None:
            with contextlib.suppress(LabError):
                shape = ModelShape.from_config_file(source.path / "config.json")
        return knobs(detect_hardware(self._settings), shape)

    def predict(self, base: ServerConfig, changes: Mapping[str, Any]) -> Prediction:
        """What a restart with these settings changed will do."""
        return predict(base, changes, self._known(str(changes.get("model") or base.model)))

    def estimate(self, config: StudyConfig) -> Estimate:
        """How long a study will take, from starts and trials that were measured before on this machine."""
        now = self._supervisor.snapshot()
        running = now.config if now.ready and not now.attached else None
        return estimate(config, self._store, collect(self._settings), running)

    # -- what people ask for

    def start(self, config: StudyConfig, *, restore: bool = True) -> None:
        """Begin and return; raises AlreadyRunning, DataFolderInUse or StoreError.

        ``restore``: after a grid, a set or a search the server goes back to the base.
        """
        study = studies.new_study(config, self._first_trials(config))
        self._begin(study, restore)

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
        with self._lock:
            current = self._board.snapshot()
            if current.study is not None and current.resumable:
                self._close_study(current.study, StudyState.CANCELLED)
            self._pause.clear()
            self._cancel.set()

    def go_back(self) -> None:
        """Restart with the configuration before the last apply. Raises ConfigError when there is none."""
        self.require_idle()
        previous = self._board.snapshot().previous
        if previous is None:
            raise ConfigError("There is no earlier configuration to go back to.", "Choose one.")
        now = self._supervisor.snapshot().config
        self._supervisor.restart(previous)
        self._board.publish(previous=now, went_back="")

    def close(self) -> None:
        """End the work and wait. A study that runs is left as it is: a later process goes on with it."""
        self._closing.set()
        self._cancel.set()
        self.wait()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until nothing is tried any more."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def run_blocking(
        self, config: StudyConfig | None, progress: Callable[[str], None], *, restore: bool = False
    ) -> TuneSnapshot:
        """For the command line: start (None: resume), tell ``progress`` each new message, return how it ended."""
        if config is None:
            self.resume(restore=restore)
        else:
            self.start(config, restore=restore)
        thread, last = self._thread, ""
        assert thread is not None
        while thread.is_alive():
            thread.join(POLL_S)
            if (message := self.snapshot().message) != last:
                progress(message)
                last = message
        return self.snapshot()

    # -- the study

    def _begin(self, study: Study, restore: bool) -> None:
        with self._lock:
            self.require_idle()
            if not self._owner:
                raise DataFolderInUse(
                    "Another vLLM Lab owns the server, and tuning restarts it.",
                    "Tune there, or set LAB_DATA_DIR to another folder.",
                )
            now = self._supervisor.snapshot()
            if now.attached:
                raise AlreadyRunning("The lab is attached to another server, which it can't restart.", "Detach first.")
            if now.reserved:
                raise AlreadyRunning(now.reserved, "Wait until it is over, or cancel it.")
            expected = self.estimate(study.config).total_s
            before, self._board = self._board, StudyBoard(study, expected, previous=self._board.snapshot().previous)
            self._board.publish(state=StudyState.RUNNING)
            try:
                if (
                    self._is_busy()
                ):  # asked when the board says "running" already, as the others ask the other way round
                    raise AlreadyRunning("A chat answer is being written.", "Wait for it, or stop it.")
                studies.keep(self._store, study)
            except LabError:
                self._board = before
                raise
            self._cancel.clear()
            self._pause.clear()
            self._thread = threading.Thread(target=self._run, args=(restore,), name="tuning", daemon=True)
            self._thread.start()

    def _first_trials(self, config: StudyConfig) -> tuple[Trial, ...]:
        if config.kind == StudyKind.SEARCH:
            return ()
        if config.kind == StudyKind.GRID:
            return tuple(Trial(number, changes) for number, changes in enumerate(combinations(config.space)))
        labels = (*config.labels, *("" for _ in config.candidates))
        trials = [Trial(0, changes, label) for changes, label in zip(config.candidates, labels, strict=False)]
        if config.kind == StudyKind.APPLY and config.measure and self._runs(config.base):
            trials.insert(0, Trial(0, {}, AS_IT_WAS))
        return tuple(replace(trial, number=number) for number, trial in enumerate(trials))

    def _run(self, restore: bool) -> None:
        state, error, remedy = StudyState.DONE, "", ""
        begun = any(trial.attempts for trial in self._study.trials)
        good = self._running_config() or (self._study.config.base if begun else None)
        try:
            with self._supervisor.reserved(RESERVED):
                try:
                    self._try_all()
                except _Paused:
                    state = StudyState.PAUSED
                except Cancelled:
                    state = StudyState.PAUSED if self._pause.is_set() else StudyState.CANCELLED
                self._leave(good, restore)
        except Cancelled:  # the lab closes
            state = StudyState.CANCELLED
        except LabError as problem:
            state, error, remedy = StudyState.FAILED, problem.cause, problem.remedy
        except Exception as problem:  # a fault of ours must not leave the page at "running" for ever
            state, error, remedy = StudyState.FAILED, f"{type(problem).__name__}: {problem}", LAB_FAULT
        if self._closing.is_set():
            return  # it stands in the database as running: a later process finds it
        self._close_study(self._study, state, error, remedy)

    def _close_study(self, study: Study, state: StudyState, error: str = "", remedy: str = "") -> None:
        if state != StudyState.PAUSED:
            called_off = [replace(trial, state=TrialState.CANCELLED) if trial.open else trial for trial in study.trials]
            study = replace(study, trials=tuple(called_off))
        study = replace(study, state=state, error=error, remedy=remedy)
        try:
            studies.keep(self._store, study)
        except LabError as problem:
            error, remedy = (error, remedy) if error else (problem.cause, problem.remedy)
        self._board.finish(study, error, remedy, self._with_command)

    def _try_all(self) -> None:
        while (trial := self._next()) is not None:
            self._check()
            if self._pause.is_set():
                raise _Paused
            self._try(trial)

    def _next(self) -> Trial | None:
        study = self._study
        waiting = next((trial for trial in study.trials if trial.open), None)
        if waiting is not None or study.config.kind != StudyKind.SEARCH:
            return waiting
        if sum(trial.state != TrialState.REFUSED for trial in study.trials) >= study.config.budget:
            return None
        self._say("Choosing what to try next")
        changes = next_changes(study.config, study.trials)
        if changes is None:
            return None
        trial = Trial(len(study.trials), changes)
        self._board.add(trial)
        return trial

    # -- one trial

    def _try(self, trial: Trial) -> None:
        self._board.begin(trial.number)
        trial = self._change(trial, attempts=trial.attempts + 1, state=TrialState.RESTARTING, error="", remedy="")
        try:
            trial = self._tried(trial)
        except LabError as problem:
            now = self._study.trials[trial.number]
            self._change(now, state=TrialState.FAILED, error=problem.cause, remedy=problem.remedy)
        except Cancelled:
            if not self._closing.is_set():
                later = TrialState.QUEUED if self._pause.is_set() else TrialState.CANCELLED
                self._change(self._study.trials[trial.number], state=later)
            raise
        self._board.sum_up(self._with_command)

    def _tried(self, trial: Trial) -> Trial:
        study = self._study
        prediction = self.predict(study.config.base, trial.changes)
        refusals = [(one.cause, one.remedy) for one in prediction.refusals]
        if study.config.measure and not refusals and (unfit := _unfit(prediction, study.config.workload)):
            refusals.append(unfit)
        if refusals:
            cause, remedy = refusals[0]
            return self._change(trial, state=TrialState.REFUSED, prediction=prediction, error=cause, remedy=remedy)
        trial = self._change(trial, prediction=prediction)
        config = study.config.server(trial.changes)
        restart_s = None
        if not self._runs(config):
            restart_s = self._restart(config, trial)
        capacity = self._supervisor.snapshot().capacity
        trial = self._change(trial, actual=capacity, restart_s=restart_s)
        if not study.config.measure:
            return self._change(trial, state=TrialState.DONE)
        return self._measure_trial(trial)

    def _restart(self, config: ServerConfig, trial: Trial) -> float:
        self._say(f"Restarting: {trial.name}")
        began_s = time.monotonic()
        self._server.restart(config)
        return time.monotonic() - began_s

    def _measure_trial(self, trial: Trial) -> Trial:
        study, current = self._study, self._supervisor.snapshot()
        workload = study.config.workload
        if self._measured is not None and self._measured[:2] == (current.generation, workload):
            earlier = self._measured[2]  # the same server under the same load, a moment ago
            return self._change(
                trial, state=TrialState.DONE, level=earlier.level, run_id=earlier.run_id, measure_s=earlier.measure_s
            )
        trial = self._change(trial, state=TrialState.MEASURING)
        self._say(f"Measuring: {trial.name}")
        board, began_s = LoadBoard(workload), time.monotonic()
        self._board.watch(board)
        try:
            results = self._load(self._supervisor.endpoint(), workload, board, self._cancel.is_set, self._watch_cores)
        except RequestError as failure:
            raise self._server.cause_of(failure) from failure
        finally:
            self._board.watch(None)
        level = results.levels[-1]
        trial = replace(trial, level=level, measure_s=time.monotonic() - began_s, state=TrialState.DONE)
        if not level.requests_ok:
            reason = level.failures[0][0] if level.failures else "No request was answered in time."
            trial = replace(trial, state=TrialState.FAILED, error=reason, remedy="Look at the server's log.")
        trial = replace(trial, run_id=self._save(trial, results))
        self._replace(trial)
        if trial.done:
            self._measured = (current.generation, workload, trial)
        return trial

    def _watch_cores(self) -> CoreWatch:
        return CoreWatch(detect_hardware(self._settings), self._supervisor.snapshot().pid)

    def _save(self, trial: Trial, results: LoadResults) -> str:
        study, now = self._study, self._supervisor.snapshot()
        run = new_run(
            KIND,
            title_of(trial),
            trial.state.value,
            duration_s=(trial.restart_s or 0.0) + (trial.measure_s or 0.0),
            config={
                "study": study.id,
                "trial": trial.number,
                "changes": dict(trial.changes),
                "server": study.config.server(trial.changes).to_dict(),
                "workload": study.config.workload.to_dict(),
            },
            environment=collect(self._settings).to_dict(),
            model=now.source.to_dict() if now.source else {},
            command=now.command,
            results=results.to_dict() | {"trial": trial.to_dict()},
        )
        self._store.add(run)
        return run.id

    # -- afterwards

    def _leave(self, good: ServerConfig | None, restore: bool) -> None:
        """The server that people find: the new one after an apply that worked, else the one that ran before."""
        study = self._study
        if study.config.kind == StudyKind.APPLY:
            self._leave_applied(study, good)
        elif restore and not self._closing.is_set() and not self._runs(study.config.base):
            self._supervisor.restart(study.config.base)

    def _leave_applied(self, study: Study, good: ServerConfig | None) -> None:
        new = study.config.server(study.config.candidates[0])
        if self._runs(new):
            if good is not None and good != new:
                self._board.publish(previous=good)
            return
        if good is None or self._runs(good) or self._closing.is_set():
            return
        wanted = in_words(study.config.candidates[0])
        self._say("Going back to the last good configuration")
        self._way_back.restart(good)
        failed = not self._cancel.is_set()
        why = f"The server did not start with {wanted}" if failed else "It was cancelled"
        self._board.publish(went_back=f"{why}: the last good configuration runs again.")

    def _with_command(self, found: Recommendation) -> Recommendation:
        """How to start the recommended configuration elsewhere."""
        with contextlib.suppress(LabError):
            launch = launch_of(found.config, self._known(found.config.model))
            if launch is not None:
                return replace(found, command=launch.shell_line(), yaml=serve_yaml(launch))
        return found

    # -- small things

    def _known(self, model: str) -> Known:
        source, hardware = find_ready(model, self._settings), detect_hardware(self._settings)
        return known_now(hardware, source, self._store, self._supervisor.snapshot())

    @property
    def _study(self) -> Study:
        study = self._board.snapshot().study
        assert study is not None
        return study

    def _running_config(self) -> ServerConfig | None:
        now = self._supervisor.snapshot()
        return now.config if now.ready and not now.attached else None

    def _runs(self, config: ServerConfig) -> bool:
        return self._running_config() == config

    def _change(self, trial: Trial, **changes: Any) -> Trial:
        changed = replace(trial, **changes)
        self._replace(changed)
        return changed

    def _replace(self, trial: Trial) -> None:
        studies.keep(self._store, self._board.replace(trial))

    def _say(self, message: str) -> None:
        self._board.publish(message=message)

    def _check(self) -> None:
        if self._cancel.is_set():
            raise Cancelled

    def _check_closing(self) -> None:
        if self._closing.is_set():
            raise Cancelled


def title_of(trial: Trial) -> str:
    """Such as "max_num_seqs 8: 210 tok/s"."""
    level = trial.level
    speed = level.throughput_tok_s if level else None
    return trial.name if speed is None else f"{trial.name}: {speed:,.0f} tok/s"


def _unfit(prediction: Prediction, workload: LoadTestConfig) -> tuple[str, str] | None:
    """Why no request of this load could be answered; None where they can, or where that is not known before."""
    length = prediction.max_model_len
    if length is None or workload.prompts != "synthetic" or workload.profile == "trace":
        return None
    tokens = workload.prompt_tokens + workload.max_tokens
    if tokens <= length:
        return None
    return (
        f"A request of this load has {tokens:,} tokens, and max_model_len is {length:,}.",
        "Make prompt or answer shorter, or max_model_len longer.",
    )


def _left_over(store: RunStore) -> Study | None:
    """The newest study, as it was left; None where there is none or the database can't be read."""
    with contextlib.suppress(LabError):
        return next(iter(studies.kept(store)), None)
    return None
