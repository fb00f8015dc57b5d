"""What a KV cache holds: against published numbers, real logs, and the installed vLLM's own classes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError, ModelUnusable
from engine.kv.capacity import KV_DTYPES, KvPlan, KvSetup, LayerGroup, ModelShape, max_length, read_config
from engine.kv.facts import ModelFacts, Weights, known_models, parameters

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIGS = {path.stem: path for path in sorted((ROOT / "tests/fixtures/configs").glob("*.json"))}
GIB = 1024**3


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


def plan(shape: ModelShape, max_model_len: int = 2048, **more: Any) -> KvPlan:
    return KvPlan(shape, KvSetup(max_model_len, **more))


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
SMOLLM2 = ModelShape(30, 3, 64)
DEEPSEEK = ModelShape(61, 1, 576, latent=True)
GEMMA3 = ModelShape(62, 16, 128, window=1024, window_layers=52)
GPT_OSS = ModelShape(24, 8, 64, window=128, window_layers=12)
MISTRAL = ModelShape(32, 8, 128, window=4096, window_layers=32)


# -- a model's config


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_per_token_are_the_published_ones(name: str) -> None:
    config, expected = PUBLISHED[name]
    assert kv_bytes_per_token(config) == expected
    assert kv_bytes_per_token(config, dtype_bytes=4) == 2 * expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_blocks_of_sixteen_tokens_per_gib_are_the_published_ones(name: str) -> None:
    shape = ModelShape.from_config(PUBLISHED[name][0])
    assert plan(shape).capacity(GIB).num_blocks == BLOCKS_PER_GIB[name]


def test_the_papers_pool_of_twelve_gib_has_15728_slots() -> None:
    assert 12 * GIB // kv_bytes_per_token(PUBLISHED["OPT-13B"][0]) == 15_728


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (llama(2, 4, 2, 64, head_dim=128), ModelShape(2, 2, 128, max_length=2048)),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}, ModelShape(12, 12, 64, 2, 1024)),
        (
            {"num_hidden_layers": 60, "num_attention_heads": 128, "hidden_size": 8192, "multi_query": True}
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
        (
            llama(2, 4, 4, 64, sliding_window=8, layer_types=["full_attention"] * 2),
            ModelShape(2, 4, 16, 2, 2048),
        ),
        (
            {"num_layers": 28, "num_attention_heads": 32, "hidden_size": 4096, "multi_query_group_num": 2},
            ModelShape(28, 2, 128),
        ),
        (
            llama(4, 4, 4, 64, model_type="olmo3", sliding_window=99, layer_types=["sliding_attention"] * 4),
            ModelShape(4, 4, 16, 2, 2048, window=99, window_layers=4),
        ),
    ],
    ids=[
        "head_dim",
        "gpt2 names",
        "falcon 40b",
        "multi-query",
        "nested",
        "full layers",
        "no window",
        "no layer with the window",
        "chatglm",
        "listed layers",
    ],
)
def test_the_shape_is_read_whatever_the_names(config: dict[str, Any], shape: ModelShape) -> None:
    assert ModelShape.from_config(config) == shape


@pytest.mark.parametrize(
    ("name", "window", "layers"),
    [
        ("mistral-7b-v0.1", 4096, 32),
        ("mistral-7b-v0.3", None, 0),
        ("gemma-2-9b", 4096, 21),
        ("gemma-3-27b", 1024, 52),
        ("gpt-oss-20b", 128, 12),
        ("command-r7b", 4097, 24),
        ("qwen2.5-0.5b", None, 0),
    ],
)
def test_the_layers_with_a_window_are_counted(name: str, window: int | None, layers: int) -> None:
    shape = ModelShape.from_config_file(CONFIGS[name])
    assert (shape.window, shape.window_layers) == (window, layers)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("opt-13b", "multi-head attention"),
        ("llama-3-8b", "grouped-query attention"),
        ("falcon-7b", "multi-query attention"),
        ("deepseek-v3", "multi-head latent attention (MLA)"),
    ],
)
def test_the_attention_has_its_name(name: str, kind: str) -> None:
    assert ModelShape.from_config_file(CONFIGS[name]).kind == kind


def test_the_kind_of_sizes_by_hand_is_not_guessed() -> None:
    assert (ModelShape(2, 8, 64).kind, ModelShape(2, 1, 64).kind) == ("attention", "multi-query attention")


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


@pytest.mark.parametrize("length", [0, -1, "2048", True, 1.5, 10**30])
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
    "latent attention of another type": (llama(61, 128, 128, 7168, kv_lora_rank=512, model_type="minicpm3"), "MLA"),
    "latent attention without a type": (llama(61, 128, 128, 7168, kv_lora_rank=512), "MLA"),
    "half a latent vector": (llama(61, 128, 128, 7168, kv_lora_rank=512, model_type="deepseek_v3"), "qk_rope_head_dim"),
    "sparse latent attention": (
        llama(61, 128, 128, 7168, kv_lora_rank=512, index_topk=2048, model_type="deepseek_v3"),
        "sparse",
    ),
    "a window without a type": (llama(32, 32, 8, 4096, sliding_window=4096), "sliding window"),
    "a window by layers of an unknown type": (
        llama(2, 4, 4, 64, sliding_window=8, layer_types=["full_attention", "sliding_attention"], model_type="new"),
        "sliding window",
    ),
    "a window in some layers of qwen2": (
        llama(4, 4, 4, 64, sliding_window=8, use_sliding_window=True, max_window_layers=2, model_type="qwen2"),
        "sliding window",
    ),
    "a window that is not said": (llama(32, 32, 8, 4096, model_type="mistral"), "sliding_window"),
    "too few layers listed": (llama(3, 4, 4, 64, layer_types=["full_attention"]), "other layers"),
    "KV heads that are not said": (
        {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "model_type": "qwen2"},
        "num_key_value_heads",
    ),
    "a head size that is not said": (llama(2, 4, 4, 64, model_type="qwen3"), "head_dim"),
    "values of another size": (llama(2, 4, 4, 64, head_dim=16, v_head_dim=8), "values of another size"),
    "an encoder": (llama(2, 4, 4, 64, is_encoder_decoder=True), "cross-attention"),
    "layers of different sizes": (llama(2, 4, 4, 64, block_configs=[{}, {}]), "different sizes"),
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
    "heads by layer": (llama(2, 4, 4, 64) | {"num_kv_heads": [2, 4]}, "num_kv_heads = [2, 4]"),
    "nothing": ({}, "num_hidden_layers"),
    "more layers than anything has": (llama(2**31, 4, 4, 64), "num_hidden_layers = 2147483648"),
    "a page of digits": (llama(2, 4, 4, 64, head_dim="6" * 5000), "head_dim = '6666"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_for_sure_is_refused(name: str) -> None:
    config, words = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        kv_bytes_per_token(config)
    assert words in caught.value.cause
    assert len(caught.value.cause) < 300
    assert caught.value.remedy


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers(-5, 5)
    | st.integers(min_value=10**20)
    | st.just(10**400)
    | st.sampled_from(["llama", "mistral", "deepseek_v2", "full_attention", "linear", "8"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["factor", "type"]), inner),
)
CONFIG_KEYS = (
    *("model_type", "text_config", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size"),
    *("head_dim", "sliding_window", "layer_types", "use_sliding_window", "sliding_window_pattern", "v_head_dim"),
    *("max_position_embeddings", "model_max_length", "rope_scaling", "rope_parameters", "kv_lora_rank", "vocab_size"),
    *("qk_rope_head_dim", "intermediate_size", "torch_dtype", "quantization_config", "tie_word_embeddings"),
)


@given(values=st.dictionaries(st.sampled_from(CONFIG_KEYS), ANYTHING, min_size=1, max_size=4))
def test_whatever_a_config_holds_is_read_or_refused(values: dict[str, Any]) -> None:
    config = llama(4, 8, 2, 64, model_type="llama", vocab_size=100, intermediate_size=256) | values
    facts = ModelFacts("any", config, "a test", Weights(parameters(config), ""))
    assert facts.own_kv_format is None or facts.own_kv_format
    try:
        shape = facts.shape()
    except ConfigError as error:
        assert error.remedy
    else:
        assert shape.kv_bytes_per_token > 0
        assert shape.max_length is None or 0 < shape.max_length < 2**31


@pytest.mark.parametrize("size", [0, 1, 3, 8])
def test_an_entry_size_that_is_not_known_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"{size} bytes per entry"):
        kv_bytes_per_token(PUBLISHED["OPT-13B"][0], size)


def test_a_config_file_is_read() -> None:
    assert ModelShape.from_config_file(CONFIGS["smollm2-135m"]).kv_bytes_per_token == 23_040
    assert ModelShape.from_config_file(CONFIGS["smollm2-135m"], 4).kv_bytes_per_token == 46_080


@pytest.mark.parametrize("text", [None, "", "{", "[1, 2]", '"text"', "[" * 100_000])
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


# -- formats of the cache


@pytest.mark.parametrize(
    ("shape", "kv_dtype", "expected"),
    [
        (DEEPSEEK, "auto", 70_272),
        (DEEPSEEK, "fp8", 35_136),
        (DEEPSEEK, "fp8_ds_mla", 61 * 656),
        (DEEPSEEK, "nvfp4_ds_mla", 61 * 352),
        (SMOLLM2, "float16", 23_040),
        (SMOLLM2, "float32", 46_080),
        (SMOLLM2, "fp8", 11_520),
        (SMOLLM2, "fp8_e5m2", 11_520),
        (SMOLLM2, "fp8_per_token_head", 11_520 + 30 * 3 * 8),
        (SMOLLM2, "int8_per_token_head", 11_520 + 30 * 3 * 8),
        (SMOLLM2, "int4_per_token_head", 5_760 + 30 * 3 * 8),
        (ModelShape(30, 3, 64, dtype_bytes=4), "auto", 46_080),
        (ModelShape(30, 3, 64, dtype_bytes=4), "fp8", 11_520),
    ],
)
def test_formats_have_their_bytes(shape: ModelShape, kv_dtype: str, expected: int) -> None:
    assert plan(shape, kv_dtype=kv_dtype).kv_bytes_per_token == expected


@pytest.mark.parametrize(
    ("shape", "kv_dtype", "words"),
    [
        (SMOLLM2, "fp8_ds_mla", "latent"),
        (ModelShape(61, 1, 320, latent=True), "fp8_ds_mla", "latent"),
        (DEEPSEEK, "fp8_per_token_head", "latent"),
        (ModelShape(2, 2, 63), "int4_per_token_head", "even"),
        (SMOLLM2, "nvfp4", "not known"),
        (SMOLLM2, "fp9", "not known"),
    ],
)
def test_a_format_that_this_attention_does_not_have_is_refused(shape: ModelShape, kv_dtype: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        plan(shape, kv_dtype=kv_dtype)
    assert caught.value.remedy


# -- several devices


@pytest.mark.parametrize(("parts", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_kv_heads_are_divided_but_never_below_one(parts: int, heads: int) -> None:
    shape = ModelShape(80, 8, 128, query_heads=64)
    assert plan(shape, tensor_parallel_size=parts).kv_bytes_per_token == 2 * 80 * heads * 128 * 2


def test_a_latent_vector_is_kept_whole_on_every_device() -> None:
    assert plan(DEEPSEEK, tensor_parallel_size=8).kv_bytes_per_token == 70_272


@pytest.mark.parametrize(
    "shape", [ModelShape(30, 3, 64, query_heads=9), ModelShape(30, 3, 64)], ids=["query heads", "KV heads"]
)
def test_heads_that_can_not_be_divided_are_refused(shape: ModelShape) -> None:
    with pytest.raises(ConfigError, match="can't be divided among 2") as caught:
        plan(shape, tensor_parallel_size=2)
    assert caught.value.remedy


# -- blocks, tokens, concurrency


@pytest.mark.parametrize(
    ("memory", "block", "length", "tokens", "concurrency"),
    [
        (1 * GIB, 128, 2048, 46_592, "22.75"),  # crashes/worker_killed.log, block_size_unsupported.log
        (5 * GIB, 128, 2048, 232_960, "113.75"),  # ram_exhausted.log
        (2 * GIB, 128, 1024, 93_184, "91.00"),  # starts/start_eager_cpu.log
    ],
)
def test_a_cpu_servers_log_says_the_same(memory: int, block: int, length: int, tokens: int, concurrency: str) -> None:
    found = plan(SMOLLM2, length, block_size=block).capacity(memory)
    assert (found.tokens, f"{found.max_concurrency:.2f}") == (tokens, concurrency)


def test_a_gpu_servers_log_says_the_same() -> None:
    """starts/start_default.log: 127.81 GiB for the cache (as the log rounds it), 5,956,560 tokens, 2908.48x."""
    cache = plan(SMOLLM2, 2048)
    found = cache.capacity(372_285 * cache.block_bytes + 1)
    assert f"{found.memory_bytes / GIB:.2f}" == "127.81"
    assert (found.tokens, f"{found.max_concurrency:.2f}") == (5_956_560, "2908.48")


def test_the_null_block_is_kept_back_for_requests_but_counted_by_vllm() -> None:
    found = plan(SMOLLM2, 32).capacity(3 * plan(SMOLLM2, 32).block_bytes)
    assert (found.num_blocks, found.usable_blocks, found.max_concurrency, found.starts) == (3, 2, 1.5, True)


def test_a_cache_for_less_than_one_request_says_what_would_start() -> None:
    cache = plan(SMOLLM2, 2048)
    found = cache.capacity(100 * cache.block_bytes)
    assert (found.starts, found.longest_len) == (False, 99 * 16)


def test_no_memory_holds_nothing() -> None:
    found = plan(SMOLLM2).capacity(0)
    assert (found.num_blocks, found.usable_blocks, found.tokens, found.starts, found.longest_len) == (
        0,
        0,
        0,
        False,
        None,
    )
    assert plan(SMOLLM2).paged_users(0, 10) == 0
    assert plan(SMOLLM2).contiguous_users(0) == 0


def test_layers_with_and_without_a_window_form_groups_of_one_size() -> None:
    assert [group.layers for group in plan(GEMMA3).groups] == [10, 9, 9, 9, 9, 8, 8]
    assert plan(GPT_OSS).groups == (LayerGroup(12), LayerGroup(12, 128))
    assert plan(MISTRAL).groups == (LayerGroup(32, 4096),)
    assert plan(ModelShape(25, 8, 64, window=128, window_layers=13)).groups == (LayerGroup(12), LayerGroup(13, 128))


def test_a_window_holds_what_it_may_see_and_what_is_in_flight() -> None:
    setup = KvSetup(131_072, max_num_batched_tokens=2048)
    assert LayerGroup(32, 4096).blocks_held(131_072, setup) == -(-(4095 + 4096) // 16) + 1
    assert LayerGroup(32, 4096).blocks_held(100, setup) == 8


def test_users_hold_whole_blocks_and_contiguous_ones_the_whole_length() -> None:
    cache = plan(SMOLLM2, 2048)
    memory = 1025 * cache.block_bytes
    assert cache.paged_users(memory, 500) == 1024 // 32
    assert cache.contiguous_users(memory) == 1025 * 16 // 2048


def test_a_contiguous_layer_with_a_window_reserves_no_more_than_the_window() -> None:
    assert plan(MISTRAL, 32_768).contiguous_bytes == 4096 * 131_072
    assert plan(GPT_OSS, 1024).contiguous_bytes == (1024 * 12 + 128 * 12) * 2 * 8 * 64 * 2


@pytest.mark.parametrize(
    "more",
    [
        {"max_model_len": 0},
        {"max_model_len": 64, "block_size": 0},
        {"max_model_len": 64, "block_size": 2**50},
        {"max_model_len": 64, "tensor_parallel_size": -1},
        {"max_model_len": 64, "max_num_batched_tokens": 0},
    ],
)
def test_a_setup_that_can_not_be_is_refused(more: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        KvSetup(**more)
    assert caught.value.remedy


def test_a_length_beyond_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 2,048 tokens"):
        plan(ModelShape(30, 3, 64, max_length=2048), 2049)


@pytest.mark.parametrize("tokens", [0, 2049])
def test_a_request_that_can_not_be_is_refused(tokens: int) -> None:
    with pytest.raises(ConfigError):
        plan(SMOLLM2, 2048).paged_users(GIB, tokens)


def test_memory_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError):
        plan(SMOLLM2).capacity(-1)


SHAPES = st.sampled_from([SMOLLM2, DEEPSEEK, GEMMA3, GPT_OSS, MISTRAL])


@given(shape=SHAPES, memory=st.integers(0, 2**40), block=st.integers(1, 512), tokens=st.integers(1, 8192))
def test_users_fit_and_one_more_would_not(shape: ModelShape, memory: int, block: int, tokens: int) -> None:
    cache = plan(shape, 8192, block_size=block)
    users, found = cache.paged_users(memory, tokens), cache.capacity(memory)
    assert users * cache.blocks_held(tokens) <= found.usable_blocks < (users + 1) * cache.blocks_held(tokens)
    assert found.num_blocks * cache.block_bytes <= memory < (found.num_blocks + 1) * cache.block_bytes


@given(shape=SHAPES, tokens=st.integers(1, 131_072), block=st.sampled_from([16, 32, 64, 128]))
def test_a_longer_request_never_holds_fewer_blocks(shape: ModelShape, tokens: int, block: int) -> None:
    cache = plan(shape, 131_073, block_size=block)
    assert cache.blocks_held(tokens) <= cache.blocks_held(tokens + 1) <= cache.blocks_per_request + len(cache.groups)


@given(shape=SHAPES, memory=st.integers(0, 2**36), length=st.integers(1, 131_072))
def test_the_longest_that_starts_starts_and_no_longer_one_does(shape: ModelShape, memory: int, length: int) -> None:
    found = plan(shape, length).capacity(memory)
    assert found.starts == (found.longest_len == length)
    if found.longest_len:
        assert plan(shape, found.longest_len).capacity(memory).starts
    if found.longest_len != length:
        assert not plan(shape, (found.longest_len or 0) + 1).capacity(memory).starts


# -- the installed vLLM


def _cases() -> list[tuple[KvPlan, int]]:
    memory = (2 * GIB, 10**10 + 7)
    setups = [KvSetup(2048, 16), KvSetup(8192, 128), KvSetup(131_072, 32), KvSetup(100, 64)]
    shapes = [SMOLLM2, DEEPSEEK, GEMMA3, GPT_OSS, MISTRAL, ModelShape(17, 2, 64, window=512, window_layers=10)]
    cases = []
    for shape in shapes:
        for kv_dtype in set(KV_DTYPES) - {"float32"}:
            for setup in setups:
                try:
                    cache = KvPlan(shape, KvSetup(setup.max_model_len, setup.block_size, kv_dtype))
                except ConfigError:
                    continue
                cases += [(cache, size) for size in memory]
    return cases


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_installed_vllm_says_the_same() -> None:
    configs = {name: json.loads(path.read_text()) for name, path in CONFIGS.items()}
    cases = _cases()
    asked = [
        {
            "layers": cache.shape.layers,
            "kv_heads": cache.kv_heads,
            "head_size": cache.shape.head_size,
            "latent": cache.shape.latent,
            "window": cache.shape.window,
            "window_layers": cache.shape.window_layers,
            "kv_dtype": cache.setup.kv_dtype,
            "block_size": cache.setup.block_size,
            "max_model_len": cache.setup.max_model_len,
            "in_flight_tokens": cache.setup.in_flight_tokens,
            "memory_bytes": memory,
        }
        for cache, memory in cases
    ]
    child = subprocess.run(
        [sys.executable, "-m", "tests.vllm_capacity"],
        cwd=ROOT,
        input=json.dumps({"configs": configs, "cases": asked}),
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr
    said = json.loads(child.stdout.splitlines()[-1])
    for name, sizes in said["configs"].items():
        shape = ModelShape.from_config(configs[name])
        window = shape.window - 1 if name == "command-r7b" and shape.window else shape.window  # models/commandr.py
        assert sizes == {
            "layers": shape.layers,
            "kv_heads": shape.kv_heads,
            "head_size": shape.head_size,
            "latent": shape.latent,
            "window": window,
            "window_layers": shape.window_layers,
        }, name
    for (cache, memory), answer in zip(cases, said["cases"], strict=True):
        found = cache.capacity(memory)
        assert sorted(answer.pop("groups")) == sorted(group.layers for group in cache.groups)
        assert answer == {
            "kv_bytes_per_token": cache.kv_bytes_per_token,
            "num_blocks": found.num_blocks,
            "tokens": found.tokens,
            "max_concurrency": found.max_concurrency,
            "starts": found.starts,
        }


# -- models known without a hub


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", 12_288),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 22_528),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 23_040),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 131_072),
        ("meta-llama/Meta-Llama-3-70B-Instruct", 327_680),
        ("facebook/opt-13b", 819_200),
        ("deepseek-ai/DeepSeek-V3", 70_272),
    ],
)
def test_known_models_have_the_published_bytes(model: str, expected: int) -> None:
    assert plan(known_models()[model].shape()).kv_bytes_per_token == expected


@pytest.mark.parametrize("model", known_models())
def test_known_models_can_be_reckoned_with(model: str) -> None:
    facts = known_models()[model]
    assert facts.shape().max_length
    assert facts.weights.total_bytes and facts.weights.words and facts.weights.estimated
