"""``capacity``: bytes per token, blocks, tokens and users of a KV cache."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from engine.cli.common import Answer, add_verb
from engine.config import DEFAULT_MODEL, Settings
from engine.environment import GIB, detect_hardware
from engine.errors import ConfigError
from engine.kv.capacity import AUTO, KV_DTYPES, MOST
from engine.kv.capacity_command import cli_command, serve_command
from engine.kv.cards import CARDS, GPU_BLOCK, RESERVE_GIB, THIS, UTILIZATION, Card, find_card
from engine.kv.facts import ModelFacts, Weights, find_facts
from engine.kv.fit import Fit, Question, ask, formula
from engine.kv.shape import ModelShape
from engine.vllm_facts import DEFAULT_CPU_BLOCK

AS_GIVEN = "as given"
SIZES = ("layers", "kv_heads", "head_size")


def register(verbs: Any) -> None:
    verb = add_verb(verbs, "capacity", _run, _text, "how many tokens and users a KV cache holds")
    verb.add_argument("--model", help=f"hub id or folder with a config.json (default: {DEFAULT_MODEL})")
    for name in SIZES:
        verb.add_argument(f"--{name.replace('_', '-')}", type=int, help="instead of a model: all three sizes")
    verb.add_argument("--memory-gib", type=float, help="memory of the KV cache on each device; else what the card has")
    verb.add_argument("--card", help=f"{', '.join(card.key for card in CARDS)} or {THIS} (this machine, the default)")
    verb.add_argument("--gpu-memory-utilization", type=float, default=UTILIZATION)
    verb.add_argument("--weights-gib", type=float, help="where the model does not say, or says otherwise")
    verb.add_argument("--reserve-gib", type=float, default=RESERVE_GIB, help="activations, CUDA and graphs: assumed")
    verb.add_argument("--max-model-len", type=int, help="default: the model's own")
    verb.add_argument("--kv-dtype", "--kv-cache-dtype", default=AUTO, help=", ".join(KV_DTYPES))
    verb.add_argument(
        "--block-size",
        type=int,
        help=f"tokens in a block (default: {GPU_BLOCK}, with this machine's CPU {DEFAULT_CPU_BLOCK})",
    )
    verb.add_argument("--tensor-parallel-size", type=int, default=1)
    verb.add_argument("--max-num-batched-tokens", type=int, help="matters for sliding windows only")
    verb.add_argument("--prompt-tokens", type=int, help=f"of a typical request ({Question.prompt_tokens})")
    verb.add_argument("--output-tokens", type=int, help=f"of a typical request ({Question.output_tokens})")


def _run(arguments: argparse.Namespace, settings: Settings) -> Answer:
    facts, shape = _model(arguments, settings)
    card = _card(arguments, settings)
    weights = facts.weights if facts else Weights(None, "not known: give it")
    if arguments.weights_gib is not None:
        weights = Weights(_bytes("weights_gib", arguments.weights_gib), AS_GIVEN, estimated=False)
    prompt, output = _typical(arguments, shape)
    question = Question(
        shape=shape,
        weights_bytes=weights.total_bytes,
        prompt_tokens=prompt,
        output_tokens=output,
        max_model_len=arguments.max_model_len,
        kv_dtype=arguments.kv_dtype,
        block_size=arguments.block_size,
        tensor_parallel_size=arguments.tensor_parallel_size,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        gpu_memory_utilization=arguments.gpu_memory_utilization,
        reserve_bytes=_bytes("reserve_gib", arguments.reserve_gib),
        kv_memory_bytes=None if arguments.memory_gib is None else _bytes("memory_gib", arguments.memory_gib),
    )
    fit = ask(question, card)
    if fit.refused:
        raise ConfigError(fit.refused, "Set the KV dtype to auto.")
    if facts is not None and arguments.kv_dtype == AUTO and facts.own_kv_format:
        raise ConfigError(
            f"This checkpoint brings a KV-cache format of its own ({facts.own_kv_format}).",
            "Say which with --kv-dtype.",
        )
    return _answer(facts, question, fit, weights), True


def _model(arguments: argparse.Namespace, settings: Settings) -> tuple[ModelFacts | None, ModelShape]:
    sizes = [getattr(arguments, name) for name in SIZES]
    if all(size is None for size in sizes):
        facts = find_facts(arguments.model or DEFAULT_MODEL, settings)
        return facts, facts.shape()
    if arguments.model or None in sizes:
        raise ConfigError(
            "The sizes of a model are its layers, KV heads and head size.",
            "Give --layers, --kv-heads and --head-size together, without --model.",
        )
    layers, kv_heads, head_size = (_positive(name, size) for name, size in zip(SIZES, sizes, strict=True))
    return None, ModelShape(layers, kv_heads, head_size)


def _card(arguments: argparse.Namespace, settings: Settings) -> Card | None:
    if arguments.card is None and arguments.memory_gib is not None:
        return None
    return find_card(arguments.card or THIS, detect_hardware(settings))


def _typical(arguments: argparse.Namespace, shape: ModelShape) -> tuple[int, int]:
    """Prompt and output tokens of a typical request; where neither is said, no more than the length allows."""
    prompt, output = arguments.prompt_tokens, arguments.output_tokens
    longest = arguments.max_model_len or shape.max_length or MOST
    if prompt is None and output is None and Question.prompt_tokens + Question.output_tokens > longest:
        prompt = max(1, longest * 2 // 3)
        return prompt, longest - prompt
    return (
        _positive("prompt_tokens", Question.prompt_tokens if prompt is None else prompt),
        _positive("output_tokens", Question.output_tokens if output is None else output),
    )


def _positive(name: str, value: int) -> int:
    if not 1 <= value <= MOST:
        raise ConfigError(f"{name} is {value}.", f"Use a whole number from 1 to {MOST:,}.")
    return value


def _bytes(name: str, gib: float) -> int:
    if not 0 <= gib <= MOST:  # neither is what is no number
        raise ConfigError(f"{name} is {gib}.", f"Give a size in GiB, from 0 to {MOST:,}.")
    return int(gib * GIB)


def _answer(facts: ModelFacts | None, question: Question, fit: Fit, weights: Weights) -> dict[str, Any]:
    plan, setup, shape = fit.plan, fit.plan.setup, fit.plan.shape
    capacity = asdict(fit.capacity) if fit.capacity else dict.fromkeys(CAPACITY_NAMES)
    model = facts.model if facts else None
    return {
        "model": model,
        "origin": facts.origin if facts else "sizes as given",
        "attention": shape.kind,
        "layers": shape.layers,
        "kv_heads": shape.kv_heads,
        "head_size": shape.head_size,
        "sliding_window": shape.window,
        "sliding_window_layers": shape.window_layers,
        "kv_dtype": setup.kv_dtype,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "formula": formula(plan),
        "block_size": setup.block_size,
        "block_bytes": plan.block_bytes,
        "layer_groups": len(plan.groups),
        "max_model_len": setup.max_model_len,
        "blocks_per_request": plan.blocks_per_request,
        "tensor_parallel_size": setup.tensor_parallel_size,
        "card": fit.card.name if fit.card else None,
        **capacity,
        "memory_source": fit.memory_source if fit.capacity else None,
        "memory_is_estimate": fit.budget is not None,
        "budget": asdict(fit.budget) | {"kv": fit.budget.kv} if fit.budget else None,
        "weights_bytes": weights.total_bytes,
        "weights_source": weights.words,
        "prompt_tokens": question.prompt_tokens,
        "output_tokens": question.output_tokens,
        "paged_users": fit.paged_users,
        "contiguous_users": fit.contiguous_users,
        "command": cli_command(question, model, fit.card, weights_given=weights.words == AS_GIVEN),
        "serve_command": serve_command(question, model, fit.card),
    }


CAPACITY_NAMES = ("memory_bytes", "num_blocks", "usable_blocks", "tokens", "max_concurrency", "starts", "longest_len")

NO_ROOM = "no memory is left for it: take a larger card, more devices, or a smaller model"


def _text(answer: dict[str, Any]) -> str:
    each = " on each device" if answer["tensor_parallel_size"] > 1 else ""
    lines = [
        f"{answer['model'] or 'A model of these sizes'} ({answer['origin']}): {answer['attention']}",
        f"KV cache per token{each}: {answer['formula']}",
    ]
    if answer["num_blocks"] is None:
        return "\n".join([*lines, "The memory left for it is not known: give --memory-gib or --weights-gib."])
    where = f" on {answer['card']}" if answer["card"] else ""
    lines += [
        f"KV cache of {answer['memory_bytes'] / GIB:,.2f} GiB{where} ({answer['memory_source']}): "
        f"{answer['num_blocks']:,} blocks of {answer['block_size']} tokens, {answer['tokens']:,} tokens",
        f"Maximum concurrency for {answer['max_model_len']:,} tokens per request: {answer['max_concurrency']:.2f}x",
        f"Users of {answer['prompt_tokens']} + {answer['output_tokens']} tokens at once: {answer['paged_users']:,} "
        f"paged, {answer['contiguous_users']:,} where each reserves {answer['max_model_len']:,}",
    ]
    if not answer["starts"]:
        longest = answer["longest_len"]
        remedy = f"set max_model_len to {longest} or less" if longest else NO_ROOM
        lines.append(f"vLLM would not start: one request of that length does not fit; {remedy}.")
    return "\n".join(lines)
