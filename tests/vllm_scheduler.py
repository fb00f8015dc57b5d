"""vLLM's own V1 scheduler, run without a model: cases as JSON on standard input, what it did in each step on standard output.

A process of its own, since it imports vLLM and torch. Prompts are computed in one step (a large token budget), as in
the simulation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

LONGEST = 2048
TOKENS_PER_REQUEST = 5000
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "max_position_embeddings": LONGEST,
    "vocab_size": 100,
}


def make_scheduler(case: dict[str, Any], model: str) -> Scheduler:
    page, blocks = case["block_size"], case["blocks"] + 1  # and the null block
    config = VllmConfig(
        model_config=ModelConfig(model=model, dtype="float32", seed=0, max_model_len=LONGEST, skip_tokenizer_init=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=case["max_num_seqs"],
            max_num_batched_tokens=100_000,
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            async_scheduling=False,
            watermark=case["watermark"],
        ),
        cache_config=CacheConfig(block_size=page, enable_prefix_caching=case["caching"]),
    )
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=page, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        block_size=page,
        structured_output_manager=StructuredOutputManager(config),
    )


def run(case: dict[str, Any], model: str) -> list[dict[str, Any]]:
    """One entry a step: counts, free blocks, and the block table of every running request (ids from 0)."""
    scheduler = make_scheduler(case, model)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(case["block_size"], sha256)
    coming = list(case["requests"])
    steps: list[dict[str, Any]] = []
    preempted = 0
    while coming or scheduler.has_unfinished_requests():
        while coming and coming[0]["arrival"] <= len(steps):
            scheduler.add_request(make_request(coming.pop(0), hasher))
        output = scheduler.schedule()
        preempted += len(output.preempted_req_ids or ())
        manager = scheduler.kv_cache_manager
        steps.append(
            {
                "running": len(scheduler.running),
                "waiting": len(scheduler.waiting),
                "preempted": preempted,
                "free": manager.block_pool.get_num_free_blocks(),
                "tables": {
                    request.request_id: [block - 1 for block in manager.get_block_ids(request.request_id)[0]]
                    for request in scheduler.running
                },
            }
        )
        ids = list(output.num_scheduled_tokens)
        sampled = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: number for number, name in enumerate(ids)},
            sampled_token_ids=[[7] for _ in ids],
        )
        scheduler.update_from_output(output, sampled)
    return steps


def make_request(values: dict[str, Any], hasher: Any) -> Request:
    shared = [values["prefix"] * TOKENS_PER_REQUEST + number for number in range(values["prefix_tokens"])]
    first = 10_000_000 + values["index"] * TOKENS_PER_REQUEST
    own = [first + number for number in range(values["prompt"] - values["prefix_tokens"])]
    return Request(
        request_id=str(values["index"]),
        prompt_token_ids=shared + own,
        sampling_params=SamplingParams(ignore_eos=True, max_tokens=values["output"]),
        pooling_params=None,
        block_hasher=hasher,
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "config.json").write_text(json.dumps(MODEL))
    json.dump([run(case, str(folder)) for case in json.load(sys.stdin)], sys.stdout)
