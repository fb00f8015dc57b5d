"""The grid, the search and what matters most, on measurements with a known best."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import LoadTestConfig, ServerConfig
from engine.errors import ConfigError
from engine.tuning.grid import combinations
from engine.tuning.search import importance, next_changes
from engine.tuning.study import Sampler, StudyConfig, StudyKind, Trial, TrialState
from tests.tuned import level, trial

SPACE: dict[str, tuple[Any, ...]] = {
    "max_num_seqs": (1, 2, 4, 8, 16, 32, 64, 128),
    "block_size": (None, 32, 64, 128),
    "enable_prefix_caching": (True, False),
}
LOAD = LoadTestConfig(users=(20,))


def config(**more: Any) -> StudyConfig:
    return StudyConfig(**({"kind": StudyKind.SEARCH, "workload": LOAD, "space": SPACE, "budget": 20} | more))


def measured(changes: dict[str, Any]) -> tuple[float, float]:
    """Most throughput at 16 sequences, with prefix caching; the block size means nothing."""
    seqs = changes["max_num_seqs"]
    speed = min(seqs, 16) * 10 - max(0, seqs - 16) + (5 if changes.get("enable_prefix_caching") else 0)
    return speed, 2000 / seqs


def searched(study: StudyConfig, trials: list[Trial] | None = None) -> list[Trial]:
    found = list(trials or [])
    while len(found) < study.trials and (changes := next_changes(study, found)) is not None:
        found.append(trial(len(found), changes, level(*measured(changes))))
    return found


def test_a_grid_has_every_combination_once() -> None:
    found = list(combinations({"a": (1, 2, 1), "b": (True, False)}))
    assert found == [{"a": 1, "b": True}, {"a": 1, "b": False}, {"a": 2, "b": True}, {"a": 2, "b": False}]


@pytest.mark.parametrize("sampler", Sampler)
def test_a_search_begins_with_what_runs_and_tries_nothing_twice(sampler: Sampler) -> None:
    found = searched(config(sampler=sampler))
    assert len(found) == 20
    base = ServerConfig()
    assert found[0].changes == {"max_num_seqs": base.max_num_seqs, "block_size": None, "enable_prefix_caching": True}
    assert len({str(one.changes) for one in found}) == 20


@pytest.mark.parametrize("sampler", Sampler)
def test_a_search_that_was_interrupted_goes_on_as_if_it_had_not_been(sampler: Sampler) -> None:
    study = config(sampler=sampler)
    whole = searched(study)
    assert [one.changes for one in searched(study, whole[:9])] == [one.changes for one in whole]


def test_another_seed_searches_elsewhere() -> None:
    one, other = searched(config(seed=1)), searched(config(seed=2))
    assert [trial.changes for trial in one] != [trial.changes for trial in other]


def test_tpe_looks_more_often_near_the_best_than_chance_would() -> None:
    found = searched(config(budget=24))
    late = [one.changes["max_num_seqs"] for one in found[12:]]
    near = sum(value in (8, 16, 32) for value in late)
    assert near > len(late) * 3 / 8


def test_a_space_is_searched_to_its_end_and_no_further() -> None:
    small = config(space={"max_num_seqs": (1, 2, 4)}, budget=10)
    found = searched(small)
    assert small.trials == 3
    assert sorted(one.changes["max_num_seqs"] for one in found) == [1, 2, 4]
    assert next_changes(small, found) is None


def test_trials_that_failed_are_not_tried_again() -> None:
    small = config(space={"max_num_seqs": (1, 2, 4)})
    failed = [
        trial(0, {"max_num_seqs": 1}, state=TrialState.FAILED),
        trial(1, {"max_num_seqs": 2}, state=TrialState.REFUSED),
    ]
    assert next_changes(small, failed) == {"max_num_seqs": 4}


def test_what_matters_is_found_and_adds_up_to_one() -> None:
    study = config()
    trials = [trial(n, one, level(*measured(one))) for n, one in enumerate(combinations(SPACE))]
    shares = importance(study, trials)
    assert max(shares, key=lambda name: shares[name]) == "max_num_seqs"
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["max_num_seqs"] > 0.8 and shares["block_size"] < 0.05


def test_what_matters_is_not_said_of_too_few_trials_or_of_what_did_not_vary() -> None:
    study = config(space={"max_num_seqs": (1, 2, 4, 8), "block_size": (32, 64)})
    few = [trial(n, {"max_num_seqs": seqs, "block_size": 32}, level(seqs)) for n, seqs in enumerate((1, 2, 4))]
    assert importance(study, few) == {}
    more = [*few, trial(3, {"max_num_seqs": 8, "block_size": 32}, level(8))]
    assert importance(study, more) == {"max_num_seqs": 1.0}
    assert importance(study, []) == {}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"space": {}}, "No values"),
        ({"space": {"max_num_seqs": ()}}, "No values"),
        ({"space": {"colour": (1,)}}, "no setting 'colour'"),
        ({"budget": 0}, "0 trials"),
        ({"budget": 500}, "500 trials"),
        ({"workload": LoadTestConfig(users=(1, 5))}, "one level"),
        ({"workload": LoadTestConfig(profile="ramp", users=(1, 5))}, "one level"),
        ({"kind": StudyKind.GRID, "space": {"max_num_seqs": tuple(range(1, 400))}}, "399 configurations"),
        ({"kind": StudyKind.APPLY, "space": {}}, "No configuration"),
        ({"kind": StudyKind.APPLY, "candidates": ({}, {})}, "No configuration"),
    ],
)
def test_a_study_that_can_not_be_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        config(**wrong)
    assert caught.value.remedy


def test_a_study_survives_json() -> None:
    study = config(sampler=Sampler.NSGA2, workload=LoadTestConfig(users=(5,), slo_ttft_ms=300.0), seed=4)
    assert StudyConfig.from_dict(study.to_dict()) == study
