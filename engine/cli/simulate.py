"""``simulate``: a KV cache under several allocators.

Without a preset, a trace gets a max_model_len and a memory that suit its lengths, unless they are given.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from engine.cli.common import Answer, add_verb
from engine.config import ALLOCATORS, WORKLOADS, Settings, SimulationConfig
from engine.errors import ConfigError
from engine.kv.presets import PRESETS, preset
from engine.kv.simulate import simulate
from engine.kv.traces import fitting, read_trace

NUMBERS: dict[str, tuple[type[int] | type[float], str]] = {
    "block_size": (int, "tokens in a block (page) of the paged allocators"),
    "max_model_len": (int, "most tokens of prompt and answer together"),
    "memory_tokens": (int, "slots for tokens"),
    "requests": (int, "how many are sampled"),
    "max_num_seqs": (int, "most sequences at once"),
    "watermark": (float, "share of blocks an admission leaves free"),
    "arrivals_per_100_steps": (float, "Poisson arrivals; left out: all requests wait from the start"),
    "step_s": (float, "seconds per step: a trace keeps its arrival times; left out: all wait from the start"),
    "buddy_unit": (int, "smallest piece (tokens) of the contiguous allocators"),
    "long_share": (float, "share of long prompts in the workload lab"),
    "prefix_tokens": (int, "tokens of the shared system prompt in the workload shared_prefix"),
    "prefix_groups": (int, "how many system prompts there are"),
    "samples": (int, "answers to each prompt"),
    "seed": (int, "the same seed gives the same requests"),
}


def register(verbs: Any) -> None:
    verb = add_verb(verbs, "simulate", _run, _text, "simulate a KV cache: contiguous against paged")
    verb.add_argument("--preset", choices=sorted(PRESETS), help="lab unless other requests are given")
    verb.add_argument("--workload", choices=WORKLOADS)
    verb.add_argument("--allocators", help=f"some of {','.join(ALLOCATORS)}")
    verb.add_argument("--trace", help="requests from a CSV file: arrival_s,input_tokens,output_tokens")
    verb.add_argument("--typed", help="requests by hand: prompt and output tokens, like '32 50; 200 20'")
    for name, (kind, words) in NUMBERS.items():
        verb.add_argument(f"--{name.replace('_', '-')}", type=kind, help=words)


def _run(arguments: argparse.Namespace, settings: Settings) -> Answer:
    return simulate(config_of(arguments)).to_dict(), True


def config_of(arguments: argparse.Namespace) -> SimulationConfig:
    changes = {name: value for name in NUMBERS if (value := getattr(arguments, name)) is not None}
    if arguments.allocators is not None:
        changes["allocators"] = tuple(word.strip() for word in arguments.allocators.split(","))
    changes |= _requests_of(arguments)
    if arguments.preset is None and "workload" in changes:
        return replace(_own_defaults(changes), **changes)
    return preset(arguments.preset or "lab", **changes)


def _requests_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Where the requests come from; raises ConfigError where a file or a list that was given would not be used."""
    given = {name: getattr(arguments, name) for name in ("trace", "typed") if getattr(arguments, name) is not None}
    workloads = {*given, *([arguments.workload] if arguments.workload is not None else [])}
    if len(workloads) > 1:
        raise ConfigError(
            f"Requests from {' and '.join(sorted(workloads))} at once can't be simulated.",
            "Give one of --trace, --typed and --workload.",
        )
    return given | ({"workload": workloads.pop()} if workloads else {})


def _own_defaults(changes: dict[str, Any]) -> SimulationConfig:
    if changes["workload"] != "trace":
        return SimulationConfig()
    max_model_len, memory_tokens = fitting(read_trace(changes.get("trace", ""), timed=False))
    return SimulationConfig(max_model_len=max_model_len, memory_tokens=memory_tokens)


def _text(answer: dict[str, Any]) -> str:
    head = f"{'allocator':20}{'tokens':>8}{'reserved':>10}{'internal':>10}{'external':>10}{'in use':>9}{'running':>9}"
    lines = [head, *(_line(name, values) for name, values in answer["allocators"].items())]
    return "\n".join([*lines, "", *answer["notes"]])


def _line(name: str, values: dict[str, Any]) -> str:
    shares = ("token_states_pct", "reserved_pct", "internal_fragmentation_pct", "external_fragmentation_pct")
    first, *rest = (_number(values[share], "%") for share in shares)
    used, running = _number(values["utilisation_pct"], "%"), _number(values["mean_running"], "")
    return f"{name:20}{first:>8}{rest[0]:>10}{rest[1]:>10}{rest[2]:>10}{used:>9}{running:>9}"


def _number(value: float | None, unit: str) -> str:
    return "—" if value is None else f"{value:.1f}{unit}"
