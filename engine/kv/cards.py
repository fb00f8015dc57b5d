"""GPUs people ask about, and what of their memory is left for the KV cache.

``memory_mib`` is what ``nvidia-smi`` shows as the card's total; the batch defaults are those of vLLM 0.32's server
(``engine/arg_utils.py``, ``get_batch_defaults``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.config import Device
from engine.environment import GIB, Hardware
from engine.errors import ConfigError
from engine.kv.capacity import ASYNCHRONOUS_BATCHES, KvSetup
from engine.vllm_facts import BF16_CAPABILITY, DEFAULT_CPU_BLOCK, most_cpu_kv_gib

MIB = 1024**2
GPU_BLOCK = 16
THIS = "this"
# v1/attention/backends/cpu_attn.py, and what "auto" stands for.
CPU_KV_DTYPES = frozenset({"auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2"})
# vLLM's own default.
UTILIZATION = 0.92
# Activations of the largest batch, CUDA context, NCCL and graphs: measured by vLLM at its start, assumed here.
RESERVE_GIB = 2.0
LARGE_BYTES, HUGE_BYTES = 70 * GIB, 160 * GIB


@dataclass(frozen=True)
class Card:
    """One GPU, or this machine's memory where it has none: ``free_bytes`` of it are free, None for a GPU."""

    key: str
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None
    free_bytes: int | None = None

    @property
    def is_cpu(self) -> bool:
        return self.free_bytes is not None

    @property
    def block_size(self) -> int:
        """Tokens a block has where nobody says otherwise."""
        return DEFAULT_CPU_BLOCK if self.is_cpu else GPU_BLOCK

    @property
    def batch_defaults(self) -> tuple[int, int]:
        """``max_num_batched_tokens`` and ``max_num_seqs`` of vLLM's server on this card."""
        if self.is_cpu:
            return 2048, 128
        if self.memory_bytes >= HUGE_BYTES:
            return 16384, 1024
        if self.memory_bytes >= LARGE_BYTES and "a100" not in self.name.lower():
            return 8192, 1024
        return 2048, 256

    @property
    def concurrent_batches(self) -> int:
        """Steps that may be in flight: two with asynchronous scheduling, which a CPU has not (``platforms/cpu.py``)."""
        return 1 if self.is_cpu else ASYNCHRONOUS_BATCHES

    def cpu_kv_bytes(self, weights_bytes: int | None) -> int:
        """Whole GiB for the KV cache of a CPU server: half of the free memory, less where the weights need more."""
        return most_cpu_kv_gib(self.free_bytes or 0, weights_bytes or 0) * GIB

    def refuses(self, kv_dtype: str) -> str | None:
        """Why vLLM does not take this KV-cache format here; None where it may."""
        if self.is_cpu and kv_dtype not in CPU_KV_DTYPES:
            return f"vLLM's CPU build has no KV cache in {kv_dtype}."
        old = self.compute_capability is not None and self.compute_capability < BF16_CAPABILITY
        return f"{self.name} has no fp8 KV cache in vLLM." if old and kv_dtype.startswith("fp8") else None


CARDS = (
    Card("t4", "T4 16 GB", 15_360 * MIB, (7, 5)),
    Card("l4", "L4 24 GB", 23_034 * MIB, (8, 9)),
    Card("a100-40", "A100 40 GB", 40_960 * MIB, (8, 0)),
    Card("a100-80", "A100 80 GB", 81_920 * MIB, (8, 0)),
    Card("h100", "H100 80 GB", 81_559 * MIB, (9, 0)),
    Card("h200", "H200 141 GB", 143_771 * MIB, (9, 0)),
)


@dataclass(frozen=True)
class Budget:
    """Where one card's memory goes, bytes: ``requested`` is vLLM's share, ``kv`` what is left of it (not below 0)."""

    requested: int
    weights: int
    reserve: int

    @property
    def kv(self) -> int:
        return max(0, self.requested - self.weights - self.reserve)

    @property
    def fits(self) -> bool:
        return self.requested > self.weights + self.reserve


def budget(memory_bytes: int, utilization: float, weights_bytes: int, reserve_bytes: int) -> Budget:
    """``ceil(total · gpu_memory_utilization)`` less weights and reserve: vLLM's ``request_memory`` and
    ``determine_available_memory`` (``v1/worker``), where the reserve is what it measures. Raises ConfigError."""
    if not 0 < utilization <= 1:
        raise ConfigError(f"gpu_memory_utilization is {utilization}.", "Use a share above 0, up to 1.")
    if weights_bytes < 0 or reserve_bytes < 0:
        raise ConfigError("Weights and reserve can't be below 0.", "Give their size in GiB.")
    return Budget(math.ceil(memory_bytes * utilization), weights_bytes, reserve_bytes)


def default_batched_tokens(
    card: Card | None, max_num_seqs: int, max_model_len: int, *, devices: int = 1, chunked: bool = True
) -> int:
    """``max_num_batched_tokens`` (tokens) where nobody says otherwise; ``devices`` share one copy of the model.

    As ``_set_default_max_num_seqs_and_batched_tokens_args`` in vLLM 0.32's ``engine/arg_utils.py``. No card: unknown.
    """
    tokens = card.batch_defaults[0] if card else KvSetup.max_num_batched_tokens
    if card and card.is_cpu:
        tokens *= devices
    if not chunked:
        tokens = max(tokens, max_model_len)
    return min(tokens, max_num_seqs * max_model_len)


def this_machine(hardware: Hardware) -> Card | None:
    """The first GPU, else the RAM; None where a GPU's memory is not known."""
    if hardware.device == Device.CPU:
        free = hardware.ram_available_bytes
        return Card(THIS, "This machine (CPU)", hardware.ram_total_bytes, free_bytes=free)
    gpu = hardware.gpus[0] if hardware.gpus else None
    if gpu is None or gpu.memory_total_bytes is None:
        return None
    return Card(THIS, f"This machine ({gpu.name or 'GPU'})", gpu.memory_total_bytes, gpu.compute_capability)


def find_card(key: str, hardware: Hardware) -> Card:
    """A card by its key, "this" for this machine; raises ConfigError."""
    cards = {card.key: card for card in CARDS}
    mine = this_machine(hardware) if key == THIS else None
    if found := mine or cards.get(key):
        return found
    raise ConfigError(f"The memory of card {key!r} is not known.", f"Use one of {', '.join((*cards, THIS))}.")
