"""What a comparison measures, in which order, and with which prompts."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.compare_results import Mode
from engine.config import PEER_ENGINES, CompareConfig, Endpoint
from engine.endpoint_api import tokenize
from engine.errors import ConfigError, RequestRejected

Prompt = list[int] | str
# For every number of users: the prompts of the warm-up, then those of each repeat.
Plan = dict[int, list[list[Prompt]]]
IdsOf = Callable[[str], list[int]]
NOT_FOUND = 404


@dataclass(frozen=True)
class Shape:
    """One engine answering ``users`` prompts in one way; warmed up once, then measured ``repeats`` times."""

    engine: str
    mode: Mode
    users: int


def shapes(config: CompareConfig) -> tuple[Shape, ...]:
    """Everything that is measured, in this order."""
    found: list[Shape] = []
    if "hf" in config.engines:
        found += [Shape("hf", mode, users) for users in numbers_of_users(config) for mode in hf_modes(users, config)]
    for engine in (*peers_of(config), *vllm_engines(config)):
        found += [Shape(engine, Mode.CONCURRENT, users) for users in numbers_of_users(config)]
    return tuple(found)


def numbers_of_users(config: CompareConfig) -> list[int]:
    """One user is always measured: it is the headline."""
    return sorted({1, *config.users})


def hf_modes(users: int, config: CompareConfig) -> list[Mode]:
    return [Mode.SEQUENTIAL, Mode.STATIC_BATCH] if users > 1 and config.static_batch else [Mode.SEQUENTIAL]


def vllm_engines(config: CompareConfig) -> tuple[str, ...]:
    if "vllm" not in config.engines:
        return ()
    return ("vllm_eager", "vllm") if config.eager_against_graphs else ("vllm",)


def peers_of(config: CompareConfig) -> tuple[str, ...]:
    """Engines besides Hugging Face and vLLM; each is measured in between."""
    return tuple(engine for engine in config.engines if engine in PEER_ENGINES)


def repeats_in_all(config: CompareConfig) -> int:
    """How many repeats there are, warm-ups included."""
    return len(shapes(config)) * (config.repeats + 1)


def plan_by_server(config: CompareConfig, endpoint: Endpoint, check: Callable[[], None]) -> Plan | None:
    """The server's own token ids for both engines. Where it can't tell them, Hugging Face does (None), or the
    server gets text."""
    try:
        return plan_by_ids(
            config, lambda text: tokenize(endpoint, messages=messages_of(text)), endpoint.max_model_len, check
        )
    except RequestRejected as error:
        if error.status != NOT_FOUND:
            raise
    return None if "hf" in config.engines else _groups(config, lambda: _with_nonce(config.prompt))


def plan_by_ids(config: CompareConfig, ids_of: IdsOf, max_length: int | None, check: Callable[[], None]) -> Plan:
    """Prompts as token ids, every one another and all of one length. ``check`` is called before each, to cancel."""
    length = len(ids_of(_with_nonce(config.prompt)))
    if max_length is not None and length + config.max_tokens > max_length:
        raise ConfigError(
            f"A prompt of {length} tokens and {config.max_tokens} more exceed the context of {max_length}.",
            "Shorten the prompt, lower max_tokens, or raise max_model_len.",
        )

    def one() -> Prompt:
        check()
        return _ids_of_length(ids_of, config.prompt, length)

    return _groups(config, one)


def messages_of(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def texts(config: CompareConfig, users: int) -> list[str]:
    """A prompt for each user, every one another."""
    return [_with_nonce(config.prompt) for _ in range(users)]


def _with_nonce(prompt: str) -> str:
    """The prompt behind a number of its own (always seven digits)."""
    return f"[{1_000_000 + secrets.randbelow(9_000_000)}] {prompt}"


def _ids_of_length(ids_of: IdsOf, prompt: str, length: int) -> list[int]:
    """Prompts of one length only: a static batch then needs no padding. Tokenisers may split numbers unevenly."""
    for _ in range(100):
        ids = ids_of(_with_nonce(prompt))
        if len(ids) == length:
            return ids
    raise ConfigError("No prompts of equal length could be made for this tokeniser.", "Change the prompt a little.")


def _groups(config: CompareConfig, one: Callable[[], Prompt]) -> Plan:
    return {
        users: [[one() for _ in range(users)] for _ in range(config.repeats + 1)] for users in numbers_of_users(config)
    }
