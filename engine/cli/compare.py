"""``compare``: Hugging Face against vLLM, and other engines beside them."""

from __future__ import annotations

import argparse
from typing import Any

from engine.cli.common import Answer, add_endpoint, add_verb, attach, closing, number, numbers, require_model, say
from engine.compare_results import ENGINE_LABELS
from engine.config import CompareConfig, ServerConfig, Settings
from engine.services import open_beside


def register(verbs: Any) -> None:
    verb = add_verb(verbs, "compare", _run, _text, "measure Hugging Face and other engines against vLLM")
    verb.add_argument(
        "--engines", default="hf,vllm", help="some of hf, vllm, llamacpp (after make llama) and transformers"
    )
    verb.add_argument("--prompt", default=CompareConfig.prompt)
    verb.add_argument("--max-tokens", type=int, default=CompareConfig.max_tokens)
    verb.add_argument("--repeats", type=int, default=CompareConfig.repeats)
    verb.add_argument("--users", default="1", help="numbers of prompts at once, like 1,5,10,20")
    verb.add_argument("--no-static-batch", action="store_true", help="leave out Hugging Face's own batch")
    verb.add_argument("--eager", action="store_true", help="measure vLLM both eager and compiled, with two restarts")
    verb.add_argument("--model", help="what to serve where no server runs yet")
    add_endpoint(verb)


def _run(arguments: argparse.Namespace, settings: Settings) -> Answer:
    config = CompareConfig(
        prompt=arguments.prompt,
        max_tokens=arguments.max_tokens,
        repeats=arguments.repeats,
        users=tuple(numbers(arguments.users)),
        engines=tuple(word.strip() for word in arguments.engines.split(",")),
        static_batch=not arguments.no_static_batch,
        eager_against_graphs=arguments.eager,
    )
    services, _ = open_beside(settings)
    with closing(services):
        if arguments.base_url:
            attach(services, arguments)
        require_model(services, arguments.model)
        server = ServerConfig(model=arguments.model) if arguments.model else None
        results = services.compare.run_blocking(config, server, progress=say)
        return results.to_dict(), True


def _text(answer: dict[str, Any]) -> str:
    lines = [
        f"{name:12} {number(e['throughput_tok_s'], 'tok/s'):>16}{_spread(e['spread'])}"
        f"   TTFT {number(e['ttft_ms'], 'ms')}   TPOT {number(e['tpot_ms'], 'ms')}   load {number(e['load_s'], 's')}"
        for name, e in answer["engines"].items()
    ]
    ratio = answer["ratio"]
    if ratio is not None:
        lines.append(f"vLLM / Hugging Face: {ratio:.2f}×")
    lines += [
        f"vLLM / {ENGINE_LABELS[peer['engine']]}, {peer['users']} at once: {peer['ratio']:.2f}×"
        for peer in answer["peer_ratios"]
    ]
    return "\n".join([*lines, *answer["notes"], *(f"WARNING: {warning}" for warning in answer["warnings"])])


def _spread(spread: list[float] | None) -> str:
    return f" ({spread[0]:,.1f} to {spread[1]:,.1f})" if spread else ""
