"""What viewers of a study see: written by the thread that tries, made into a frozen snapshot when asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.config import ServerConfig
from engine.load.board import LoadBoard
from engine.tuning.explain import Difference, difference
from engine.tuning.recommend import pareto, recommend
from engine.tuning.search import importance
from engine.tuning.study import Recommendation, Study, StudyKind, StudyState, Trial, TrialState, TuneSnapshot

Complete = Callable[[Recommendation], Recommendation]


class StudyBoard:
    """``study`` None: there was none yet. ``expected_s`` is how long the whole should take."""

    def __init__(
        self, study: Study | None = None, expected_s: float | None = None, previous: ServerConfig | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._load: LoadBoard | None = None
        self._trial_s: list[float] = []
        self._trial_began_s: float | None = None
        self._snapshot = TuneSnapshot(previous=previous)
        if study is not None:
            words = f"{len(study.finished)} of {_count(study)} tried" if study.state == StudyState.PAUSED else ""
            self._snapshot = replace(
                self._snapshot, state=study.state, study=study, estimate_s=expected_s, message=words, **_found(study)
            )

    def snapshot(self) -> TuneSnapshot:
        with self._lock:
            current, load = self._snapshot, self._load
            if not current.running or current.study is None:
                return current
            now_s = time.monotonic()
            return replace(
                current,
                elapsed_s=now_s - self._began_s,
                left_s=self._left_s(current.study, current.estimate_s, now_s),
                progress=len(current.study.finished) / max(1, _count(current.study)),
                load=load.snapshot() if load else None,
            )

    @property
    def study(self) -> Study:
        """The one that this board is for."""
        with self._lock:
            assert self._snapshot.study is not None
            return self._snapshot.study

    def publish(self, **changes: Any) -> None:
        with self._lock:
            self._snapshot = replace(self._snapshot, **changes)

    def watch(self, load: LoadBoard | None) -> None:
        """The load test of the trial that is measured."""
        with self._lock:
            self._load = load

    def begin(self, number: int) -> None:
        with self._lock:
            self._trial_began_s = time.monotonic()
            self._snapshot = replace(self._snapshot, trial=number)

    def add(self, trial: Trial) -> None:
        self._change_trials(lambda trials: (*trials, trial))

    def replace(self, trial: Trial) -> Study:
        """Put a trial in place of the one with its number; returns the study as it is then."""
        return self._change_trials(lambda trials: tuple(trial if one.number == trial.number else one for one in trials))

    def sum_up(self, complete: Complete) -> None:
        """After a trial: what the study says so far."""
        with self._lock:
            study = self._snapshot.study
            assert study is not None
            self._time_trial(study)
        found = _found(study)
        if found.get("recommendation") is not None:
            found["recommendation"] = complete(found["recommendation"])
        self.publish(**found)

    def finish(self, study: Study, error: str, remedy: str, complete: Complete) -> None:
        with self._lock:
            elapsed_s = time.monotonic() - self._began_s
            self._snapshot = replace(
                self._snapshot,
                state=study.state,
                study=study,
                trial=None,
                elapsed_s=elapsed_s,
                left_s=None,
                pausing=False,
                progress=len(study.finished) / max(1, _count(study)),
                message="",
                error=error or None,
                remedy=remedy,
            )
        self.sum_up(complete)

    def _time_trial(self, study: Study) -> None:
        number, began_s, self._trial_began_s = self._snapshot.trial, self._trial_began_s, None
        # What is refused takes no time, and says nothing of the others.
        if began_s is not None and number is not None and study.trials[number].state != TrialState.REFUSED:
            self._trial_s.append(time.monotonic() - began_s)

    def _change_trials(self, change: Callable[[tuple[Trial, ...]], tuple[Trial, ...]]) -> Study:
        with self._lock:
            study = self._snapshot.study
            assert study is not None
            study = replace(study, trials=change(study.trials))
            self._snapshot = replace(self._snapshot, study=study)
            return study

    def _left_s(self, study: Study, expected_s: float | None, now_s: float) -> float | None:
        """From the trials of this run where there are some, else from what was expected."""
        left = _count(study) - len(study.finished)
        passed_s = now_s - self._trial_began_s if self._trial_began_s is not None else 0.0
        if self._trial_s:
            return max(0.0, sum(self._trial_s) / len(self._trial_s) * left - passed_s)
        return None if expected_s is None else max(0.0, expected_s - (now_s - self._began_s))


def _count(study: Study) -> int:
    """How many trials it will have."""
    return max(study.config.trials, len(study.trials)) if study.config.kind == StudyKind.SEARCH else len(study.trials)


def _found(study: Study) -> dict[str, Any]:
    """What the trials say together, as fields of a snapshot."""
    if study.config.kind == StudyKind.APPLY:
        return {"difference": _difference(study)}
    return {
        "pareto": pareto(study.measured),
        "importance": importance(study.config, study.measured) if study.config.space else {},
        "recommendation": recommend(study),
    }


def _difference(study: Study) -> Difference | None:
    levels = [trial.level for trial in study.measured if trial.level is not None]
    return difference(levels[0], levels[1]) if len(levels) == 2 else None
