"""A study: which configurations are tried with which load, and what became of each. Frozen values.

An *apply* is a study too: what runs now is measured, then the changed configuration, and the difference is explained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from engine.config import LoadTestConfig, ServerConfig
from engine.errors import ConfigError
from engine.load.results import LevelResult, LoadSnapshot
from engine.load.slo import slo_of
from engine.metrics import Slo
from engine.server.state import KvCapacity
from engine.tuning.explain import Difference
from engine.tuning.knobs import NAMES, Value, in_words
from engine.tuning.prediction import Prediction, outcomes

MOST_TRIALS = 200
# Twenty users for ten seconds: enough requests for a median on two cores, short enough for a room.
SHORT_LOAD = LoadTestConfig(users=(20,), duration_s=10.0)


class StudyKind(StrEnum):
    """Compare with ``==``: a reloaded module makes a second class."""

    APPLY = "apply"
    GRID = "grid"
    SET = "set"
    SEARCH = "search"


class Sampler(StrEnum):
    """TPE looks for the most throughput within the SLO; NSGA-II for the front of latency against throughput."""

    TPE = "tpe"
    NSGA2 = "nsga2"


class StudyState(StrEnum):
    """PAUSED: it may be resumed, also by a later process. FAILED: the lab itself could not go on."""

    IDLE = "idle"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class TrialState(StrEnum):
    """REFUSED: known not to start, so it was not tried. FAILED: it did not start, or gave no measurement."""

    QUEUED = "queued"
    RESTARTING = "restarting"
    MEASURING = "measuring"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    CANCELLED = "cancelled"


OPEN = (TrialState.QUEUED, TrialState.RESTARTING, TrialState.MEASURING)


@dataclass(frozen=True)
class StudyConfig:
    """What to try: ``base`` with settings changed, each under the one level of ``workload``.

    ``candidates`` are changes one by one (apply: exactly one; set), ``space`` the values of each knob (grid, search).
    ``budget`` is the number of trials of a search, and how ``sampler`` chooses them follows from ``seed``.
    ``measure`` False: an apply that only restarts. The SLO is that of the workload, held against p95.
    """

    kind: StudyKind
    base: ServerConfig = field(default_factory=ServerConfig)
    workload: LoadTestConfig = SHORT_LOAD
    candidates: tuple[Mapping[str, Value], ...] = ()
    labels: tuple[str, ...] = ()
    space: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    budget: int = 10
    sampler: Sampler = Sampler.TPE
    measure: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        settings = {*self.space, *(name for one in self.candidates for name in one)}
        if unknown := sorted(settings - {*NAMES, "model", "seed", "distributed_executor_backend", "port"}):
            raise ConfigError(f"There is no setting {unknown[0]!r}.", f"Use some of {', '.join(NAMES)}.")
        if self.kind in (StudyKind.GRID, StudyKind.SEARCH):
            if not self.space or not all(self.space.values()):
                raise ConfigError("No values to try were given.", "Give one setting or more, each with its values.")
        elif not self.candidates or (self.kind == StudyKind.APPLY and len(self.candidates) > 1):
            raise ConfigError("No configuration to try was given.", "Choose what to change.")
        if not 1 <= self.budget <= MOST_TRIALS:
            raise ConfigError(f"A search of {self.budget} trials can't be.", f"Use 1 to {MOST_TRIALS}.")
        if self.trials > MOST_TRIALS:
            raise ConfigError(f"That are {self.trials:,} configurations.", f"Use at most {MOST_TRIALS}.")
        if max(len(self.workload.users), len(self.workload.rates)) > 1 or self.workload.profile == "ramp":
            raise ConfigError("A trial measures one level of load.", "Give one number of users, or one rate.")

    @property
    def trials(self) -> int:
        """How many configurations are tried."""
        if self.kind == StudyKind.SEARCH:
            return min(self.budget, self.combinations)
        return self.combinations if self.kind == StudyKind.GRID else len(self.candidates)

    @property
    def combinations(self) -> int:
        """Of all values of the space."""
        count = 1
        for values in self.space.values():
            count *= len(set(values))
        return count

    def server(self, changes: Mapping[str, Any]) -> ServerConfig:
        """The base with these settings changed; raises ConfigError for what can't be."""
        return replace(self.base, **changes)

    @property
    def slo(self) -> Slo:
        return slo_of(self.workload)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": str(self.kind),
            "base": self.base.to_dict(),
            "workload": self.workload.to_dict(),
            "candidates": [dict(one) for one in self.candidates],
            "labels": list(self.labels),
            "space": {name: list(values) for name, values in self.space.items()},
            "budget": self.budget,
            "sampler": str(self.sampler),
            "measure": self.measure,
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from ``to_dict``, also after JSON. Raises ConfigError, KeyError, TypeError or ValueError."""
        return cls(
            kind=StudyKind(values["kind"]),
            base=ServerConfig.from_dict(values["base"]),
            workload=LoadTestConfig.from_dict(values["workload"]),
            candidates=tuple(dict(one) for one in values["candidates"]),
            labels=tuple(values["labels"]),
            space={name: tuple(some) for name, some in values["space"].items()},
            budget=values["budget"],
            sampler=Sampler(values["sampler"]),
            measure=values["measure"],
            seed=values["seed"],
        )


@dataclass(frozen=True)
class Trial:
    """One configuration and what became of it.

    ``changes`` are against the study's base. ``restart_s`` is from the order to restart until ready, None where the
    server ran so already; ``measure_s`` that of the load with its warm-up. ``attempts`` counts begun tries: one that
    the lab did not survive is tried once more. ``run_id`` is the saved run. ``measured_ago_s`` is the age of a level
    that an earlier study measured on the same start, None where it was measured for this trial.
    """

    number: int
    changes: Mapping[str, Value]
    label: str = ""
    state: TrialState = TrialState.QUEUED
    prediction: Prediction | None = None
    actual: KvCapacity | None = None
    level: LevelResult | None = None
    restart_s: float | None = None
    measure_s: float | None = None
    measured_ago_s: float | None = None
    attempts: int = 0
    error: str = ""
    remedy: str = ""
    run_id: str | None = None

    @property
    def open(self) -> bool:
        return self.state in OPEN

    @property
    def done(self) -> bool:
        return self.state == TrialState.DONE

    @property
    def name(self) -> str:
        return self.label or in_words(self.changes)

    def to_dict(self) -> dict[str, Any]:
        """Flat where it can be; ``predicted`` and ``actual`` side by side, ``level`` without its samples."""
        level = replace(self.level, samples=(), conventions={}).to_dict() if self.level else None
        actual = self.actual
        predicted = self.prediction
        return {
            "number": self.number,
            "changes": dict(self.changes),
            "label": self.label,
            "state": str(self.state),
            "predicted": predicted.to_dict() if predicted else None,
            "actual": vars(actual).copy() if actual else None,
            "outcomes": [
                {"name": one.name, "predicted": one.predicted, "actual": one.actual, "off_pct": one.off_pct}
                for one in (outcomes(predicted, actual) if predicted and actual else ())
            ],
            "level": level,
            "restart_s": self.restart_s,
            "measure_s": self.measure_s,
            "measured_ago_s": self.measured_ago_s,
            "attempts": self.attempts,
            "error": self.error,
            "remedy": self.remedy,
            "run_id": self.run_id,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from ``to_dict``, also after JSON; raises KeyError, TypeError or ValueError."""
        plain = ("number", "changes", "label", "restart_s", "measure_s", "attempts", "error", "remedy", "run_id")
        predicted, actual, level = values["predicted"], values["actual"], values["level"]
        return cls(
            **{name: values[name] for name in plain},
            measured_ago_s=values.get("measured_ago_s"),
            state=TrialState(values["state"]),
            prediction=Prediction.from_dict(predicted) if predicted else None,
            actual=KvCapacity(**actual) if actual else None,
            level=LevelResult.from_dict(level) if level else None,
        )


