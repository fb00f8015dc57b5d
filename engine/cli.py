"""The command line. With ``--json``: one JSON document on standard output, everything else on standard error.

Exit codes: 0 it worked, 1 it did not, 2 the command was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from engine.config import DTYPES, CompareConfig, ServerConfig, Settings
from engine.errors import ConfigError, LabError, ServerFailed
from engine.server.processes import start_ticks
from engine.services import LabServices, open_beside, owner_lock
from engine.store import to_json

Answer = tuple[dict[str, Any], bool]
OWNER_ENDS_S = 60.0
MOST_RUNS = 1_000_000


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        answer, worked = arguments.run(arguments, Settings.from_env())
    except LabError as error:
        answer, worked = {"error": error.cause, "remedy": error.remedy}, False
    except KeyboardInterrupt:
        answer, worked = {"error": "Interrupted.", "remedy": ""}, False
    except Exception as error:  # still one document for whoever reads it; the traceback is for us
        traceback.print_exc()
        answer, worked = {"error": f"{type(error).__name__}: {error}", "remedy": "This is a fault of the lab."}, False
    if arguments.json:
        print(to_json(answer))
    elif "error" in answer:
        _say(f"{answer['error']} {answer['remedy']}".strip())
    elif text := arguments.text(answer):
        print(text)
    return 0 if worked else 1


# -- verbs: (arguments, settings) → (the JSON document, whether it worked)


def _check(arguments: argparse.Namespace, settings: Settings) -> Answer:
    from engine.checks import run_checks

    report = run_checks(settings, generate=not arguments.no_generation, progress=_say)
    return report.to_dict(), report.ready


def _serve(arguments: argparse.Namespace, settings: Settings) -> Answer:
    config = _server_config(arguments)
    if arguments.print_command:
        return _printed_command(config, settings), True
    services, running = open_beside(settings)
    with _closing(services):
        if running is not None:
            raise ConfigError(f"A server runs already at {running.base_url}.", "Stop it first: python -m engine stop.")
        services.supervisor.start(config)
        _wait_ready(services)
        snapshot = services.supervisor.snapshot()
        endpoint = services.supervisor.endpoint()
        answer = {
            "base_url": endpoint.base_url,
            "api_key": endpoint.api_key,
            "model": endpoint.model,
            "ready_after_s": snapshot.ready_after_s,
            "command": snapshot.command,
        }
        print(json.dumps(answer) if arguments.json else _text_serve(answer), flush=True)
        arguments.json, arguments.text = False, lambda _: ""  # the one document is out
        _wait_for_end(services)
        ended = services.supervisor.snapshot()
        services.supervisor.stop(wait=True)
    if ended.diagnosis is not None:
        return {"error": ended.diagnosis.cause, "remedy": ended.diagnosis.remedy}, False
    _say("Stopped.")
    return {}, True


def _compare(arguments: argparse.Namespace, settings: Settings) -> Answer:
    config = CompareConfig(
        prompt=arguments.prompt,
        max_tokens=arguments.max_tokens,
        repeats=arguments.repeats,
        users=tuple(_numbers(arguments.users)),
        engines=tuple(word.strip() for word in arguments.engines.split(",")),
        static_batch=not arguments.no_static_batch,
        eager_against_graphs=arguments.eager,
    )
    services, _ = open_beside(settings)
    with _closing(services):
        if arguments.base_url:
            _attach(services, arguments)
        _require_model(services, arguments.model)
        server = ServerConfig(model=arguments.model) if arguments.model else None
        results = services.compare.run_blocking(config, server, progress=_say)
        return results.to_dict(), True


def _chat(arguments: argparse.Namespace, settings: Settings) -> Answer:
    from engine.chat import ChatOptions, TurnStatus

    options = ChatOptions(system=arguments.system, temperature=arguments.temperature, max_tokens=arguments.max_tokens)
    if not arguments.message.strip():
        raise ConfigError("The message is empty.", "Write something first.")
    services, _ = open_beside(settings)
    with _closing(services):
        if arguments.base_url:
            _attach(services, arguments)
        elif not services.supervisor.snapshot().ready:
            services.supervisor.start(ServerConfig(model=arguments.model or ServerConfig.model))
            _wait_ready(services)
        _require_model(services, arguments.model)
        session = services.chats.get("command-line")
        session.send(services.supervisor.endpoint(), arguments.message, options)
        session.wait(600.0)
        turn = session.snapshot().turns[-1]
        trace = turn.trace
        answer = {
            "text": turn.text,
            "status": str(turn.status),
            "ttft_ms": trace.ttft_ms if trace else None,
            "tpot_ms": trace.tpot_ms if trace else None,
            "e2e_ms": trace.e2e_ms if trace else None,
            "prompt_tokens": trace.prompt_tokens if trace else None,
            "output_tokens": trace.output_tokens if trace else None,
            "cached_tokens": trace.cached_tokens if trace else None,
        }
        if turn.status != TurnStatus.DONE:
            answer |= {"error": turn.error or "The answer was cut short.", "remedy": ""}
        return answer, turn.status == TurnStatus.DONE


def _runs(arguments: argparse.Namespace, settings: Settings) -> Answer:
    from engine.store import RunStore

    store = RunStore(settings.database)
    if arguments.run_id is None:
        return {"runs": [run.to_dict() for run in store.list(limit=min(arguments.limit, MOST_RUNS))]}, True
    run = store.get(arguments.run_id) if arguments.run_id.isascii() else None
    if run is None:
        raise ConfigError(f"There is no run {arguments.run_id}.", "List them: python -m engine runs.")
    return run.to_dict(), True


def _stop(arguments: argparse.Namespace, settings: Settings) -> Answer:
    from engine.server.record import end_leftover, read_record

    lock = owner_lock(settings)
    if lock.acquire():
        ended = end_leftover(settings.state_dir)
        lock.release()
        return {"found": bool(ended), "ended_processes": ended, "owner": None}, True
    noted = lock.holder() or {}
    holder, running = noted.get("pid"), read_record(settings.state_dir)
    if not isinstance(holder, int):
        raise ConfigError("A vLLM Lab is open on this data folder; which process it is isn't known.", "End it there.")
    if not arguments.owner:
        raise ConfigError(
            f"vLLM Lab (process {holder}) is open and owns {running.base_url if running else 'no server'}.",
            "That is no leftover. Stop it there, or end it from here: python -m engine stop --owner.",
        )
    _end_owner(holder, noted.get("ticks"))
    deadline = time.monotonic() + OWNER_ENDS_S
    while not lock.acquire():
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"vLLM Lab (process {holder}) did not end within {OWNER_ENDS_S:.0f} s.", "End it by hand."
            )
        time.sleep(0.1)
    ended = end_leftover(settings.state_dir)
    lock.release()
    return {"found": True, "ended_processes": ended, "owner": holder}, True


def _end_owner(pid: int, ticks: object) -> None:
    """SIGTERM, if the process is still the one that took the data folder: numbers are used again."""
    if start_ticks(pid) != ticks:
        raise ConfigError(f"Process {pid} isn't the vLLM Lab that owns the data folder.", "End that one by hand.")
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it ended by itself just now
    except PermissionError as error:
        raise ConfigError(f"Process {pid} belongs to another user.", "Ask them to end their lab.") from error


# -- helpers


def _printed_command(config: ServerConfig, settings: Settings) -> dict[str, Any]:
    from engine.environment import detect_hardware
    from engine.models import prepare
    from engine.server.command import build_launch

    source = prepare(config.model, settings, progress=_say)
    launch = build_launch(config, detect_hardware(settings), source, port=config.port or 8000, api_key="…")
    variables = {name: "…" if name == "VLLM_API_KEY" else value for name, value in launch.env.items()}
    return {"argv": list(launch.argv), "env": variables, "command": launch.shell_line(), "model": source.to_dict()}


def _attach(services: LabServices, arguments: argparse.Namespace) -> None:
    key = arguments.api_key or os.environ.get("OPENAI_API_KEY")
    services.supervisor.attach(arguments.base_url, key, arguments.model)


def _require_model(services: LabServices, model: str | None) -> None:
    """Never silently another model than the one that was asked for."""
    current = services.supervisor.snapshot()
    if model and current.ready and current.endpoint and current.endpoint.model != model:
        raise ConfigError(
            f"The running server serves {current.endpoint.model}.", "Leave --model out, or stop that server first."
        )


def _server_config(arguments: argparse.Namespace) -> ServerConfig:
    given = {field.name: getattr(arguments, field.name, None) for field in fields(ServerConfig)}
    return replace(ServerConfig(), **{name: value for name, value in given.items() if value is not None})


def _wait_ready(services: LabServices) -> None:
    """Wait with the phases on standard error."""
    done = threading.Event()

    def tell() -> None:
        last = ""
        while not done.wait(0.5):
            snapshot = services.supervisor.snapshot()
            if snapshot.message != last:
                last = snapshot.message
                _say(f"{snapshot.elapsed_s or 0:5.0f} s  {last}")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        services.supervisor.wait_ready()
    finally:
        done.set()
        teller.join()


def _wait_for_end(services: LabServices) -> None:
    """Until Ctrl-C, SIGTERM, or the end of the server."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        while services.supervisor.snapshot().ready and not asked.wait(0.5):
            pass
    except KeyboardInterrupt:
        pass


