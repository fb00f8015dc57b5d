"""Child process: what the installed vLLM's own classes make of configs and KV caches.

Standard input is one JSON object: ``configs`` (parsed config.json files) and ``cases`` (``layers``, ``kv_heads``,
``head_size``, ``latent``, ``window``, ``window_layers``, ``kv_dtype``, ``block_size``, ``max_model_len``,
``in_flight_tokens``, ``memory_bytes``); standard output the same with the answers. Configs are read by transformers and
vLLM's convertor. Specs are built as vLLM's attention layers and its Triton backend build them; grouping, division into
blocks and concurrency are its own functions.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import vllm.config  # noqa: F401 first: its modules import each other
from transformers import AutoConfig
from vllm.transformers_utils.model_arch_config_convertor import (
    MODEL_ARCH_CONFIG_CONVERTORS,
    ModelArchConfigConvertorBase,
)
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    get_kv_quant_mode,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

PACKED = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}  # vllm/model_executor/layers/attention/mla_attention.py


def shape_of(config: dict[str, Any]) -> dict[str, Any]:
    """Sizes of the cache as vLLM takes them from a config, and which layers have a window (engine/arg_utils.py)."""
    whole = AutoConfig.for_model(**config)
    text = whole.get_text_config()
    read = MODEL_ARCH_CONFIG_CONVERTORS.get(whole.model_type, ModelArchConfigConvertorBase)(whole, text)
    kinds, window = getattr(text, "layer_types", None), getattr(text, "sliding_window", None)
    layers = read.get_num_hidden_layers()
    windowed = (layers if window else 0) if kinds is None else kinds.count("sliding_attention")
    return {
        "layers": layers,
        "kv_heads": 1 if read.is_deepseek_mla() else read.get_total_num_kv_heads(),
        "head_size": read.get_head_size(),
        "latent": read.is_deepseek_mla(),
        "window": window if windowed else None,
        "window_layers": windowed,
    }


def spec_of(case: dict[str, Any], windowed: bool) -> KVCacheSpec:
    name = case["kv_dtype"]
    common = {
        "block_size": case["block_size"],
        "head_size": case["head_size"],
        "dtype": STR_DTYPE_TO_TORCH_DTYPE["bfloat16" if name == "auto" else name],
        "kv_quant_mode": get_kv_quant_mode(name),
    }
    if case["latent"]:
        return MLAAttentionSpec(
            **common, num_kv_heads=1, cache_dtype_str=name, state_content_bytes=PACKED.get(name), max_tp_shards=1
        )
    common["num_kv_heads"] = case["kv_heads"]
    spec = SlidingWindowSpec(**common, sliding_window=case["window"]) if windowed else FullAttentionSpec(**common)
    return TritonAttentionBackend.customize_spec(spec)


def config_of(case: dict[str, Any]) -> Any:
    """The parts of a VllmConfig that the functions read."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, tensor_parallel_size=1),
        model_config=SimpleNamespace(
            max_model_len=case["max_model_len"], original_max_model_len=case["max_model_len"], hf_config=None
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=None,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBNHC,
        ),
        max_in_flight_tokens=case["in_flight_tokens"],
        num_prefill_lookahead_tokens=0,
        num_speculative_tokens=0,
    )


def answer(case: dict[str, Any]) -> dict[str, Any]:
    specs = {
        f"layer.{number}": spec_of(case, windowed=number < case["window_layers"]) for number in range(case["layers"])
    }
    config = config_of(case)
    starts = True
    try:
        kv_cache_utils.get_kv_cache_configs(config, [dict(specs)], [case["memory_bytes"]])
    except ValueError:
        starts = False
    groups = kv_cache_utils.get_kv_cache_groups(config, dict(specs))
    plan = kv_cache_utils.get_kv_cache_config_from_groups(config, groups, case["memory_bytes"])
    tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(config, plan)
    return {
        "kv_bytes_per_token": sum(spec.page_size_bytes for spec in specs.values()) // case["block_size"],
        "num_blocks": plan.num_blocks,
        "tokens": tokens,
        "max_concurrency": concurrency,
        "groups": [len(group.layer_names) for group in groups],
        "starts": starts,
    }


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    shapes = {name: shape_of(config) for name, config in asked["configs"].items()}
    print(json.dumps({"configs": shapes, "cases": [answer(case) for case in asked["cases"]]}))
