"""What users ask: exact lengths, the lab's own texts, files good and bad."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import LoadTestConfig
from engine.errors import ConfigError, RequestRejected
from engine.kv.traces import Row
from engine.load import prompts
from engine.load.order import LevelOrder, Prompt, Sent, Vocabulary, pack, unpack
from engine.load.profiles import Level
from engine.load.prompt_files import read_prompts
from engine.load.prompts import ESTIMATED_NOTE, NO_CHAT_NOTE, POOL, Tokenizer, ask_tokenizer, prompts_of, sampler
from engine.metrics import RequestTrace, ServerTimings
from tests.fake_openai import FakeOpenAI

LEVEL = Level("5 users", users=5, requests=20)


@pytest.fixture
def fake() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as server:
        yield server


@pytest.fixture
def tokenizer(fake: FakeOpenAI) -> Tokenizer:
    return ask_tokenizer(fake.endpoint())


def test_the_server_is_asked_for_its_tokens_its_context_and_its_template(tokenizer: Tokenizer) -> None:
    assert tokenizer.counts and tokenizer.max_model_len == 2048 and tokenizer.chat


def test_tokens_that_every_prompt_begins_with_are_kept_apart(monkeypatch: pytest.MonkeyPatch, fake: FakeOpenAI) -> None:
    ids = {"A": [1, 50, 51, 52], "Z": [1, 60, 61]}
    monkeypatch.setattr(
        "engine.load.prompts.count_tokens",
        lambda endpoint, prompt: type("Count", (), {"ids": ids[prompt[0]], "max_model_len": 64}),
    )
    monkeypatch.setattr("engine.load.prompts.tokenize", lambda endpoint, messages=None, prompt="Z": ids[prompt[0]])
    found = ask_tokenizer(fake.endpoint())
    assert found.vocabulary == Vocabulary((1,), (50, 51, 52))


def test_made_up_prompts_are_as_long_as_asked(tokenizer: Tokenizer) -> None:
    found = prompts_of(LoadTestConfig(prompt_tokens=64, max_tokens=50), LEVEL, tokenizer)
    assert found.prompts == (Prompt(50, tokens=64),) * 20 and found.notes == ()


def test_lengths_vary_as_chosen_and_stay_within_the_context(tokenizer: Tokenizer) -> None:
    config = LoadTestConfig(
        prompt_tokens=1000, max_tokens=900, prompt_shape="uniform", prompt_spread=0.5, output_shape="lognormal", output_spread=1.0
    )  # fmt: skip
    level = replace(LEVEL, requests=500)
    found = prompts_of(config, level, tokenizer)
    assert len({prompt.tokens for prompt in found.prompts}) > 100
    assert all(prompt.tokens >= 500 and prompt.tokens + prompt.max_tokens <= 2048 for prompt in found.prompts)
    assert "cut to fit into 2,048 tokens" in found.notes[0]
    assert prompts_of(config, level, tokenizer) == found


@pytest.mark.parametrize("shape", ["uniform", "normal", "lognormal"])
def test_samplers_have_the_mean_and_the_spread_they_say(shape: str) -> None:
    drawn = list(islice(sampler(shape, 1000, 0.3, random.Random(1)), 20_000))
    spread = {"uniform": 0.3 / 3**0.5}.get(shape, 0.3)  # half the width, as a standard deviation
    assert fmean(drawn) == pytest.approx(1000, rel=0.02)
    assert pstdev(drawn) == pytest.approx(1000 * spread, rel=0.05)


@given(st.sampled_from(["fixed", "uniform", "normal", "lognormal"]), st.integers(1, 10_000), st.floats(0, 1))
def test_no_length_is_below_one(shape: str, mean: int, spread: float) -> None:
    assert all(length >= 1 for length in islice(sampler(shape, mean, spread, random.Random(2)), 50))


def test_what_does_not_fit_is_refused_before_anything_is_sent(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"2,000 tokens and answers of 50 don't fit into 2,048"):
        prompts_of(LoadTestConfig(prompt_tokens=2000), LEVEL, tokenizer)
    with pytest.raises(ConfigError, match="don't fit"):
        prompts_of(LoadTestConfig(prompts="long", max_tokens=2000), LEVEL, tokenizer)


def test_without_a_tokenizer_prompts_are_words_and_that_is_said(fake: FakeOpenAI) -> None:
    fake.has_tokenize = False
    found = prompts_of(LoadTestConfig(prompt_tokens=12), LEVEL, ask_tokenizer(fake.endpoint()))
    assert len(found.prompts[0].turns[0].split()) == 12 and ESTIMATED_NOTE in found.notes


@pytest.mark.parametrize("status", [400, 404, 405, 422])
def test_a_server_whose_tokenize_is_another_is_no_error(fake: FakeOpenAI, status: int) -> None:
    fake.tokenize_error = (status, b"{}")
    assert not ask_tokenizer(fake.endpoint()).counts


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_server_that_denies_or_fails_is_an_error(fake: FakeOpenAI, status: int) -> None:
    fake.tokenize_error = (status, b"{}")
    with pytest.raises(RequestRejected):
        ask_tokenizer(fake.endpoint())


def test_a_model_without_a_chat_template_gets_plain_text(fake: FakeOpenAI) -> None:
    tokenizer = replace(ask_tokenizer(fake.endpoint()), chat=False)
    found = prompts_of(LoadTestConfig(prompts="short"), LEVEL, tokenizer)
    assert not found.chat and NO_CHAT_NOTE in found.notes


@pytest.mark.parametrize("kind", ["short", "long", "mixed"])
def test_the_labs_own_texts_are_single_questions(tokenizer: Tokenizer, kind: str) -> None:
    prompts = prompts_of(LoadTestConfig(prompts=kind), LEVEL, tokenizer).prompts
    words = [len(prompt.turns[0].split()) for prompt in prompts]
    assert len(prompts) == 20 and {len(prompt.turns) for prompt in prompts} == {1}
    assert (min(words) < 20) == (kind != "long") and (max(words) > 200) == (kind != "short")


def test_a_chat_has_as_many_turns_as_chosen(tokenizer: Tokenizer) -> None:
    prompts = prompts_of(LoadTestConfig(prompts="chat", turns=6), LEVEL, tokenizer).prompts
    assert {len(prompt.turns) for prompt in prompts} == {6}


def test_one_prompt_for_all_is_one(tokenizer: Tokenizer) -> None:
    for kind in ("synthetic", "short", "sharegpt"):
        assert len(prompts_of(LoadTestConfig(prompts=kind, same_prompt=True), LEVEL, tokenizer).prompts) == 1


def test_a_trace_brings_its_own_lengths_cut_to_the_context(tokenizer: Tokenizer) -> None:
    level = Level("trace", arrivals_s=(0.0, 1.0), requests=2, rows=(Row(0.0, 10, 3), Row(1.0, 5000, 3)))
    found = prompts_of(LoadTestConfig(profile="trace", trace="x"), level, tokenizer)
    assert found.prompts == (Prompt(3, tokens=10), Prompt(1, tokens=2047))
    assert found.notes == ("1 of 2 requests cut to fit into 2,048 tokens.",)


# -- files


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"prompt": "one", "max_tokens": 7}\n\n{"text": "two"}\n'),
        ("a.jsonl", '{"prompt": "one", "max_tokens": 7, "more": "\u2028\x85"}\r\n{"text": "two"}\r\n'),
        ("a.csv", 'prompt,max_tokens\none,7\n"two",\n'),
        ("a.json", '[{"prompt": "one", "output_tokens": 7}, "two"]'),
        ("b.json", json.dumps([{"conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "x"}], "max_tokens": 7}, {"conversations": [{"from": "gpt", "value": "nobody asks"}]}, {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "two"}]}])),
    ],
    ids=["JSONL", "JSONL with other line ends", "CSV", "JSON", "ShareGPT"],
)  # fmt: skip
def test_files_of_every_format_are_read(tmp_path: Path, name: str, text: str) -> None:
    assert read_prompts(write(tmp_path, name, text), 50) == [Prompt(7, ("one",)), Prompt(50, ("two",))]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", '{"prompt": "one"}\n{no json\n', "line 2 isn't JSON"),
        ("a.jsonl", '{"question_text": "one"}\n', "entry 1 has no prompt"),
        ("a.jsonl", '{"prompt": "one", "max_tokens": "many"}\n', "max_tokens is 'many'"),
        ("a.jsonl", '{"prompt": "one", "max_tokens": Infinity}\n', "max_tokens is 'inf'"),
        ("a.jsonl", '{"prompt": "one", "max_tokens": -1}\n', "max_tokens is -1"),
        ("a.jsonl", "[1, 2]", "entry 1 isn't an object"),
        ("a.jsonl", "", "holds no prompts"),
        ("a.jsonl", '{"prompt": "  "}\n', "holds no prompts"),
        ("a.csv", "nothing\n1\n", "entry 1 has no prompt"),
        ("a.json", "[[[[", "can't be read"),
    ],
)
def test_a_file_that_cannot_be_used_says_where_and_how_to_mend_it(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_prompts(write(tmp_path, name, text), 50)
    assert words in caught.value.cause and "JSONL" in caught.value.remedy


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    for name in ("missing.jsonl", "binary", "."):
        with pytest.raises(ConfigError, match="can't be read"):
            read_prompts(str(tmp_path / name), 50)


def test_how_many_prompts_of_a_file_are_asked_is_said(tmp_path: Path, tokenizer: Tokenizer) -> None:
    level = replace(LEVEL, requests=5_000)
    for count, asked, note in (
        (1, 1, "The file holds 1 prompt."),
        (3, 3, "The file holds 3 prompts, asked in turn."),
        (POOL + 1, POOL, "The file holds 1,001 prompts; only the first 1,000 are asked."),
    ):
        path = write(tmp_path, "many.jsonl", "\n".join(json.dumps({"prompt": f"Is {i} odd?"}) for i in range(count)))
        found = prompts_of(LoadTestConfig(prompts="file", prompt_file=path), level, tokenizer)
        assert len(found.prompts) == asked and found.notes[0] == note


def test_prompts_are_read_and_counted_once_for_all_levels(
    tmp_path: Path, fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = replace(ask_tokenizer(fake.endpoint()), max_model_len=60)
    asked: list[Any] = []
    monkeypatch.setattr(prompts, "tokenize", lambda endpoint, **what: asked.append(what) or [1, 2, 3])
    path = write(tmp_path, "two.jsonl", json.dumps({"prompt": "a long question " * 2}))
    config = LoadTestConfig(prompts="file", prompt_file=path, max_tokens=10)
    read: list[str] = []
    remember = cache(lambda path, most: read.append(path) or read_prompts(path, most))
    found = [prompts_of(config, LEVEL, tokenizer, read=remember) for _ in range(3)]
    assert found[0] == found[1] == found[2]
    assert len(asked) == 1 and read == [path]


def test_prompts_of_a_file_that_are_too_long_are_left_out_and_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    lines = [json.dumps({"prompt": text}) for text in ("short one", "word " * 3000)]
    path = write(tmp_path, "a.jsonl", "\n".join(lines))
    found = prompts_of(LoadTestConfig(prompts="file", prompt_file=path), LEVEL, tokenizer)
    assert found.prompts == (Prompt(50, ("short one",)),)
    assert found.notes[1:] == ("Left out: 1 prompt, too long for 2,048 tokens.",)
    path = write(tmp_path, "b.jsonl", lines[1])
    with pytest.raises(ConfigError, match="None of the prompts"):
        prompts_of(LoadTestConfig(prompts="file", prompt_file=path), LEVEL, tokenizer)


# -- to the sending process and back


def test_an_order_and_its_answers_survive_json() -> None:
    order = LevelOrder(
        (Prompt(5, ("a", "b")), Prompt(6, tokens=7)), users=3, arrivals_s=(0.0, 1.5), vocabulary=Vocabulary((1,), (2, 3))
    )  # fmt: skip
    assert LevelOrder.from_dict(json.loads(json.dumps(order.to_dict()))) == order
    trace = RequestTrace(
        1.0,
        (2.0, 3.0),
        (),
        4,
        5,
        6,
        "length",
        "error",
        7,
        ServerTimings(1.0, None, 2.0),
        "remedy",
        True,
        503,
        8.0,
        9.0,
        0.5,
        1.5,
    )
    sent = Sent(1, 2, 3, trace)
    assert unpack(json.loads(json.dumps(pack(sent)))) == sent
