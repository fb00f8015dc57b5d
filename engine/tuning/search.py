"""Which configuration to try next: Optuna, replayed from what was measured so far.

Nothing is kept between two questions, so a search goes on after a restart of the app as if nothing had happened: the
same trials and seed give the same next one. Optuna is imported when the first search begins: it takes most of a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.tuning.grid import combinations
from engine.tuning.knobs import Value
from engine.tuning.recommend import LIMITS
from engine.tuning.study import Sampler, StudyConfig, Trial

if TYPE_CHECKING:
    import optuna

# Of the budget, what is spent on looking around before the sampler has an opinion (Optuna's own numbers are for more).
FIRST_SHARE = 3
FEWEST_FIRST = 3
# A small space is soon known: what was tried already is asked for again and again.
ASKED_AT_MOST = 30
BETTER_HALF = 0.5
FEWEST_FOR_IMPORTANCE = 4


def next_changes(config: StudyConfig, trials: Sequence[Trial]) -> dict[str, Value] | None:
    """What to try after these; None when every combination was tried. What runs now comes first, where it is in it."""
    tried = {_key(trial.changes) for trial in trials}
    if len(tried) >= config.combinations:
        return None
    if not trials and (own := _own(config)) is not None:
        return own
    study = _replayed(config, trials)
    for _ in range(ASKED_AT_MOST):
        asked = study.ask(_distributions(config.space))
        changes = _changes(config.space, asked.params)
        if _key(changes) not in tried:
            return changes
    return next(one for one in combinations(config.space) if _key(one) not in tried)


def importance(config: StudyConfig, trials: Sequence[Trial]) -> dict[str, float]:
    """Share of each setting in what sets the better half of the trials (by throughput) apart: PED-ANOVA.

    The shares add up to 1. Empty with fewer than four trials, or where none of the settings makes a difference.
    """
    measured = [trial for trial in trials if _values(config, trial)]
    space = {name: tuple({trial.changes.get(name): None for trial in measured}) for name in config.space}
    varied = {name: values for name, values in space.items() if len(values) > 1}
    if len(measured) < FEWEST_FOR_IMPORTANCE or not varied:
        return {}
    if len(varied) == 1:
        return {next(iter(varied)): 1.0}
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    for trial in measured:
        placed = _params(config.space, trial.changes)
        speed = trial.level.throughput_tok_s if trial.level else None
        study.add_trial(optuna.create_trial(params=placed, distributions=_distributions(config.space), value=speed))
    evaluator = PedAnovaImportanceEvaluator(target_quantile=BETTER_HALF)
    shares = get_param_importances(study, evaluator=evaluator, params=list(varied))
    return dict(shares) if all(map(math.isfinite, shares.values())) and sum(shares.values()) > 0 else {}


def _replayed(config: StudyConfig, trials: Sequence[Trial]) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    both = config.sampler == Sampler.NSGA2
    study = optuna.create_study(directions=["maximize", "minimize"] if both else ["maximize"], sampler=_sampler(config))
    for trial in trials:
        study.enqueue_trial(_params(config.space, trial.changes))
        asked = study.ask(_distributions(config.space))
        if values := _values(config, trial):
            for name, over in _constraints(config, trial).items():
                asked.set_constraint(name, over)
            study.tell(asked, values)
        else:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
    return study


def _sampler(config: StudyConfig) -> optuna.samplers.BaseSampler:
    import optuna

    first = max(FEWEST_FIRST, config.budget // FIRST_SHARE)
    if config.sampler == Sampler.NSGA2:
        return optuna.samplers.NSGAIISampler(population_size=max(first, 2), seed=config.seed)
    return optuna.samplers.TPESampler(n_startup_trials=first, multivariate=True, seed=config.seed)


def _values(config: StudyConfig, trial: Trial) -> list[float] | None:
    """The objectives, None where they were not measured: tok/s, and for NSGA-II the TTFT at p95 in ms too."""
    level = trial.level
    if level is None or level.throughput_tok_s is None:
        return None
    if config.sampler == Sampler.TPE:
        return [level.throughput_tok_s]
    return [level.throughput_tok_s, level.ttft_ms.p95] if level.ttft_ms else None


def _constraints(config: StudyConfig, trial: Trial) -> dict[str, float]:
    """By how much each limit is missed; at most 0 is within it."""
    level, over = trial.level, {}
    assert level is not None
    for name, _ in LIMITS:
        limit, measured = getattr(config.slo, name), getattr(level, name)
        if limit is not None and measured is not None:
            over[name] = measured.p95 - limit
    return over | {"failed": float(level.requests_failed)}


def _distributions(space: Mapping[str, tuple[Value, ...]]) -> dict[str, optuna.distributions.BaseDistribution]:
    """Places in the values: numbers have an order, which lets a sampler look between and beside."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        name: IntDistribution(0, len(_ordered(values)) - 1)
        if _are_numbers(values)
        else CategoricalDistribution(tuple(range(len(_ordered(values)))))
        for name, values in space.items()
    }


def _ordered(values: tuple[Value, ...]) -> list[Value]:
    unique = list(dict.fromkeys(values))
    return sorted(unique, key=lambda value: value or 0) if _are_numbers(values) else unique


def _are_numbers(values: tuple[Value, ...]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _params(space: Mapping[str, tuple[Value, ...]], changes: Mapping[str, Value]) -> dict[str, int]:
    return {name: _ordered(values).index(changes[name]) for name, values in space.items()}


def _changes(space: Mapping[str, tuple[Value, ...]], params: Mapping[str, Any]) -> dict[str, Value]:
    return {name: _ordered(values)[params[name]] for name, values in space.items()}


def _own(config: StudyConfig) -> dict[str, Value] | None:
    """What the base has, where the space has it too."""
    base = config.base.to_dict()
    own = {name: base[name] for name in config.space}
    return own if all(own[name] in values for name, values in config.space.items()) else None


def _key(changes: Mapping[str, Value]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in changes.items()))