class _closing:
    """Close the services on the way out, also after SIGTERM (which becomes KeyboardInterrupt)."""

    def __init__(self, services: LabServices) -> None:
        self._services = services

    def __enter__(self) -> LabServices:
        signal.signal(signal.SIGTERM, _interrupt)
        if notice := self._services.store.notice:
            _say(notice)
        return self._services

    def __exit__(self, *_: object) -> None:
        self._services.close()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"{text!r} is not a list of numbers.", "Write it like 1,5,10.") from None


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


# -- how answers read without --json


def _number(value: float | None, unit: str) -> str:
    return "—" if value is None else f"{value:,.1f} {unit}"


def _text_check(answer: dict[str, Any]) -> str:
    lines = [
        f"{'ok ' if c['ok'] else 'NO '} {c['name']}: {c['value']} {c['remedy']}".rstrip() for c in answer["checks"]
    ]
    return "\n".join([*lines, "Ready." if answer["ready"] else "Not ready: see the lines marked NO."])


def _text_serve(answer: dict[str, Any]) -> str:
    if "argv" in answer:
        return str(answer["command"])
    return (
        f"{answer['model']} is served at {answer['base_url']} (ready after {_number(answer['ready_after_s'], 's')})\n"
        f"export OPENAI_BASE_URL={answer['base_url']} OPENAI_API_KEY={answer['api_key']}\nCtrl-C stops it."
    )


