"""The same load test without the lab's pages: with the lab's command line, and with vLLM's own benchmark."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import PurePath

import streamlit as st

from components.format import plain
from engine.config import DEFAULT_MODEL, LoadTestConfig
from engine.errors import LabError
from engine.load.profiles import Level, levels_of
from engine.load.slo import SLO_FIELDS, limits_of
from engine.server.state import ServerSnapshot

BENCH_NAMES = {"e2e": "e2el"}
FLAGS = {"nonce": "--no-nonce", "force_length": "--no-force-length", "warm_up": "--no-warm-up"}
RENAMED = {"duration_s": "duration", "timeout_s": "timeout"}
NOT_PLAIN = {"profile", "users", "rates", "same_prompt", *SLO_FIELDS, *FLAGS}
EVENLY = "1000"  # vLLM's name for evenly spaced arrivals is a high burstiness
BENCH_SHAPES = ("fixed", "uniform")


def command(config: LoadTestConfig, model: str = DEFAULT_MODEL, base_url: str | None = None) -> str:
    """``base_url`` is that of an attached server."""
    words = ["python", "-m", "engine", "load"]
    words += ["--base-url", base_url] if base_url else []
    words += ["--model", model] if model != DEFAULT_MODEL or base_url else []
    words += _profile(config)
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in NOT_PLAIN and value != field.default:
            name = RENAMED.get(field.name, field.name).replace("_", "-")
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    words += ["--same-prompt"] if config.same_prompt else []
    words += [flag for name, flag in FLAGS.items() if not getattr(config, name)]
    limits = [f"{name}={limit}" for name, limit in _limits(config).items()]
    return shlex.join(words + (["--slo", ",".join(limits)] if limits else []))


def _profile(config: LoadTestConfig) -> list[str]:
    if config.profile == "trace":
        return []  # the file says it
    if config.rates and config.profile in ("constant", "poisson", "ramp"):
        name = [] if config.profile == "poisson" else ["--profile", config.profile]
        return [*name, "--rate", ",".join(f"{rate:g}" for rate in config.rates)]
    name = [] if config.profile == "closed" else ["--profile", config.profile]
    return [*name, "--users", ",".join(map(str, config.users))]


def no_bench(config: LoadTestConfig, level: Level) -> str:
    """Why vLLM's benchmark can't send this level; empty where it can."""
    shapes = {(config.prompt_shape, config.prompt_spread), (config.output_shape, config.output_spread)}
    if config.profile == "trace":
        return "vLLM's benchmark replays traces of another format (timed_trace)."
    if config.prompts != "synthetic" and not _jsonl(config):
        return "vLLM's benchmark has no such prompts; it makes up tokens, or reads a JSONL file."
    if config.same_prompt:
        return "vLLM's benchmark makes up a prompt of its own for every request."
    if level.requests is None:
        return "vLLM's benchmark sends a number of requests; it has no time limit. Choose the requests in a level."
    if not all(shape in BENCH_SHAPES and spread < 1 for shape, spread in shapes):
        return "vLLM's benchmark makes up lengths that are fixed or uniform, no others."
    return ""


def bench_command(config: LoadTestConfig, level: Level, base_url: str, model: str, tokenizer: str | None) -> str:
    """vLLM's benchmark for one level, where it has something like it."""
    words = ["vllm", "bench", "serve", "--backend", "openai", "--base-url", base_url.removesuffix("/v1")]
    words += ["--model", model, *(["--tokenizer", tokenizer] if tokenizer else [])]
    words += [*_dataset(config), "--num-prompts", str(level.requests), *_pressure(config, level)]
    words += ["--ignore-eos"] if config.force_length else []
    words += ["--num-warmups", str(level.users or 8)] if config.warm_up else []
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99"]
    limits = [f"{BENCH_NAMES.get(name, name)}:{limit}" for name, limit in _limits(config).items()]
    return shlex.join(words + (["--goodput", *limits] if limits else []))


def _jsonl(config: LoadTestConfig) -> bool:
    return config.prompts == "file" and config.prompt_file.endswith(".jsonl")


def _dataset(config: LoadTestConfig) -> list[str]:
    if _jsonl(config):
        length = str(config.max_tokens)
        return ["--dataset-name", "custom", "--dataset-path", config.prompt_file, "--custom-output-len", length]
    words = ["--dataset-name", "random", "--random-input-len", str(config.prompt_tokens)]
    words += ["--random-output-len", str(config.max_tokens)]
    spreads = {"input": config.prompt_spread, "output": config.output_spread}
    return words + (["--random-range-ratio", json.dumps(spreads)] if any(spreads.values()) else [])


def _limits(config: LoadTestConfig) -> dict[str, str]:
    return {name: f"{limit:g}" for name, limit in limits_of(config).items()}


def _pressure(config: LoadTestConfig, level: Level) -> list[str]:
    if level.rate_req_s is not None:
        even = [] if config.profile == "poisson" else ["--burstiness", EVENLY]
        return ["--request-rate", f"{level.rate_req_s:g}", *even]
    return [] if config.profile == "burst" else ["--max-concurrency", str(level.users)]


def show_commands(config: LoadTestConfig, server: ServerSnapshot) -> None:
    """For the model that is served, by this lab or by the attached server."""
    model = server.endpoint.model if server.endpoint else server.config.model if server.config else DEFAULT_MODEL
    foreign = server.attached and not server.adopted
    base_url = server.endpoint.base_url if server.endpoint else "http://127.0.0.1:8000/v1"
    with st.expander("Show the command", icon=":material/terminal:"):
        st.code(command(config, model, base_url if foreign else None), language="bash", wrap_lines=True)
        st.caption(
            "Give the server's key as OPENAI_API_KEY."
            if foreign
            else "While this lab is open it measures the lab's server, else one of its own."
        )
        try:
            levels = levels_of(config)
        except LabError as error:
            st.caption(plain(error.cause))
            return
        _show_bench(config, levels, base_url, model, _tokenizer(server))


def _show_bench(
    config: LoadTestConfig, levels: Sequence[Level], base_url: str, model: str, tokenizer: str | None
) -> None:
    level = levels[-1]
    if reason := no_bench(config, level):
        st.caption(plain(reason))
        return
    st.caption(plain(f"The level “{level.label}” with vLLM's own benchmark (the key goes into OPENAI_API_KEY):"))
    st.code(bench_command(config, level, base_url, model, tokenizer), language="bash", wrap_lines=True)


def _tokenizer(server: ServerSnapshot) -> str | None:
    """The folder of the weights where the name of the model isn't one of the hub's cache."""
    path = getattr(server.source, "path", None)
    return str(PurePath(path)) if path else None
