"""What vLLM takes and needs, as far as more than one part of the lab has to know it."""

from __future__ import annotations

from engine.environment import GIB

MODULE = "vllm.entrypoints.openai.api_server"
# Compute capability from which on a GPU computes in bfloat16, and in fp8 where vLLM has it.
BF16_CAPABILITY = (8, 0)
# vLLM's own is 128 tokens, which a short conversation never fills.
DEFAULT_CPU_BLOCK = 32
# RAM that the KV cache may take of what is free: weights, the engine's own memory and the baseline need the rest.
RAM_SHARE_FOR_KV = 0.5


def most_cpu_kv_gib(free_bytes: int, weights_bytes: int = 0) -> int:
    """Whole GiB that the KV cache of a CPU server may take of the free memory: half of it, and one where one is free.

    vLLM takes whole GiB. ``weights_bytes``, where they are not loaded yet, must fit beside it.
    """
    beside_gib = max(0, free_bytes - weights_bytes) // GIB
    return min(max(1, int(free_bytes * RAM_SHARE_FOR_KV) // GIB), beside_gib)
