"""``load``: a load test, level by level. Ctrl-C keeps what was measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from engine.cli.common import (
    Answer,
    add_endpoint,
    add_verb,
    attach,
    closing,
    number,
    numbers,
    require_model,
    say,
    write_file,
)
from engine.config import LENGTH_SHAPES, LOAD_PROFILES, LOAD_PROMPTS, LoadTestConfig, ServerConfig, Settings
from engine.errors import ConfigError
from engine.load.export import to_csv, vllm_bench_lines
from engine.load.results import LoadSnapshot, LoadState
from engine.load.slo import SLO_FIELDS
from engine.services import LabServices, open_beside

OPTIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    "requests": (int, "requests in a level"),
    "trace_speed": (float, "how many times as fast as it was recorded"),
    "prompt_tokens": (int, "of a made-up prompt"),
    "max_tokens": (int, "of an answer"),
    "prompt_spread": (float, "half width (uniform) or standard deviation over the mean"),
    "output_spread": (float, "the same for answers"),
    "turns": (int, "of a chat"),
    "temperature": (float, "0 is greedy"),
    "seed": (int, "the same seed, the same lengths and arrivals"),
}


def register(verbs: Any) -> None:
    verb = add_verb(verbs, "load", _run, _text, "measure a server under load")
    verb.add_argument("--users", help="users at once, a level for each, like 1,5,10,20 (a ramp: lowest and highest)")
    verb.add_argument("--rate", help="requests per second, a level for each, like 2,4 (a ramp: lowest and highest)")
    verb.add_argument("--profile", choices=LOAD_PROFILES, help="closed, or poisson where a rate is given")
    verb.add_argument("--duration", type=float, help="seconds in which a level takes new requests")
    verb.add_argument("--trace", help="a CSV file to replay: arrival_s,input_tokens,output_tokens")
    verb.add_argument("--prompts", choices=LOAD_PROMPTS, help="synthetic unless a file is given")
    verb.add_argument("--prompt-file", help="prompts as JSONL, CSV or in the ShareGPT format")
    for name in ("prompt_shape", "output_shape"):
        verb.add_argument(f"--{name.replace('_', '-')}", choices=LENGTH_SHAPES)
    for name, (kind, words) in OPTIONS.items():
        verb.add_argument(f"--{name.replace('_', '-')}", type=kind, help=words)
    verb.add_argument("--same-prompt", action="store_true", help="one prompt for all: what the prefix cache does")
    verb.add_argument("--no-nonce", action="store_true", help="repeat prompts as they are")
    verb.add_argument("--no-force-length", action="store_true", help="let the model end its answers")
    verb.add_argument("--no-warm-up", action="store_true")
    verb.add_argument("--timeout", type=float, help="seconds that one request may take")
    verb.add_argument("--slo", help="limits in ms that a good request meets, like ttft=500,tpot=100,e2e=5000")
    verb.add_argument("--save-csv", metavar="FILE", help="also write a table, one line a level")
    verb.add_argument(
        "--save-vllm-bench", metavar="FILE", help="also write what vllm bench serve would save, an object a line"
    )
    verb.add_argument("--model", help="what to serve where no server runs yet")
    add_endpoint(verb)


def _run(arguments: argparse.Namespace, settings: Settings) -> Answer:
    config = config_of(arguments)
    services, _ = open_beside(settings)
    with closing(services):
        if arguments.base_url:
            attach(services, arguments)
        require_model(services, arguments.model)
        ended = _measure(services, config, ServerConfig(model=arguments.model) if arguments.model else None)
        problem = _save_files(arguments, services, config, ended)
    answer = without_samples(ended.results.to_dict()) | {"state": ended.state.value, "run_id": ended.run_id}
    if ended.error:
        problem = {"error": ended.error, "remedy": ended.remedy}
    if problem and not arguments.json and ended.levels:
        print(_text(answer))
    return answer | problem, ended.state == LoadState.DONE and not problem


def without_samples(results: dict[str, Any]) -> dict[str, Any]:
    """Single requests are in the saved run; here they would hide the rest."""
    levels = [{name: value for name, value in level.items() if name != "samples"} for level in results["levels"]]
    return results | {"levels": levels}


def config_of(arguments: argparse.Namespace) -> LoadTestConfig:
    """Raises ConfigError."""
    names = {field.name for field in fields(LoadTestConfig)} - {"users", "rates"}
    changes: dict[str, Any] = {name: value for name in names if (value := getattr(arguments, name, None)) is not None}
    changes |= {"nonce": not arguments.no_nonce, "warm_up": not arguments.no_warm_up}
    changes["force_length"] = not arguments.no_force_length
    if arguments.duration is not None:
        changes["duration_s"] = arguments.duration
    if arguments.timeout is not None:
        changes["timeout_s"] = arguments.timeout
    if arguments.prompt_file and not arguments.prompts:
        changes["prompts"] = "file"
    return replace(_base(arguments), **(changes | slo_limits(arguments.slo)))


def _base(arguments: argparse.Namespace) -> LoadTestConfig:
    """The profile and its levels."""
    if arguments.users and arguments.rate:
        raise ConfigError("Both users and a rate were given.", "Give one of them: a closed or an open loop.")
    rates = tuple(numbers(arguments.rate, float)) if arguments.rate else ()
    users = tuple(numbers(arguments.users, int)) if arguments.users else LoadTestConfig.users
    profile = arguments.profile or ("trace" if arguments.trace else "poisson" if rates else "closed")
    return LoadTestConfig(profile=profile, users=users, rates=rates, trace=arguments.trace or "")


def _measure(services: LabServices, config: LoadTestConfig, server: ServerConfig | None) -> LoadSnapshot:
    try:
        return services.load.run_blocking(config, server, progress=say)
    except KeyboardInterrupt:
        say("Cancelling: what was measured is kept.")
        services.load.cancel()
        services.load.wait()
        return services.load.snapshot()


def _save_files(
    arguments: argparse.Namespace, services: LabServices, config: LoadTestConfig, ended: LoadSnapshot
) -> dict[str, Any]:
    """What went wrong with the last one that did, as a part of the answer."""
    problem: dict[str, Any] = {}
    endpoint = services.supervisor.snapshot().endpoint
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    bench = vllm_bench_lines(ended.results, config, endpoint.model if endpoint else "", now)
    for path, text in ((arguments.save_csv, to_csv(ended.results)), (arguments.save_vllm_bench, bench)):
        if path:
            problem |= write_file(path, text)
    return problem


def slo_limits(text: str | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in (text or "").split(","):
        name, _, value = part.partition("=")
        if not part.strip():
            continue
        try:
            limit_ms = float(value)
        except ValueError:
            limit_ms = -1.0
        if name.strip() not in SLO_FIELDS.values() or limit_ms <= 0:
            raise ConfigError(f"{part!r} is no limit.", "Write it like ttft=500,tpot=100,e2e=5000, in ms.")
        found[f"slo_{name.strip()}_ms"] = limit_ms
    return found


def _text(answer: dict[str, Any]) -> str:
    head = f"{'level':16}{'ok':>6}{'failed':>8}{'tok/s':>10}{'req/s':>8}"
    head += f"{'TTFT p50':>12}{'p95':>12}{'TPOT p50':>12}{'E2E p95':>13}{'goodput':>9}"
    lines = [head, *(_line(level) for level in answer["levels"])]
    for level in answer["levels"]:
        lines += [f"{level['label']}: {badge['label']}. {badge['why']}" for badge in level["badges"]]
        lines += [f"{level['label']}: {one['count']} × {one['reason']}" for one in level["failures"]]
    return "\n".join([*lines, *answer["notes"]])


def _line(level: dict[str, Any]) -> str:
    share = level["goodput_pct"]
    return (
        f"{level['label']:16}{level['requests_ok']:>6}{level['failed']:>8}"
        f"{number(level['throughput_tok_s'], ''):>10}{number(level['throughput_req_s'], ''):>8}"
        f"{number(level['ttft_p50_ms'], 'ms'):>12}{number(level['ttft_p95_ms'], 'ms'):>12}"
        f"{number(level['tpot_p50_ms'], 'ms'):>12}{number(level['e2e_p95_ms'], 'ms'):>13}"
        f"{'—' if share is None else f'{share:.0f}%':>9}"
    )
