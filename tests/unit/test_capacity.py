"""Bytes of KV cache per token, against models whose numbers are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError, ModelUnusable
from engine.kv.capacity import ModelShape, max_length, read_config


def llama(layers: int, heads: int, kv_heads: int, width: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": width,
        "max_position_embeddings": 2048,
    } | more


def kv_bytes_per_token(config: dict[str, Any], dtype_bytes: int = 2) -> int:
    return ModelShape.from_config(config, dtype_bytes).kv_bytes_per_token


PUBLISHED = {
    "Qwen2.5-0.5B": (llama(24, 14, 2, 896, use_sliding_window=False, sliding_window=32768), 12_288),
    "TinyLlama-1.1B": (llama(22, 32, 4, 2048), 22_528),
    "SmolLM2-135M": (llama(30, 9, 3, 576), 23_040),
    "Llama-3-8B": (llama(32, 32, 8, 4096), 131_072),
    "Llama-3-70B": (llama(80, 64, 8, 8192), 327_680),
    "OPT-13B": ({"num_hidden_layers": 40, "num_attention_heads": 40, "hidden_size": 5120}, 819_200),
}
BLOCKS_PER_GIB = {
    "Qwen2.5-0.5B": 5461,
    "TinyLlama-1.1B": 2978,
    "SmolLM2-135M": 2912,
    "Llama-3-8B": 512,
    "Llama-3-70B": 204,
    "OPT-13B": 81,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_per_token_are_the_published_ones(name: str) -> None:
    config, expected = PUBLISHED[name]
    assert kv_bytes_per_token(config) == expected
    assert kv_bytes_per_token(config, dtype_bytes=4) == 2 * expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_blocks_of_sixteen_tokens_per_gib_are_the_published_ones(name: str) -> None:
    assert 1024**3 // (16 * kv_bytes_per_token(PUBLISHED[name][0])) == BLOCKS_PER_GIB[name]


def test_the_papers_pool_of_twelve_gib_has_15728_slots() -> None:
    assert 12 * 1024**3 // kv_bytes_per_token(PUBLISHED["OPT-13B"][0]) == 15_728


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (llama(2, 4, 2, 64, head_dim=128), ModelShape(2, 2, 128, max_length=2048)),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}, ModelShape(12, 12, 64, 2, 1024)),
        (
            {"num_hidden_layers": 60, "num_attention_heads": 128, "hidden_size": 8192}
            | {"new_decoder_architecture": True, "num_kv_heads": 8},
            ModelShape(60, 8, 64),
        ),
        (
            {"num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": True},
            ModelShape(32, 1, 64),
        ),
        ({"text_config": llama(4, 8, 8, 512), "num_hidden_layers": 99}, ModelShape(4, 8, 64, 2, 2048)),
        (llama(2, 4, 4, 64, layer_types=["full_attention"] * 2), ModelShape(2, 4, 16, 2, 2048)),
        (llama(2, 4, 4, 64, sliding_window=None), ModelShape(2, 4, 16, 2, 2048)),
    ],
    ids=["head_dim", "gpt2 names", "falcon 40b", "multi-query", "nested", "full layers", "no window"],
)
def test_the_shape_is_read_whatever_the_names(config: dict[str, Any], shape: ModelShape) -> None:
    assert ModelShape.from_config(config) == shape


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"text_config": {"max_position_embeddings": 2048}, "max_position_embeddings": 9}, 2048),
        ({"max_position_embeddings": 2048, "seq_length": 1024}, 1024),
        ({"max_position_embeddings": 2048, "model_max_length": 4096}, 4096),
        ({"max_position_embeddings": 2048, "rope_scaling": {"type": "linear", "factor": 4.0}}, 8192),
        ({"max_position_embeddings": 2048, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 2048),
        ({"max_position_embeddings": 2048, "rope_scaling": None}, 2048),
        ({"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 2048),
        (
            {"max_position_embeddings": 2048}
            | {"rope_parameters": {"full": {"rope_type": "linear", "factor": 8}, "part": {"rope_type": "default"}}},
            16384,
        ),
        ({}, None),
    ],
)
def test_the_longest_sequence_is_what_vllm_takes_for_it(config: dict[str, Any], longest: int | None) -> None:
    assert max_length(config) == longest


@pytest.mark.parametrize("length", [0, -1, "2048", True, 1.5])
def test_a_length_that_is_none_says_nothing(length: Any) -> None:
    assert max_length({"max_position_embeddings": length}) is None
    assert max_length({"max_position_embeddings": length, "n_positions": 1024}) == 1024


@given(
    layers=st.integers(1, 200),
    kv_heads=st.integers(1, 16),
    group=st.integers(1, 8),
    head_size=st.integers(1, 256),
    dtype_bytes=st.sampled_from([2, 4]),
)
def test_bytes_are_the_product_of_the_shape(
    layers: int, kv_heads: int, group: int, head_size: int, dtype_bytes: int
) -> None:
    heads = kv_heads * group
    config = llama(layers, heads, kv_heads, heads * head_size)
    assert kv_bytes_per_token(config, dtype_bytes) == 2 * layers * kv_heads * head_size * dtype_bytes


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "latent attention": (llama(61, 128, 128, 7168, kv_lora_rank=512), "MLA"),
    "sliding window": (llama(32, 32, 8, 4096, sliding_window=4096), "sliding window"),
    "state space": (llama(32, 32, 8, 4096, mamba_d_state=16), "not attention"),
    "chunks": (llama(32, 32, 8, 4096, attention_chunk_size=8192), "chunked"),
    "mixed layers": (llama(2, 4, 4, 64, layer_types=["full_attention", "linear_attention"]), "linear_attention"),
    "no layers": ({"num_attention_heads": 4, "hidden_size": 64}, "num_hidden_layers"),
    "no heads": ({"num_hidden_layers": 4, "hidden_size": 64}, "num_attention_heads"),
    "no width": ({"num_hidden_layers": 4, "num_attention_heads": 4}, "hidden_size"),
    "odd width": (llama(2, 3, 3, 64), "not a multiple"),
    "zero": (llama(0, 4, 4, 64), "num_hidden_layers = 0"),
    "a word": (llama(2, 4, 4, 64, head_dim="64"), "head_dim = '64'"),
    "a truth value": (llama(2, 4, True, 64), "num_key_value_heads = True"),
    "a fraction": (llama(2, 4, 4, 64, head_dim=64.5), "head_dim = 64.5"),
    "nothing": ({}, "num_hidden_layers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_for_sure_is_refused(name: str) -> None:
    config, words = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        kv_bytes_per_token(config)
    assert words in caught.value.cause
    assert caught.value.remedy


@pytest.mark.parametrize("size", [0, 1, 3, 8])
def test_an_entry_size_that_is_not_known_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"{size} bytes per entry"):
        kv_bytes_per_token(PUBLISHED["OPT-13B"][0], size)


def test_a_config_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED["SmolLM2-135M"][0]))
    assert ModelShape.from_config_file(path).kv_bytes_per_token == 23_040
    assert ModelShape.from_config_file(path, 4).kv_bytes_per_token == 46_080


@pytest.mark.parametrize("text", [None, "", "{", "[1, 2]", '"text"'])
def test_a_config_file_that_can_not_be_read_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ModelUnusable, match="config.json") as caught:
        read_config(path)
    assert caught.value.remedy


def test_a_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not hold an object"):
        ModelShape.from_config([1, 2])  # type: ignore[arg-type]
