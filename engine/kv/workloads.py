"""The requests of a simulation: sampled, read from a trace, or typed by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

from engine.config import SimulationConfig
from engine.kv import lengths
from engine.kv.traces import read_trace, read_typed


@dataclass(frozen=True, slots=True)
class Request:
    """``arrival`` is a step; ``prompt`` and ``output`` are tokens, at least 1 each.

    Requests of the same ``prefix`` begin with the same ``prefix_tokens`` tokens. ``samples`` answers are written at
    once, each of ``output`` tokens.
    """

    index: int
    arrival: int
    prompt: int
    output: int
    prefix: int = 0
    prefix_tokens: int = 0
    samples: int = 1
    name: str = ""


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival, without those that no server would take.

    ``closed``: all wait from the start. ``shortened`` answers would have passed max_model_len and end there, as in
    vLLM. ``too_long`` prompts leave no room for an answer: vLLM refuses them.
    """

    requests: tuple[Request, ...]
    closed: bool
    shortened: int
    too_long: int


def make_workload(config: SimulationConfig) -> Workload:
    """The same config, the same requests. Raises ConfigError for a trace or typed text that can't be used."""
    if config.workload == "trace":
        step_s = config.step_s
        rows = read_trace(config.trace, timed=step_s is not None)
        arrivals = [int((row.arrival or 0.0) / step_s) if step_s else 0 for row in rows]
        return _workload(config, arrivals, [(row.prompt, row.output) for row in rows], closed=step_s is None)
    if config.workload == "typed":
        rows = read_typed(config.typed)
        arrivals = [int(row.arrival or 0) for row in rows]
        return _workload(config, arrivals, [(row.prompt, row.output) for row in rows], closed=not any(arrivals))
    pairs = _sampler(config)
    arrivals = [step for step, _ in zip(_arrivals(config), range(config.requests), strict=False)]
    closed = config.arrivals_per_100_steps is None
    return _workload(config, arrivals, [next(pairs) for _ in arrivals], closed)


def workload_notes(config: SimulationConfig, workload: Workload) -> list[str]:
    """In plain words, what became of requests that max_model_len is too short for."""
    notes = []
    limit = f"max_model_len ({config.max_model_len:,})"
    if workload.too_long:
        count = f"{workload.too_long:,} (rejected, as in vLLM)"
        notes.append(f"Prompts that leave no room for an answer within {limit}: {count}.")
    if workload.shortened:
        notes.append(f"Answers that end at {limit}, as in vLLM: {workload.shortened:,}.")
    return notes


def _sampler(config: SimulationConfig) -> Iterator[tuple[int, int]]:
    rng = random.Random(f"lengths {config.seed}")
    match config.workload:
        case "sharegpt":
            return lengths.sharegpt(rng)
        case "alpaca":
            return lengths.alpaca(rng)
        case "shared_prefix":
            return lengths.with_prefix(rng, config.prefix_tokens)
        case "parallel":
            return lengths.for_samples(rng)
        case _:
            return lengths.lab(rng, config.long_share)


def _arrivals(config: SimulationConfig) -> Iterator[int]:
    """Steps: all at once, or a Poisson process."""
    if config.arrivals_per_100_steps is None:
        yield from repeat(0)
        return
    rng = random.Random(f"arrivals {config.seed}")
    time = 0.0
    while True:
        time += rng.expovariate(config.arrivals_per_100_steps / 100)
        yield int(time)


def _workload(config: SimulationConfig, arrivals: list[int], pairs: list[tuple[int, int]], closed: bool) -> Workload:
    rng = random.Random(f"prefixes {config.seed}")
    requests: list[Request] = []
    shortened = too_long = 0
    for arrival, (prompt, output) in zip(arrivals, pairs, strict=True):
        prefix = rng.randrange(config.prefix_groups)
        room = config.max_model_len - prompt
        if room < 1:
            too_long += 1
            continue
        shortened += output > room
        requests.append(_request(config, len(requests), arrival, prompt, min(output, room), prefix))
    return Workload(tuple(requests), closed, shortened, too_long)


def _request(config: SimulationConfig, index: int, arrival: int, prompt: int, output: int, prefix: int) -> Request:
    shares = config.workload == "shared_prefix"
    return Request(
        index,
        arrival,
        prompt,
        output,
        prefix=prefix if shares else 0,
        prefix_tokens=config.prefix_tokens if shares else 0,
        samples=config.samples,
        name=_name(config, prompt, prefix),
    )


def _name(config: SimulationConfig, prompt: int, prefix: int) -> str:
    """A short word for the picture, where requests differ in kind."""
    if config.workload == "lab":
        return "long" if prompt >= lengths.LONG_PROMPT[0] else "short"
    if config.workload == "shared_prefix" and config.prefix_groups > 1:
        return f"prompt {'ABCDEFGHIJKLMNOPQRSTUVWXYZ'[prefix % 26]}"
    return ""
