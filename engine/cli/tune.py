"""``tune``: which settings are best for a load. Ctrl-C keeps what was measured; ``--resume`` goes on."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import islice
from typing import Any

from engine.cli.common import Answer, add_verb, closing, number, say, write_file
from engine.cli.load import slo_limits
from engine.config import LoadTestConfig, ServerConfig, Settings
from engine.errors import ConfigError
from engine.services import LabServices, open_beside
from engine.tuning.grid import combinations
from engine.tuning.knobs import KNOBS, NAMES, Value, in_words
from engine.tuning.profiles import WORKSHOP, WORKSHOP_LOAD
from engine.tuning.study import (
    MOST_TRIALS,
    SHORT_LOAD,
    Sampler,
    StudyConfig,
    StudyKind,
    StudyState,
    TrialState,
    TuneSnapshot,
)

# What a search varies where nothing is named: they decide who waits and who shares a step, and need no reloading of
# other weights.
SEARCHED: dict[str, tuple[Value, ...]] = {
    "max_num_seqs": (4, 8, 16, 32, 64),
    "max_num_batched_tokens": (128, 512, 2048),
    "enable_prefix_caching": (True, False),
}
SWITCH = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}
TYPES = {one.name: str(one.type) for one in fields(ServerConfig)}


def register(verbs: Any) -> None:
    verb = add_verb(verbs, "tune", _run, _text, "try configurations under a load and recommend one")
    for knob in KNOBS:
        verb.add_argument(f"--{knob.name.replace('_', '-')}", metavar="A,B", help=knob.trades)
    verb.add_argument("--search", type=int, metavar="N", help="try N of the combinations, chosen by Optuna")
    verb.add_argument("--sampler", choices=[str(one) for one in Sampler], default="tpe", help="of a search")
    verb.add_argument("--workshop", action="store_true", help="try the workshop's configurations")
    verb.add_argument("--resume", action="store_true", help="go on with the study that was interrupted")
    verb.add_argument("--plan", action="store_true", help="only say what each restart would do, and how long it takes")
    verb.add_argument("--slo", help="limits in ms that p95 is to meet, like ttft=500,tpot=100,e2e=5000")
    verb.add_argument("--users", type=int, help=f"users at once; {SHORT_LOAD.users[0]} unless said")
    verb.add_argument("--rate", type=float, help="requests per second, instead of users")
    verb.add_argument("--duration", type=float, help="seconds of load for each configuration; 10 unless said")
    verb.add_argument("--requests", type=int, help="requests for each configuration, instead of a duration")
    for name in ("prompt_tokens", "max_tokens", "seed"):
        verb.add_argument(f"--{name.replace('_', '-')}", type=int)
    verb.add_argument("--model", help="what to serve")
    verb.add_argument("--save-yaml", metavar="FILE", help="the recommended configuration, for vllm serve --config")


def _run(arguments: argparse.Namespace, settings: Settings) -> Answer:
    config = None if arguments.resume else config_of(arguments)
    services, _ = open_beside(settings)
    with closing(services):
        if arguments.plan:
            return _plan(services, config or _study_to_resume(services)), True
        say(services.tuning.estimate(config or _study_to_resume(services)).words)
        ended = _tried(services, config)
    answer = answer_of(ended)
    worked = ended.state == StudyState.DONE and any(trial.done for trial in ended.trials)
    problem = _what_is_wrong(ended) if ended.error or not worked else {}
    if arguments.save_yaml and ended.recommendation:
        unwritten = write_file(arguments.save_yaml, ended.recommendation.yaml)
        problem = problem or unwritten
    if problem and not arguments.json:
        print(_text(answer))
    return answer | problem, not problem


def config_of(arguments: argparse.Namespace) -> StudyConfig:
    """Raises ConfigError."""
    base = ServerConfig(model=arguments.model) if arguments.model else ServerConfig()
    space = {name: values_of(name, text) for name in NAMES if (text := getattr(arguments, name)) is not None}
    workload = _workload(arguments)
    if arguments.workshop:
        if space or arguments.search:
            raise ConfigError("The workshop's configurations are fixed.", "Leave the values to try out.")
        candidates, labels = zip(*((one.changes, one.name) for one in WORKSHOP), strict=True)
        return StudyConfig(StudyKind.SET, base, workload, candidates, labels, seed=arguments.seed or 0)
    if arguments.search is not None:
        return StudyConfig(
            StudyKind.SEARCH,
            base,
            workload,
            space=space or SEARCHED,
            budget=arguments.search,
            sampler=Sampler(arguments.sampler),
            seed=arguments.seed or 0,
        )
    return StudyConfig(StudyKind.GRID, base, workload, space=space, seed=arguments.seed or 0)


def values_of(name: str, text: str) -> tuple[Value, ...]:
    """The values of a setting in one word, like 8,32 or on,off; auto leaves it open. Raises ConfigError."""
    kind = TYPES[name].removesuffix(" | None")
    may_be_open = TYPES[name] != kind
    return tuple(_value(name, word.strip(), kind, may_be_open) for word in text.split(","))


def _value(name: str, word: str, kind: str, may_be_open: bool) -> Value:
    if word == "auto" and may_be_open:
        return None
    readers: dict[str, Callable[[str], Value]] = {
        "int": int,
        "float": float,
        "bool": lambda given: SWITCH[given.lower()],
        "str": str,
    }
    try:
        return readers[kind](word)
    except (ValueError, KeyError):
        wanted = {"int": "whole numbers", "float": "numbers", "bool": "on or off"}[kind]
        flag = f"--{name.replace('_', '-')}"
        raise ConfigError(f"{word!r} is no value of {flag}.", f"Use {wanted}, with commas between.") from None


def _workload(arguments: argparse.Namespace) -> LoadTestConfig:
    base = WORKSHOP_LOAD if arguments.workshop else SHORT_LOAD
    if arguments.users is not None and arguments.rate is not None:
        raise ConfigError("Both users and a rate were given.", "Give one of them: a closed or an open loop.")
    changes: dict[str, Any] = dict(slo_limits(arguments.slo))
    for name in ("prompt_tokens", "max_tokens", "seed"):
        if (value := getattr(arguments, name)) is not None:
            changes[name] = value
    if arguments.users is not None:
        changes["users"] = (arguments.users,)
    if arguments.rate is not None:
        changes |= {"profile": "poisson", "rates": (arguments.rate,), "users": ()}
    if arguments.requests is not None:
        changes |= {"requests": arguments.requests, "duration_s": None}
    if arguments.duration is not None:
        changes["duration_s"] = arguments.duration
    return replace(base, **changes)


def _study_to_resume(services: LabServices) -> StudyConfig:
    now = services.tuning.snapshot()
    if now.study is None or not now.resumable:
        raise ConfigError("No study is paused.", "Start one.")
    return now.study.config


def _tried(services: LabServices, config: StudyConfig | None) -> TuneSnapshot:
    try:
        return services.tuning.run_blocking(config, progress=say)
    except KeyboardInterrupt:
        say("Stopping: what was measured is kept.")
        services.tuning.interrupt()
        return services.tuning.snapshot()


def _plan(services: LabServices, config: StudyConfig) -> dict[str, Any]:
    """What each restart would do; of a search, the first ones of the space."""
    changes = config.candidates or islice(combinations(config.space), MOST_TRIALS)
    predicted = [{"changes": dict(one)} | services.tuning.predict(config.base, one).to_dict() for one in changes]
    expected = services.tuning.estimate(config)
    return {"plan": predicted, "estimate": vars(expected) | {"words": expected.words}}


def answer_of(ended: TuneSnapshot) -> dict[str, Any]:
    """A study as one document."""
    study = ended.study
    return {
        "study": study.id if study else None,
        "state": ended.state.value,
        "elapsed_s": ended.elapsed_s,
        "trials": [trial.to_dict() for trial in ended.trials],
        "pareto": list(ended.pareto),
        "importance": dict(ended.importance),
        "recommendation": ended.recommendation.to_dict() if ended.recommendation else None,
    }


def _what_is_wrong(ended: TuneSnapshot) -> dict[str, str]:
    if ended.error:
        return {"error": ended.error, "remedy": ended.remedy}
    if ended.state == StudyState.PAUSED:
        return {"error": "Interrupted.", "remedy": "Go on with --resume."}
    failed = next((trial for trial in ended.trials if trial.error), None)
    return {"error": failed.error if failed else "Nothing was measured.", "remedy": failed.remedy if failed else ""}


def _text(answer: dict[str, Any]) -> str:
    if "plan" in answer:
        return "\n".join([*map(_plan_line, answer["plan"]), answer["estimate"]["words"]])
    lines = [_line(trial, trial["number"] in answer["pareto"]) for trial in answer["trials"]]
    if shares := answer["importance"]:
        lines.append("What matters: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
    if found := answer["recommendation"]:
        lines += [found["words"], found["command"]]
    return "\n".join(lines)


def _plan_line(predicted: dict[str, Any]) -> str:
    settings = in_words(predicted["changes"])
    if not predicted["starts"]:
        return f"{settings}: refused. {predicted['refusals'][0]['cause']}"
    tokens, fit = predicted["tokens"], predicted["max_concurrency"]
    return f"{settings}: {number(tokens, 'tokens of KV cache')}, {number(fit, 'requests of full length')} at once"


def _line(trial: dict[str, Any], on_front: bool) -> str:
    name = trial["label"] or in_words(trial["changes"])
    level = trial["level"]
    if trial["state"] != TrialState.DONE or level is None:
        return f"  {name}: {trial['state']}. {trial['error']}".rstrip()
    return (
        f"{'*' if on_front else ' '} {name}: {number(level['throughput_tok_s'], 'tok/s')}, "
        f"TTFT p95 {number(level['ttft_p95_ms'], 'ms')}, TPOT p50 {number(level['tpot_p50_ms'], 'ms')}"
    )