def _text_compare(answer: dict[str, Any]) -> str:
    lines = [
        f"{name:12} {_number(e['throughput_tok_s'], 'tok/s'):>16}{_spread(e['spread'])}"
        f"   TTFT {_number(e['ttft_ms'], 'ms')}   TPOT {_number(e['tpot_ms'], 'ms')}   load {_number(e['load_s'], 's')}"
        for name, e in answer["engines"].items()
    ]
    ratio = answer["ratio"]
    if ratio is not None:
        lines.append(f"vLLM / Hugging Face: {ratio:.2f}×")
    return "\n".join([*lines, *answer["notes"], *(f"WARNING: {warning}" for warning in answer["warnings"])])


def _spread(spread: list[float] | None) -> str:
    return f" ({spread[0]:,.1f} to {spread[1]:,.1f})" if spread else ""


def _text_chat(answer: dict[str, Any]) -> str:
    return f"{answer['text']}\n[TTFT {_number(answer['ttft_ms'], 'ms')}, TPOT {_number(answer['tpot_ms'], 'ms')}]"


def _text_runs(answer: dict[str, Any]) -> str:
    if "runs" not in answer:
        return json.dumps(answer, indent=2)
    lines = [f"{r['id']}  {r['created_at']}  {r['kind']:8} {r['status']:9} {r['title']}" for r in answer["runs"]]
    return "\n".join(lines) or "No runs yet: python -m engine compare makes one."


