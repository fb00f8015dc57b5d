"""``serve``: one server, kept until it is ended."""

from __future__ import annotations

import argparse
import json
import threading
from dataclasses import fields, replace
from typing import Any

from engine.cli.common import Answer, add_verb, closing, number, say, take_signals, wait_ready
from engine.config import DTYPES, ServerConfig, Settings
from engine.environment import detect_hardware
from engine.errors import ConfigError
from engine.models import prepare
from engine.server.command import build_launch
from engine.services import LabServices, open_beside


def register(verbs: Any) -> None:
    verb = add_verb(verbs, "serve", _run, _text, "start a server and keep it until Ctrl-C")
    verb.add_argument("--print-command", action="store_true", help="only show the command")
    verb.add_argument("--model")
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_gib", "port"):
        verb.add_argument(f"--{name.replace('_', '-')}", type=int)
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        verb.add_argument(f"--{name.replace('_', '-')}", type=int)
    verb.add_argument("--distributed-executor-backend", choices=("mp", "ray"))
    verb.add_argument("--dtype", choices=DTYPES)
    verb.add_argument("--kv-cache-dtype")
    verb.add_argument("--attention-backend")
    verb.add_argument("--gpu-memory-utilization", type=float)
    verb.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction)
    verb.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    verb.add_argument("--enable-chunked-prefill", action=argparse.BooleanOptionalAction)


def _run(arguments: argparse.Namespace, settings: Settings) -> Answer:
    config = server_config(arguments)
    if arguments.print_command:
        return _printed_command(config, settings), True
    services, running = open_beside(settings)
    with closing(services):
        if running is not None:
            raise ConfigError(f"A server runs already at {running.base_url}.", "Stop it first: python -m engine stop.")
        services.supervisor.start(config)
        wait_ready(services)
        snapshot = services.supervisor.snapshot()
        endpoint = services.supervisor.endpoint()
        answer = {
            "base_url": endpoint.base_url,
            "api_key": endpoint.api_key,
            "model": endpoint.model,
            "ready_after_s": snapshot.ready_after_s,
            "command": snapshot.command,
        }
        print(json.dumps(answer) if arguments.json else _text(answer), flush=True)
        arguments.json, arguments.text = False, lambda _: ""  # the one document is out
        _wait_for_end(services)
        ended = services.supervisor.snapshot()
        services.supervisor.stop(wait=True)
    if ended.diagnosis is not None:
        return {"error": ended.diagnosis.cause, "remedy": ended.diagnosis.remedy}, False
    say("Stopped.")
    return {}, True


def _printed_command(config: ServerConfig, settings: Settings) -> dict[str, Any]:
    source = prepare(config.model, settings, progress=say)
    launch = build_launch(
        config,
        detect_hardware(settings),
        source,
        port=config.port or 8000,
        api_key="…",
        compiled=settings.compiled_dir,
    )
    variables = {name: "…" if name == "VLLM_API_KEY" else value for name, value in launch.env.items()}
    return {"argv": list(launch.argv), "env": variables, "command": launch.shell_line(), "model": source.to_dict()}


def server_config(arguments: argparse.Namespace) -> ServerConfig:
    given = {field.name: getattr(arguments, field.name, None) for field in fields(ServerConfig)}
    return replace(ServerConfig(), **{name: value for name, value in given.items() if value is not None})


def _wait_for_end(services: LabServices) -> None:
    """Until Ctrl-C, SIGTERM, or the end of the server."""
    asked = threading.Event()
    take_signals(lambda *_: asked.set())
    while services.supervisor.snapshot().ready and not asked.wait(0.5):
        pass


def _text(answer: dict[str, Any]) -> str:
    if "argv" in answer:
        return str(answer["command"])
    return (
        f"{answer['model']} is served at {answer['base_url']} (ready after {number(answer['ready_after_s'], 's')})\n"
        f"export OPENAI_BASE_URL={answer['base_url']} OPENAI_API_KEY={answer['api_key']}\nCtrl-C stops it."
    )