@dataclass(frozen=True)
class Study:
    """A study as it is kept: ``created_at`` is ISO time, UTC."""

    id: str
    created_at: str
    state: StudyState
    config: StudyConfig
    trials: tuple[Trial, ...] = ()
    error: str = ""
    remedy: str = ""

    @property
    def finished(self) -> tuple[Trial, ...]:
        """Trials that are over, whatever became of them."""
        return tuple(trial for trial in self.trials if not trial.open)

    @property
    def measured(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.done and trial.level is not None)


@dataclass(frozen=True)
class Recommendation:
    """What to choose, and why. ``meets_slo`` False: nothing measured met it, this comes closest.

    ``command`` is the line to type, ``yaml`` a file for ``vllm serve --config``; both empty where the model is gone.
    """

    trial: int
    words: str
    meets_slo: bool
    config: ServerConfig
    command: str = ""
    yaml: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "trial": self.trial,
            "words": self.words,
            "meets_slo": self.meets_slo,
            "config": self.config.to_dict(),
            "command": self.command,
            "yaml": self.yaml,
        }


@dataclass(frozen=True)
class TuneSnapshot:
    """The tuning service at one moment.

    ``study`` is the one that runs, is paused, or was the last. ``trial`` is the number of the trial that is worked on.
    ``estimate_s`` is how long the whole was expected to take, ``left_s`` what is left of it (None: not known).
    ``pausing``: it pauses when this trial is over. ``previous`` is the configuration to go back to with one click.
    ``went_back`` says in words that the last good configuration was restored, empty when it was not.
    ``difference`` explains an apply, ``pareto`` are numbers of trials that none beats in both throughput and latency,
    ``importance`` shares of each knob (they add up to 1). ``load`` is the load test that a trial is measured with now.
    """

    state: StudyState = StudyState.IDLE
    study: Study | None = None
    message: str = ""
    trial: int | None = None
    progress: float = 0.0
    elapsed_s: float | None = None
    estimate_s: float | None = None
    left_s: float | None = None
    pausing: bool = False
    previous: ServerConfig | None = None
    went_back: str = ""
    difference: Difference | None = None
    pareto: tuple[int, ...] = ()
    importance: Mapping[str, float] = field(default_factory=dict)
    recommendation: Recommendation | None = None
    load: LoadSnapshot | None = None
    error: str | None = None
    remedy: str = ""

    @property
    def running(self) -> bool:
        return self.state == StudyState.RUNNING

    @property
    def resumable(self) -> bool:
        return self.state == StudyState.PAUSED

    @property
    def trials(self) -> tuple[Trial, ...]:
        return self.study.trials if self.study else ()
