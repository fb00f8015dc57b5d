"""``chat``: one turn."""

from __future__ import annotations

import argparse
from typing import Any

from engine.chat import ChatOptions, TurnStatus
from engine.cli.common import Answer, add_endpoint, add_verb, attach, closing, number, require_model, say, wait_ready
from engine.config import ServerConfig, Settings
from engine.errors import ConfigError
from engine.services import open_beside


def register(verbs: Any) -> None:
    verb = add_verb(verbs, "chat", _run, _text, "one chat turn")
    verb.add_argument("message")
    verb.add_argument("--system", default="")
    verb.add_argument("--model")
    verb.add_argument("--temperature", type=float, default=0.7)
    verb.add_argument("--max-tokens", type=int, default=256)
    add_endpoint(verb)


def _run(arguments: argparse.Namespace, settings: Settings) -> Answer:
    options = ChatOptions(system=arguments.system, temperature=arguments.temperature, max_tokens=arguments.max_tokens)
    if not arguments.message.strip():
        raise ConfigError("The message is empty.", "Write something first.")
    services, _ = open_beside(settings)
    with closing(services):
        if arguments.base_url:
            attach(services, arguments)
        elif not services.supervisor.snapshot().ready:
            services.supervisor.start(ServerConfig(model=arguments.model or ServerConfig.model))
            wait_ready(services)
        require_model(services, arguments.model)
        session = services.chats.get("command-line")
        session.send(services.supervisor.endpoint(), arguments.message, options)
        session.wait(600.0)
        snapshot = session.snapshot()
        turn, saved = snapshot.turns[-1], snapshot.saved
        trace = turn.trace
        if saved.error:
            say(f"This answer isn't saved: {saved.error}")
        answer = {
            "text": turn.text,
            "status": str(turn.status),
            "ttft_ms": trace.ttft_ms if trace else None,
            "tpot_ms": trace.tpot_ms if trace else None,
            "e2e_ms": trace.e2e_ms if trace else None,
            "prompt_tokens": trace.prompt_tokens if trace else None,
            "output_tokens": trace.output_tokens if trace else None,
            "cached_tokens": trace.cached_tokens if trace else None,
            "run_id": saved.run_id,
        }
        if turn.status != TurnStatus.DONE:
            answer |= {"error": turn.error or "The answer was cut short.", "remedy": ""}
        return answer, turn.status == TurnStatus.DONE


def _text(answer: dict[str, Any]) -> str:
    return f"{answer['text']}\n[TTFT {number(answer['ttft_ms'], 'ms')}, TPOT {number(answer['tpot_ms'], 'ms')}]"
