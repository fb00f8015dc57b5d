"""How long a study will take, before it starts: from earlier starts and trials on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.config import LoadTestConfig, ServerConfig
from engine.environment import Environment, Hardware
from engine.errors import ConfigError, LabError
from engine.store import Run, RunStore
from engine.tuning.grid import combinations
from engine.tuning.prediction import start_history
from engine.tuning.study import StudyConfig, StudyKind

RUNS_LOOKED_AT = 50


@dataclass(frozen=True)
class Estimate:
    """``restart_s`` and ``measure_s`` are those of one trial; None where nothing tells. ``at_least``: the load's own
    duration stands for what was never measured, so that it will be somewhat more."""

    trials: int
    restart_s: float | None
    measure_s: float | None
    total_s: float | None
    at_least: bool = False

    @property
    def words(self) -> str:
        """Such as "10 trials, about 6 minutes"."""
        count = f"{self.trials} {'trial' if self.trials == 1 else 'trials'}"
        if self.total_s is None:
            return f"{count}; no restart was timed on this machine yet, so how long it takes is not known"
        minutes = self.total_s / 60
        time = f"{minutes:.0f} minutes" if minutes >= 1.5 else f"{max(5, round(self.total_s / 5) * 5)} s"
        return f"{count}, {'at least' if self.at_least else 'about'} {time}"


def estimate(config: StudyConfig, store: RunStore, environment: Environment, running: ServerConfig | None) -> Estimate:
    """From what is saved. ``running`` is a server that needs no restart for its own configuration."""
    runs = _comparable(store, config, environment.summary())
    timed = [timed_s for run in runs if (timed_s := _number(run, "measure_s")) is not None]
    measure_s: float | None = statistics.median(timed) if timed else config.workload.duration_s
    if not config.measure:
        measure_s = 0.0
    servers = list(_servers(config))
    timed_starts = {mode: _restart_s(one, store, environment.hardware) for mode, one in _modes(servers).items()}
    restarts = [timed_starts[_mode(server)] for server in servers if server != running]
    known = [seconds for seconds in restarts if seconds is not None]
    # A search tries some of them: each has the same chance.
    restarted = len(restarts) / len(servers) * config.trials if servers else 0.0
    restart_s = statistics.fmean(known) if known else (0.0 if not restarts else None)
    total_s = None
    if restart_s is not None and measure_s is not None:
        total_s = restarted * restart_s + config.trials * measure_s
        if config.kind == StudyKind.APPLY and config.measure and running == config.base:
            total_s += measure_s
    return Estimate(config.trials, restart_s, measure_s, total_s, at_least=not timed and config.measure)


def _servers(config: StudyConfig) -> Iterable[ServerConfig]:
    changes: Iterable[Mapping[str, Any]] = config.candidates
    if config.kind in (StudyKind.GRID, StudyKind.SEARCH):
        changes = (one for one, _ in zip(combinations(config.space), range(1000), strict=False))
    for one in changes:
        try:
            yield config.server(one)
        except ConfigError:  # refused: it takes no time
            continue


def _mode(server: ServerConfig) -> tuple[str, bool | None]:
    """What the time of a start depends on."""
    return server.model, server.enforce_eager


def _modes(servers: Iterable[ServerConfig]) -> dict[tuple[str, bool | None], ServerConfig]:
    """One server of each: history is in the database, and a space may have a thousand combinations."""
    return {_mode(server): server for server in servers}


def _restart_s(server: ServerConfig, store: RunStore, hardware: Hardware) -> float | None:
    phases = start_history(store, server, hardware)
    return sum(phases.values()) if phases else None


def _comparable(store: RunStore, config: StudyConfig, machine: str) -> list[Run]:
    """Trials of the same load, SLO aside, on the same machine."""
    try:
        runs = store.list("tune", limit=RUNS_LOOKED_AT)
    except LabError:  # an estimate is a comfort, not a condition
        return []
    wanted = _load_only(config.workload)
    found = []
    for run in runs:
        try:
            same = _load_only(LoadTestConfig.from_dict(run.config["workload"])) == wanted
        except (LabError, KeyError, TypeError, ValueError, AttributeError):  # damaged
            continue
        if same and run.environment.get("summary") == machine:
            found.append(run)
    return found


def _load_only(workload: LoadTestConfig) -> LoadTestConfig:
    return replace(workload, slo_ttft_ms=None, slo_tpot_ms=None, slo_e2e_ms=None)


def _number(run: Run, name: str) -> float | None:
    trial = run.results.get("trial")
    value = trial.get(name) if isinstance(trial, dict) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
