"""Studies in the database: what a later process needs to go on with one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from engine.errors import LabError
from engine.store import RunStore
from engine.tuning.study import Study, StudyConfig, StudyState, Trial, TrialState

KIND = "study"
ATTEMPTS = 2
KEPT = 50
ENDED_TWICE = "The lab ended twice while this configuration was tried."


def new_study(config: StudyConfig, trials: tuple[Trial, ...]) -> Study:
    """A study that begins now; its id sorts by time."""
    now = datetime.now(UTC)
    name = f"{now:%Y%m%d-%H%M%S-%f}-{secrets.token_hex(2)}"
    return Study(name, now.isoformat(timespec="seconds"), StudyState.RUNNING, config, trials)


def keep(store: RunStore, study: Study) -> None:
    """Raises StoreError or DiskFull."""
    body = {
        "created_at": study.created_at,
        "state": str(study.state),
        "config": study.config.to_dict(),
        "trials": [trial.to_dict() for trial in study.trials],
        "error": study.error,
        "remedy": study.remedy,
    }
    store.put_document(KIND, study.id, body)


def forget_old(store: RunStore) -> None:
    """All but the newest; their trials stay among the runs. Raises StoreError."""
    for name in list(store.documents(KIND))[:-KEPT]:
        store.delete_document(KIND, name)


def kept(store: RunStore) -> tuple[Study, ...]:
    """Newest first, without those that are damaged. Raises StoreError."""
    studies = (_loaded(name, body) for name, body in reversed(store.documents(KIND).items()))
    return tuple(study for study in studies if study is not None)


def interrupted(study: Study) -> Study:
    """As a later process finds it: paused, and what was being tried is to be tried once more, but not for ever."""
    if study.state != StudyState.RUNNING:
        return study
    return replace(study, state=StudyState.PAUSED, trials=tuple(map(_again, study.trials)))


def _again(trial: Trial) -> Trial:
    if not trial.open or trial.state == TrialState.QUEUED:
        return trial
    if trial.attempts < ATTEMPTS:
        return replace(trial, state=TrialState.QUEUED)
    return replace(trial, state=TrialState.FAILED, error=ENDED_TWICE, remedy="Look at its log, or leave it out.")


def _loaded(name: str, body: Mapping[str, Any]) -> Study | None:
    try:
        return Study(
            id=name,
            created_at=str(body["created_at"]),
            state=StudyState(body["state"]),
            config=StudyConfig.from_dict(body["config"]),
            trials=tuple(Trial.from_dict(trial) for trial in body["trials"]),
            error=str(body["error"]),
            remedy=str(body["remedy"]),
        )
    except (LabError, KeyError, TypeError, ValueError, AttributeError):
        return None
