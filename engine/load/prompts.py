"""What users ask: made-up tokens of an exact number, the lab's own texts, conversations, or a file.

Made-up prompts are token ids that the server's own ``/tokenize`` gave, cut to length, so that their number is exact.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from engine.config import Endpoint, LoadTestConfig
from engine.endpoint_api import count_tokens, tokenize
from engine.errors import ConfigError, RequestRejected
from engine.fetch import NO_TEMPLATE_CAUSE
from engine.kv import lengths
from engine.load.order import Prompt, Vocabulary
from engine.load.profiles import Level
from engine.load.prompt_files import read_prompts
from engine.units import counted

TEXTS = Path(__file__).parent / "texts.yaml"
# Distinct prompts of a level; request i asks number i modulo this, behind a nonce of its own.
POOL = 1000
NOT_FOUND, DENIED = 404, (401, 403)
ESTIMATED_NOTE = "The server has no /tokenize: made-up prompts are words, about as many as tokens were asked for."
NO_CHAT_NOTE = "The model has no chat template: prompts are sent as plain text."
NONCE_TOKENS = 12  # "[1234567] ": nine where each digit is a token, and some to spare
Check = Callable[[], None]


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a level and how they are sent; ``notes`` are for whoever judges the numbers."""

    prompts: tuple[Prompt, ...]
    vocabulary: Vocabulary = Vocabulary()
    chat: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tokenizer:
    """What the server says about its tokens. ``vocabulary`` is empty where it has no ``/tokenize``.

    ``counted`` remembers what was asked: the levels of a test have the same prompts.
    """

    endpoint: Endpoint
    vocabulary: Vocabulary
    max_model_len: int | None
    chat: bool
    counted: dict[tuple[str, ...], int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def counts(self) -> bool:
        return bool(self.vocabulary.ids)

    def tokens(self, turns: tuple[str, ...]) -> int:
        """Tokens of all turns together, in the chat template where there is one; bytes where nothing counts."""
        if turns not in self.counted:
            self.counted[turns] = self._tokens(turns)
        return self.counted[turns]

    def _tokens(self, turns: Sequence[str]) -> int:
        if not self.counts:
            return len("\n".join(turns).encode())
        messages = [{"role": "user", "content": text} for text in turns]
        if not self.chat:
            return len(tokenize(self.endpoint, prompt="\n".join(turns)))
        return len(tokenize(self.endpoint, messages=messages[:1])) + sum(
            len(tokenize(self.endpoint, prompt=text)) for text in turns[1:]
        )


def ask_tokenizer(endpoint: Endpoint) -> Tokenizer:
    """One look at the server: its ids of a text, how prompts begin (a BOS token), and whether it can chat."""
    try:
        counted = count_tokens(endpoint, prompt=_texts()["passage"])
        other = tokenize(endpoint, prompt="Zero or more words.")
    except RequestRejected as error:
        if error.status in DENIED or (error.status or 500) >= 500:
            raise
        return Tokenizer(endpoint, Vocabulary(), endpoint.max_model_len, chat=True)
    same = next((i for i, (a, b) in enumerate(zip(counted.ids, other, strict=False)) if a != b), 0)
    words = Vocabulary(tuple(counted.ids[:same]), tuple(counted.ids[same:]))
    return Tokenizer(endpoint, words, counted.max_model_len or endpoint.max_model_len, _can_chat(endpoint))


def prompts_of(
    config: LoadTestConfig,
    level: Level,
    tokenizer: Tokenizer,
    check: Check = lambda: None,
    read: Callable[[str, int], list[Prompt]] = read_prompts,
) -> PromptSet:
    """The prompts of a level; the same config gives the same ones. ``check`` is called now and then, to cancel.

    ``read`` reads a file of prompts: once a test, where the test remembers it.

    Raises ConfigError where they don't fit into the context, or where a file can't be used.
    """
    if level.rows:
        pairs = [(row.prompt, row.output) for row in level.rows]
        return _made_up(pairs, tokenizer)
    rng = random.Random(f"prompts {config.seed}")
    most = 1 if config.same_prompt else min(POOL, level.requests or POOL)
    match config.prompts:
        case "synthetic":
            if tokenizer.max_model_len is not None:
                _require_fit(config.prompt_tokens, config.max_tokens, tokenizer.max_model_len)
            inputs = sampler(config.prompt_shape, config.prompt_tokens, config.prompt_spread, rng)
            outputs = sampler(config.output_shape, config.max_tokens, config.output_spread, rng)
            return _made_up([(next(inputs), next(outputs)) for _ in range(most)], tokenizer)
        case "sharegpt":
            pairs_of = lengths.sharegpt(rng)
            return _made_up([next(pairs_of) for _ in range(most)], tokenizer)
        case "file":
            given = read(config.prompt_file, config.max_tokens)
            found = _texts_that_fit(given[:most], tokenizer, check)
            return replace(found, notes=(_in_the_file(len(given)), *found.notes))
        case _:
            outputs = sampler(config.output_shape, config.max_tokens, config.output_spread, rng)
            own = [Prompt(next(outputs), turns) for turns in _own_texts(config, rng, most)]
            return _texts_that_fit(own, tokenizer, check, all_of_them=True)


def sampler(shape: str, mean: int, spread: float, rng: random.Random) -> Iterator[int]:
    """Lengths in tokens, at least 1. ``spread``: half the width (uniform), or the standard deviation, over the mean."""
    sigma = math.sqrt(math.log(1 + spread**2))
    while True:
        match shape:
            case "uniform":
                drawn = rng.uniform(mean * (1 - spread), mean * (1 + spread))
            case "normal":
                drawn = rng.gauss(mean, mean * spread)
            case "lognormal":
                drawn = rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
            case _:
                drawn = mean
        yield max(1, round(drawn))


def _made_up(pairs: Sequence[tuple[int, int]], tokenizer: Tokenizer, notes: Sequence[str] = ()) -> PromptSet:
    most = tokenizer.max_model_len
    if most is not None:
        whole, pairs = pairs, [_cut_to_fit(*pair, most) for pair in pairs]
        cut = sum(before != after for before, after in zip(whole, pairs, strict=True))
        if cut:
            notes = (*notes, f"{cut:,} of {counted(len(pairs), 'request')} cut to fit into {most:,} tokens.")
    if tokenizer.counts:
        made = tuple(Prompt(output, tokens=prompt) for prompt, output in pairs)
        return PromptSet(made, tokenizer.vocabulary, notes=tuple(notes))
    words = _texts()["passage"].split()
    texts = tuple(Prompt(output, (" ".join(words[i % len(words)] for i in range(size)),)) for size, output in pairs)
    return PromptSet(texts, chat=tokenizer.chat, notes=(*notes, ESTIMATED_NOTE))


def _cut_to_fit(prompt: int, output: int, most: int) -> tuple[int, int]:
    """A prompt leaves room for one token at least; an answer ends where the context does."""
    prompt = min(prompt, most - 1)
    return prompt, min(output, most - prompt)


def _texts_that_fit(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, check: Check, *, all_of_them: bool = False
) -> PromptSet:
    """Without those that are too long for the context; ``all_of_them``: that is an error."""
    most = tokenizer.max_model_len
    fitting: list[Prompt] = []
    for prompt in prompts:
        check()
        answers = prompt.max_tokens * len(prompt.turns)
        size = sum(len(text.encode()) for text in prompt.turns)
        # A token is at least one byte, so most prompts need no counting.
        need = size if most is None or size + answers < most // 2 else tokenizer.tokens(prompt.turns)
        if most is None or need + answers + NONCE_TOKENS <= most:
            fitting.append(prompt)
        elif all_of_them and tokenizer.counts:
            _require_fit(need + NONCE_TOKENS, answers, most)
    if not fitting and tokenizer.counts:
        raise ConfigError(f"None of the prompts fits into {most} tokens.", "Raise max_model_len or lower max_tokens.")
    left_out = len(prompts) - len(fitting)
    notes = [f"Left out: {counted(left_out, 'prompt')}, too long for {most:,} tokens."] if left_out and fitting else []
    if not tokenizer.chat:
        notes.append(NO_CHAT_NOTE)
    return PromptSet(tuple(fitting or prompts), chat=tokenizer.chat, notes=tuple(notes))


def _in_the_file(count: int) -> str:
    asked = f"; only the first {POOL:,} are asked" if count > POOL else ", asked in turn" if count > 1 else ""
    return f"The file holds {counted(count, 'prompt')}{asked}."


def _require_fit(prompt_tokens: int, max_tokens: int, most: int) -> None:
    if prompt_tokens + max_tokens > most:
        raise ConfigError(
            f"Prompts of {prompt_tokens:,} tokens and answers of {max_tokens:,} don't fit into {most:,}.",
            "Make them shorter, or raise max_model_len.",
        )


def _own_texts(config: LoadTestConfig, rng: random.Random, count: int) -> list[tuple[str, ...]]:
    texts = _texts()
    short = [(text,) for text in texts["short"]]
    long = [(f"{texts['passage']}\n\n{question}",) for question in texts["long"]]
    if config.prompts == "chat":
        talks = [tuple(talk[turn % len(talk)] for turn in range(config.turns)) for talk in texts["chat"]]
        return [talks[number % len(talks)] for number in range(count)]
    if config.prompts == "mixed":
        return [rng.choice(rng.choice((short, long))) for _ in range(count)]
    chosen = long if config.prompts == "long" else short
    return [chosen[number % len(chosen)] for number in range(count)]


def _can_chat(endpoint: Endpoint) -> bool:
    try:
        tokenize(endpoint, messages=[{"role": "user", "content": "Hello"}])
    except RequestRejected as error:
        if error.cause == NO_TEMPLATE_CAUSE or error.status == NOT_FOUND:
            return False
        raise
    return True


@cache
def _texts() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(TEXTS.read_text(encoding="utf-8"))
    return found