def _text_stop(answer: dict[str, Any]) -> str:
    ended, owner = answer["ended_processes"], answer["owner"]
    lines = [f"Ended vLLM Lab (process {owner})."] if owner else []
    if ended:
        lines.append(f"Ended {len(ended)} processes left over: {ended}")
    return "\n".join(lines) or "Nothing was left over."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine", description="vLLM Lab without a browser.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    check = _verb(verbs, "check", _check, _text_check, "look whether this machine is fit, with one real generation")
    check.add_argument("--no-generation", action="store_true", help="leave the real generation out")

    serve = _verb(verbs, "serve", _serve, _text_serve, "start a server and keep it until Ctrl-C")
    serve.add_argument("--print-command", action="store_true", help="only show the command")
    serve.add_argument("--model")
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_gib", "port"):
        serve.add_argument(f"--{name.replace('_', '-')}", type=int)
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        serve.add_argument(f"--{name.replace('_', '-')}", type=int)
    serve.add_argument("--distributed-executor-backend", choices=("mp", "ray"))
    serve.add_argument("--dtype", choices=DTYPES)
    serve.add_argument("--kv-cache-dtype")
    serve.add_argument("--attention-backend")
    serve.add_argument("--gpu-memory-utilization", type=float)
    serve.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction)
    serve.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)

    compare = _verb(verbs, "compare", _compare, _text_compare, "measure Hugging Face against vLLM")
    compare.add_argument("--engines", default="hf,vllm")
    compare.add_argument("--prompt", default=CompareConfig.prompt)
    compare.add_argument("--max-tokens", type=int, default=CompareConfig.max_tokens)
    compare.add_argument("--repeats", type=int, default=CompareConfig.repeats)
    compare.add_argument("--users", default="1", help="numbers of prompts at once, like 1,5,10,20")
    compare.add_argument("--no-static-batch", action="store_true", help="leave out Hugging Face's own batch")
    compare.add_argument("--eager", action="store_true", help="measure vLLM both eager and compiled, with two restarts")
    compare.add_argument("--model", help="what to serve where no server runs yet")
    _add_endpoint(compare)

    chat = _verb(verbs, "chat", _chat, _text_chat, "one chat turn")
    chat.add_argument("message")
    chat.add_argument("--system", default="")
    chat.add_argument("--model")
    chat.add_argument("--temperature", type=float, default=0.7)
    chat.add_argument("--max-tokens", type=int, default=256)
    _add_endpoint(chat)

    runs = _verb(verbs, "runs", _runs, _text_runs, "list the saved runs, or show one")
    runs.add_argument("run_id", nargs="?")
    runs.add_argument("--limit", type=int, default=50)

    stop = _verb(verbs, "stop", _stop, _text_stop, "remove leftovers of earlier runs")
    stop.add_argument("--owner", action="store_true", help="also end the lab that is open on this data folder")
    return parser


def _add_endpoint(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--base-url", help="use this OpenAI-compatible server")
    verb.add_argument("--api-key", help="its key; OPENAI_API_KEY is used when this is left out")


def _verb(
    verbs: Any, name: str, run: Callable[..., Answer], text: Callable[[dict[str, Any]], str], words: str
) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=words, description=words)
    verb.add_argument("--json", action="store_true", help="one JSON document on standard output")
    verb.set_defaults(run=run, text=text)
    return verb
