"""How many users fit on a card: the budget of the card, the KV cache in it, paged against contiguous.

Exact are bytes per token, and blocks for a given memory; what of a card is left for the KV cache is an estimate
wherever it is not given (``Fit.budget`` is there then).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.environment import GIB
from engine.kv.capacity import (
    ASYNCHRONOUS_BATCHES,
    AUTO,
    PACKED_LATENT_BYTES,
    SCALE_BYTES,
    SCALED_ENTRY_BYTES,
    Capacity,
    KvPlan,
    KvSetup,
)
from engine.kv.cards import GPU_BLOCK, RESERVE_GIB, UTILIZATION, Budget, Card, budget, default_batched_tokens
from engine.kv.shape import ModelShape

DEFAULT_LENGTH = 2048
DEFAULT_SEQUENCES = 256


@dataclass(frozen=True)
class Question:
    """What is asked. None is decided from card and model, as vLLM does.

    ``kv_memory_bytes`` gives the KV cache its memory (on each device); else it is what the card has left.
    """

    shape: ModelShape
    weights_bytes: int | None = None
    prompt_tokens: int = 512
    output_tokens: int = 256
    max_model_len: int | None = None
    kv_dtype: str = AUTO
    block_size: int | None = None
    tensor_parallel_size: int = 1
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = UTILIZATION
    reserve_bytes: int = int(RESERVE_GIB * GIB)
    kv_memory_bytes: int | None = None

    @property
    def tokens_each(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class Fit:
    """The answer for one card (None: only the KV cache's memory was given).

    ``capacity`` and users are None where the memory isn't known (the weights are not) or the card refuses the format
    (``refused``: why). ``budget`` is None where the KV cache's memory was given.
    """

    card: Card | None
    plan: KvPlan
    budget: Budget | None = None
    capacity: Capacity | None = None
    paged_users: int | None = None
    contiguous_users: int | None = None
    refused: str | None = None
    memory_given: bool = False

    @property
    def memory_source(self) -> str:
        """Where the KV cache's memory is from, in words."""
        if self.budget is not None:
            return "estimated: what this card has left"
        return "as given" if self.memory_given else "half of this machine's free memory, or what the weights leave"

    @property
    def ratio(self) -> float | None:
        """Paged users for each contiguous one; None where either is unknown or none fits."""
        return self.paged_users / self.contiguous_users if self.paged_users and self.contiguous_users else None

    @property
    def max_num_seqs(self) -> int:
        """How many requests vLLM's server runs at once where nobody says otherwise."""
        return self.card.batch_defaults[1] if self.card else DEFAULT_SEQUENCES


def ask(question: Question, card: Card | None) -> Fit:
    """How many users fit; raises ConfigError for what can't be."""
    plan = KvPlan(question.shape, setup_of(question, card))
    refused = card.refuses(question.kv_dtype) if card else None
    if refused:
        return Fit(card, plan, refused=refused)
    memory, left = kv_memory_of(question, card)
    if memory is None:
        return Fit(card, plan)
    return Fit(
        card,
        plan,
        budget=left,
        capacity=plan.capacity(memory),
        paged_users=plan.paged_users(memory, question.tokens_each),
        contiguous_users=plan.contiguous_users(memory),
        memory_given=question.kv_memory_bytes is not None,
    )


def setup_of(question: Question, card: Card | None) -> KvSetup:
    """How the engine would be started on that card."""
    length = question.max_model_len
    if length is None:
        length = question.shape.max_length or DEFAULT_LENGTH
    return KvSetup(
        max_model_len=length,
        block_size=(card.block_size if card else GPU_BLOCK) if question.block_size is None else question.block_size,
        kv_dtype=question.kv_dtype,
        tensor_parallel_size=question.tensor_parallel_size,
        concurrent_batches=card.concurrent_batches if card else ASYNCHRONOUS_BATCHES,
        max_num_batched_tokens=(
            default_batched_tokens(
                card,
                card.batch_defaults[1] if card else DEFAULT_SEQUENCES,
                max(1, length),
                devices=question.tensor_parallel_size,
            )
            if question.max_num_batched_tokens is None
            else question.max_num_batched_tokens
        ),
    )


def kv_memory_of(question: Question, card: Card | None) -> tuple[int | None, Budget | None]:
    """Bytes for the KV cache, None where unknown; and the budget, where they are what a GPU has left."""
    if question.kv_memory_bytes is not None:
        return question.kv_memory_bytes, None
    if card is None:
        return None, None
    if card.is_cpu:
        return card.cpu_kv_bytes(question.weights_bytes), None
    if question.weights_bytes is None:
        return None, None
    weights = -(-question.weights_bytes // question.tensor_parallel_size)
    left = budget(card.memory_bytes, question.gpu_memory_utilization, weights, question.reserve_bytes)
    return left.kv, left


def formula(plan: KvPlan) -> str:
    """Bytes per token, spelled out with the model's numbers."""
    shape, name = plan.shape, plan.setup.kv_dtype
    if name in PACKED_LATENT_BYTES:
        each = f"{PACKED_LATENT_BYTES[name]} bytes ({name})"
    elif shape.latent:
        each = f"1 latent vector × {shape.head_size} numbers × {_bytes(plan.entry_bytes)}"
    elif name in SCALED_ENTRY_BYTES:
        number = f"{shape.head_size} × {SCALED_ENTRY_BYTES[name]:g} byte + {SCALE_BYTES} bytes of scale"
        each = f"{_heads(plan)} × 2 (key and value) × ({number})"
    else:
        numbers = f"{shape.head_size} numbers × {_bytes(plan.entry_bytes)}"
        each = f"{_heads(plan)} × 2 (key and value) × {numbers}"
    return f"{shape.layers} layers × {each} = {plan.kv_bytes_per_token:,} bytes"


def _heads(plan: KvPlan) -> str:
    return "1 KV head" if plan.kv_heads == 1 else f"{plan.kv_heads} KV heads"


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"
