"""One trial: predict, restart, compare with what was predicted, measure, save."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from engine.compare_server import MeasuredServer
from engine.config import Endpoint, LoadTestConfig, ServerConfig, Settings
from engine.environment import collect, detect_hardware
from engine.errors import LabError, RequestError
from engine.load.board import LoadBoard
from engine.load.measure import Cancelled
from engine.load.results import LoadResults
from engine.models import find_ready
from engine.server.supervisor import Supervisor
from engine.store import RunStore, new_run
from engine.telemetry.host import CoreWatch
from engine.tuning import studies
from engine.tuning.board import StudyBoard
from engine.tuning.prediction import Known, Prediction, known_now, predict
from engine.tuning.study import Study, Trial, TrialState

KIND = "tune"
# A machine changes: heat, other programs. What is older is measured again.
MOST_AGE_S = 600.0
LOOK_AT_LOG = "Look at the server's log."


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


@dataclass(frozen=True)
class Measured:
    """A measurement: of which start of the server, under which load, when (``time.monotonic``)."""

    start: int
    workload: LoadTestConfig
    trial: Trial
    at_s: float


@dataclass
class Bench:
    """What trials work with. ``measured`` is the newest measurement."""

    settings: Settings
    supervisor: Supervisor
    store: RunStore
    load: Measure
    measured: Measured | None = None

    def known(self, model: str) -> Known:
        source, hardware = find_ready(model, self.settings), detect_hardware(self.settings)
        known = known_now(hardware, source, self.store, self.supervisor.snapshot())
        return replace(known, compiled=self.settings.compiled_dir)

    def running(self) -> ServerConfig | None:
        """The configuration of our own server, where it is ready."""
        now = self.supervisor.snapshot()
        return now.config if now.ready and not now.attached else None

    def measured_before(self, start: int, workload: LoadTestConfig) -> Measured | None:
        """The same server under the same load, so short ago that the machine is taken for the same."""
        last = self.measured
        if last is None or (last.start, last.workload) != (start, workload):
            return None
        return last if time.monotonic() - last.at_s <= MOST_AGE_S else None


class Trying:
    """Tries the configurations of one study, and keeps each step on the board and in the database.

    ``stopped``: it was called off. ``later`` says of a trial that was called off whether it is to be tried again.
    """

    def __init__(
        self, bench: Bench, board: StudyBoard, stopped: Callable[[], bool], later: Callable[[], TrialState]
    ) -> None:
        self._bench, self._board, self._stopped, self._later = bench, board, stopped, later
        self._server = MeasuredServer(bench.settings, bench.supervisor, self._say, self._check)
        self._name = ""

    def run(self, trial: Trial) -> None:
        """What becomes of it is on the board; raises Cancelled, StoreError or DiskFull."""
        self._board.begin(trial.number)
        self._name = trial.name
        trial = self._change(trial, attempts=trial.attempts + 1, state=TrialState.RESTARTING, error="", remedy="")
        try:
            self._try(trial)
        except LabError as problem:
            self._change(self._now(trial), state=TrialState.FAILED, error=problem.cause, remedy=problem.remedy)
        except Cancelled:
            self._change(self._now(trial), state=self._later())
            raise

    def _try(self, trial: Trial) -> None:
        config = self._study.config
        known = self._bench.known(str(trial.changes.get("model") or config.base.model))
        prediction = predict(config.base, trial.changes, known)
        trial = self._change(trial, prediction=prediction)
        refusals = [(one.cause, one.remedy) for one in prediction.refusals]
        if config.measure and not refusals:
            refusals = _unfit(prediction, config.workload)
        if refusals:
            cause, remedy = refusals[0]
            self._change(trial, state=TrialState.REFUSED, error=cause, remedy=remedy)
            return
        wanted = config.server(trial.changes)
        restart_s = None if self._bench.running() == wanted else self._restart(wanted)
        trial = self._change(trial, actual=self._bench.supervisor.snapshot().capacity, restart_s=restart_s)
        if config.measure:
            self._measure(trial)
        else:
            self._change(trial, state=TrialState.DONE)

    def _restart(self, config: ServerConfig) -> float:
        self._say("Restarting the server")
        began_s = time.monotonic()
        self._server.restart(config)
        return time.monotonic() - began_s

    def _measure(self, trial: Trial) -> None:
        workload = self._study.config.workload
        start = self._bench.supervisor.snapshot().generation
        if (same := self._bench.measured_before(start, workload)) is not None:
            self._change(
                trial,
                state=TrialState.DONE,
                level=same.trial.level,
                run_id=same.trial.run_id,
                measure_s=same.trial.measure_s,
                measured_ago_s=time.monotonic() - same.at_s,
            )
            return
        trial = self._change(trial, state=TrialState.MEASURING)
        self._say("Measuring")
        began_s = time.monotonic()
        results = self._loaded(workload)
        trial = replace(trial, level=results.levels[-1], measure_s=time.monotonic() - began_s)
        trial = replace(trial, **_judged(trial))
        trial = self._change(trial, run_id=self._save(trial, results))
        if trial.done:
            self._bench.measured = Measured(start, workload, trial, time.monotonic())

    def _loaded(self, workload: LoadTestConfig) -> LoadResults:
        supervisor, board = self._bench.supervisor, LoadBoard(workload)
        self._board.watch(board)
        try:
            return self._bench.load(supervisor.endpoint(), workload, board, self._stopped, self._watch_cores)
        except RequestError as failure:
            raise self._server.cause_of(failure) from failure
        finally:
            self._board.watch(None)

    def _watch_cores(self) -> CoreWatch:
        return CoreWatch(detect_hardware(self._bench.settings), self._bench.supervisor.snapshot().pid)

    def _save(self, trial: Trial, results: LoadResults) -> str:
        study, now = self._study, self._bench.supervisor.snapshot()
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
            environment=collect(self._bench.settings).to_dict() | {"engine": "vLLM"},
            model=now.source.to_dict() if now.source else {},
            command=now.command,
            results=results.to_dict() | {"trial": trial.to_dict()},
        )
        self._bench.store.add(run)
        return run.id

    @property
    def _study(self) -> Study:
        return self._board.study

    def _now(self, trial: Trial) -> Trial:
        return self._study.trials[trial.number]

    def _change(self, trial: Trial, **changes: Any) -> Trial:
        changed = replace(trial, **changes)
        studies.keep(self._bench.store, self._board.replace(changed))
        return changed

    def _say(self, message: str) -> None:
        self._board.publish(message=f"{self._name}: {message}")

    def _check(self) -> None:
        if self._stopped():
            raise Cancelled


def title_of(trial: Trial) -> str:
    """Such as "max_num_seqs 8: 210 tok/s"."""
    speed = trial.level.throughput_tok_s if trial.level else None
    return trial.name if speed is None else f"{trial.name}: {speed:,.0f} tok/s"


def _judged(trial: Trial) -> dict[str, Any]:
    level = trial.level
    assert level is not None
    if level.requests_ok:
        return {"state": TrialState.DONE}
    reason = level.failures[0][0] if level.failures else "No request was answered in the time that was given."
    return {"state": TrialState.FAILED, "error": reason, "remedy": LOOK_AT_LOG}


def _unfit(prediction: Prediction, workload: LoadTestConfig) -> list[tuple[str, str]]:
    """Why no request of this load could be answered; empty where they can, or where that is not known before."""
    length = prediction.max_model_len
    if length is None or workload.prompts != "synthetic" or workload.profile == "trace":
        return []
    tokens = workload.prompt_tokens + workload.max_tokens
    if tokens <= length:
        return []
    cause = f"A request of this load has {tokens:,} tokens, and max_model_len is {length:,}."
    return [(cause, "Make prompt or answer shorter, or max_model_len longer.")]
