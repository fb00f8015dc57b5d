"""How many fit?: the answer follows the controls, and everything says what it is worth."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from components.capacity_figures import Users, users_alt, users_figure
from components.capacity_form import BY_HAND
from engine.cli import main
from engine.environment import GIB
from engine.server.state import KvCapacity
from tests.ui import fakes
from tests.ui.conftest import OpenPage
from tests.ui.page import HOSTILE, assert_no_live_markup, errors, keys, metrics, part, said, table, titles

CONFIGS = Path(__file__).resolve().parent.parent / "fixtures/configs"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("engine.kv.facts.hub_answers", lambda: False)


def opened(open_page: OpenPage, **query: str) -> AppTest:
    at = open_page(fakes.make_lab(fakes.READY), "capacity", **query)
    assert not at.exception
    return at


def command(at: AppTest) -> list[str]:
    return shlex.split(next(code.value for code in at.code if "engine capacity" in code.value))


def asked(capsys: pytest.CaptureFixture[str], at: AppTest) -> dict[str, Any]:
    """What the command that the page shows answers."""
    capsys.readouterr()
    assert main([*command(at)[3:], "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def folder(tmp_path: Path, name: str, **more: Any) -> str:
    place = tmp_path / name
    place.mkdir()
    (place / "config.json").write_text(json.dumps(json.loads((CONFIGS / f"{name}.json").read_text()) | more))
    return str(place)


def test_the_answer_is_paged_against_contiguous_with_its_numbers(open_page: OpenPage) -> None:
    at = opened(open_page)
    assert titles(at) == ["How many fit?"]
    hero = " ".join(part(at, "capacity_answer").split())
    assert "39 users of 768 tokens at once, paged: 13.0× as many as contiguous" in hero
    assert "Estimated: 22.5 GiB × 0.92 − 15.0 weights − 2.0 workspace (assumed) = 3.7 GiB for the KV cache." in hero
    assert (
        "Grouped-query attention: 32 layers × 8 KV heads × 2 (key and value) × 128 numbers × 2 bytes = 131,072 bytes"
        in hero
    )
    shown = metrics(at)
    assert shown["KV cache per token"] == "128 KiB"
    assert shown["Block of 16 tokens"] == "2 MiB"
    assert (shown["Tokens"], shown["Maximum concurrency"]) == ("30,608", "3.74×")
    assert all(metric.help for metric in at.metric)
    assert_no_live_markup(at)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("google/gemma-3-27b-it", "52 of 62 layers keep only the last 1,024 tokens"),
        ("mistralai/Mistral-7B-v0.1", "All layers keep only the last 4,096 tokens"),
    ],
)
def test_layers_that_forget_are_said(open_page: OpenPage, model: str, words: str) -> None:
    at = opened(open_page, capacity_model=model)
    assert words in part(at, "capacity_answer")
    assert any(field.label.startswith("Tokens in one step") for field in at.number_input)


def test_every_card_is_shown_as_a_chart_and_a_table(open_page: OpenPage) -> None:
    at = opened(open_page)
    assert "capacity_users" in keys(at)
    for name in ("T4 16 GB", "L4 24 GB", "A100 40 GB", "A100 80 GB", "H100 80 GB", "H200 141 GB", "This machine (CPU)"):
        assert name in table(at)
    assert "L4 24 GB  20.7 GiB  15.0 GiB  2.0 GiB  3.7 GiB  1,913  39  3" in table(at)


def test_what_is_exact_and_what_is_estimated_is_said(open_page: OpenPage) -> None:
    words = " ".join(said(opened(open_page)).split())
    assert "Exact, by vLLM 0.32's own arithmetic".replace("Exact", "**Exact**") in words
    assert "**Estimated** - The memory left for the KV cache on a GPU that is not here" in words
    assert "8,030,261,248 parameters of 2 bytes" in words


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"capacity_model": "openai/gpt-oss-20b", "capacity_card": "H200 141 GB"},
        {"capacity_model": "deepseek-ai/DeepSeek-V3", "capacity_card": "H200 141 GB", "capacity_parallel": "8"},
        {"capacity_model": "HuggingFaceTB/SmolLM2-135M-Instruct", "capacity_card": "T4 16 GB", "capacity_share": "0.5"},
        {"capacity_model": BY_HAND, "capacity_layers": "12", "capacity_heads": "4"},
        {"capacity_prompt": "2000", "capacity_output": "100", "capacity_format": "int8_per_token_head"},
    ],
)
def test_the_command_answers_the_same(
    open_page: OpenPage, capsys: pytest.CaptureFixture[str], query: dict[str, str]
) -> None:
    at = opened(open_page, **query)
    assert not errors(at)
    found = asked(capsys, at)
    for name, value in query.items():
        if name in ("capacity_prompt", "capacity_layers", "capacity_heads"):
            names = {"capacity_prompt": "prompt_tokens", "capacity_layers": "layers", "capacity_heads": "kv_heads"}
            assert found[names[name]] == int(value)
    assert metrics(at)["Maximum concurrency"] == f"{found['max_concurrency']:,.2f}×"
    assert metrics(at)["Tokens"] == f"{found['tokens']:,}"
    assert f"{found['paged_users']:,}" in part(at, "capacity_answer")


def test_changed_controls_change_the_answer(open_page: OpenPage, capsys: pytest.CaptureFixture[str]) -> None:
    at = opened(open_page)
    at.selectbox(key="capacity_format").set_value("fp8")
    at.slider(key="capacity_reserve").set_value(1.0)
    at.select_slider(key="capacity_length_8192").set_value(2048).run()
    assert metrics(at)["KV cache per token"] == "64 KiB"
    found = asked(capsys, at)
    assert (found["kv_dtype"], found["budget"]["reserve"], found["max_model_len"]) == ("fp8", GIB, 2048)
    assert metrics(at)["Tokens"] == f"{found['tokens']:,}"


def test_ones_own_weights_are_reckoned_with_and_are_in_the_command(open_page: OpenPage) -> None:
    at = opened(open_page)
    (weights,) = [field for field in at.number_input if field.label.startswith("Weights")]
    assert weights.value == 14.96
    weights.set_value(8.0).run()
    assert "--weights-gib 8.0000" in shlex.join(command(at))
    assert "8.0 GiB" in table(at)


def test_unknown_weights_are_asked_for_and_nothing_is_shown_as_zero(open_page: OpenPage, tmp_path: Path) -> None:
    at = opened(open_page, capacity_model=folder(tmp_path, "deepseek-v3"))
    assert not errors(at)
    assert "How much memory the weights take is not known" in part(at, "capacity_answer")
    assert metrics(at)["KV cache per token"] == "68.62 KiB"
    assert metrics(at)["Tokens"] == metrics(at)["KV cache"] == "—"
    assert "H200 141 GB  —  —  —  —  —  —  —" in table(at)


def test_weights_that_fill_the_card_are_said_to(open_page: OpenPage) -> None:
    at = opened(open_page, capacity_card="T4 16 GB")
    assert "Nobody fits: weights (15.0 GiB) and workspace (2.0 GiB) leave nothing" in part(at, "capacity_answer")


def test_a_machine_without_a_gpu_is_given_its_memory(open_page: OpenPage) -> None:
    at = opened(open_page, capacity_card="This machine", capacity_model="HuggingFaceTB/SmolLM2-135M-Instruct")
    assert not errors(at)
    (memory,) = [field for field in at.number_input if field.label == "KV cache (GiB)"]
    memory.set_value(2).run()
    assert metrics(at)["KV cache"] == "2.0 GiB"
    assert "Estimated" not in part(at, "capacity_answer")
    assert "VLLM_CPU_KVCACHE_SPACE=2 python -m vllm.entrypoints.openai.api_server --model Hug" in said(at)
    assert "--memory-gib 2 --card this" in shlex.join(command(at))


def test_a_format_that_a_card_refuses_is_said(open_page: OpenPage) -> None:
    at = opened(open_page, capacity_card="T4 16 GB", capacity_format="fp8")
    assert "T4 16 GB has no fp8 KV cache in vLLM." in part(at, "capacity_answer")
    assert "T4 16 GB  —  —  —  —  —  —  —" in table(at)


def test_a_checkpoint_with_a_cache_format_of_its_own_offers_no_auto(open_page: OpenPage, tmp_path: Path) -> None:
    place = folder(tmp_path, "llama-3-8b", quantization_config={"kv_cache_scheme": {"num_bits": 8}})
    at = opened(open_page, capacity_model=place)
    formats = at.selectbox(key="capacity_format_own")
    assert "auto" not in formats.options and formats.value == "fp8"
    assert metrics(at)["KV cache per token"] == "64 KiB"


def test_a_length_that_would_not_start_says_which_would(open_page: OpenPage) -> None:
    at = opened(open_page, capacity_model="meta-llama/Llama-3.1-8B-Instruct", capacity_length_131072="131,072 tokens")
    assert "vLLM would not start: one request of 131,072 tokens does not fit, 30,592 would." in said(at)


@pytest.mark.parametrize(
    ("query", "cause"),
    [
        ({"capacity_prompt": "9000"}, "Prompt and output are 9,256 tokens, and max_model_len is 8,192."),
        ({"capacity_model": "HuggingFaceTB/SmolLM2-135M-Instruct", "capacity_parallel": "2"}, "among 2 devices"),
        ({"capacity_model": "nobody/nothing"}, "hub can't be reached"),
        ({"capacity_model": HOSTILE}, "neither a folder nor a hub id"),
    ],
)
def test_what_can_not_be_is_said_with_a_remedy(open_page: OpenPage, query: dict[str, str], cause: str) -> None:
    at = opened(open_page, **query)
    assert any(cause in error for error in errors(at))
    assert_no_live_markup(at)


@pytest.mark.parametrize(("tokens", "agrees"), [(93_184, True), (93_185, False)])
def test_the_running_server_is_held_against_the_arithmetic(
    open_page: OpenPage, tmp_path: Path, tokens: int, agrees: bool
) -> None:
    place = Path(folder(tmp_path, "smollm2-135m"))
    reported = KvCapacity(tokens=tokens, block_size=128, num_blocks=728, max_concurrency=45.5)
    endpoint = replace(fakes.ENDPOINT, max_model_len=2048)
    source = replace(fakes.SOURCE, path=place)
    server = replace(fakes.READY, capacity=reported, endpoint=endpoint, source=source)
    at = open_page(fakes.make_lab(server), "capacity")
    assert not at.exception
    words = said(at)
    assert f"728 blocks of 128) reports {tokens:,} tokens and 45.50×" in words
    assert "Reckoned here from its blocks: 93,184 and 45.50×." in words
    assert bool(at.warning) is not agrees


def test_a_server_of_which_too_little_is_known_is_left_out(open_page: OpenPage) -> None:
    for server in (fakes.STOPPED, fakes.ATTACHED, replace(fakes.READY, capacity=KvCapacity())):
        at = open_page(fakes.make_lab(server), "capacity")
        assert not at.exception
        assert "The running server" not in said(at)


def test_names_from_outside_are_text(open_page: OpenPage, tmp_path: Path) -> None:
    place = folder(tmp_path, "llama-3-8b")
    bold = tmp_path / "**bold** :red[x]"
    Path(place).rename(bold)
    at = opened(open_page, capacity_model=str(bold))
    assert not errors(at)
    assert_no_live_markup(at)


def test_the_figure_has_two_bars_a_card_and_unknown_is_no_bar() -> None:
    users = [Users("A", 10, 2, chosen=True), Users("B", None, None)]
    figure = users_figure(users)
    assert [tuple(bar.y) for bar in figure.data] == [(10, None), (2, None)]
    assert [tuple(bar.text) for bar in figure.data] == [("10", "—"), ("2", "—")]
    assert figure.layout.yaxis.title.text == "Users at once"
    assert users_alt(users) == "Users that fit at once. A: 10 paged, 2 contiguous; B: — paged, — contiguous"
