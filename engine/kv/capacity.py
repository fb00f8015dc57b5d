"""How many tokens and requests a KV cache of a given size holds: vLLM's own arithmetic, without vLLM.

Follows vLLM 0.32: a page is what one layer keeps of one block of tokens (``v1/kv_cache_interface.py``); layers with
the same window form groups that share block tables, and a block is a page of every layer of a group; the pool is
``memory // block`` blocks, of which block 0 is never used; "Maximum concurrency" divides all of them by what one
request of ``max_model_len`` holds in every group (``v1/core/kv_cache_utils.py``: ``get_kv_cache_groups``,
``get_kv_cache_config_from_groups``, ``get_kv_cache_capacity``). A sliding window keeps the window and what may be in
flight (``SlidingWindowSpec.max_admission_blocks_per_request``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from engine.errors import ConfigError
from engine.kv.shape import ModelShape, max_length, read_config

__all__ = ["KV_DTYPES", "Capacity", "KvPlan", "KvSetup", "ModelShape", "max_length", "read_config"]

AUTO = "auto"
# Bytes of a number in the cache; "auto" is what the model computes in.
ENTRY_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
# Bytes of a number, and a float32 scale beside every key and every value vector.
SCALED_ENTRY_BYTES = {"fp8_per_token_head": 1.0, "int8_per_token_head": 1.0, "int4_per_token_head": 0.5}
SCALE_BYTES = 4
# DeepSeek's packed latent vector (512 numbers and their scales, 64 rotary numbers): bytes of a token in a layer.
PACKED_LATENT_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
PACKED_LATENT_SIZE = 512 + 64
KV_DTYPES = (AUTO, *ENTRY_BYTES, *SCALED_ENTRY_BYTES, *PACKED_LATENT_BYTES)
MOST = 2**40
ASYNCHRONOUS_BATCHES = 2
NEARLY_AS_MANY = 1.5
NULL_BLOCKS = 1


@dataclass(frozen=True)
class KvSetup:
    """How the engine is started, as far as the KV cache cares: vLLM's flags. Lengths are tokens.

    ``max_num_batched_tokens`` and ``concurrent_batches`` (2 with asynchronous scheduling, vLLM's default on a GPU)
    matter for sliding windows only.
    """

    max_model_len: int
    block_size: int = 16
    kv_dtype: str = AUTO
    tensor_parallel_size: int = 1
    max_num_batched_tokens: int = 2048
    concurrent_batches: int = ASYNCHRONOUS_BATCHES

    def __post_init__(self) -> None:
        names = ("max_model_len", "block_size", "tensor_parallel_size", "max_num_batched_tokens", "concurrent_batches")
        for name in names:
            value = getattr(self, name)
            if not 1 <= value <= MOST:
                raise ConfigError(f"{name} is {value}.", "Use a whole number of at least 1.")
        if self.kv_dtype not in KV_DTYPES:
            raise ConfigError(
                f"The size of a KV cache in {self.kv_dtype} is not known here.", f"Use one of {', '.join(KV_DTYPES)}."
            )

    @property
    def in_flight_tokens(self) -> int:
        """Tokens that may be scheduled and not settled yet, so that their blocks are still held."""
        return self.concurrent_batches * self.max_num_batched_tokens


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share one block table; ``window`` is tokens, None keeps everything."""

    layers: int
    window: int | None = None

    def blocks_held(self, tokens: int, setup: KvSetup) -> int:
        """Blocks of this group that a request of so many tokens holds at most."""
        if self.window is None:
            return _ceil(tokens, setup.block_size)
        kept = min(self.window - 1 + setup.in_flight_tokens, tokens)
        # One more: the window need not begin where a block begins.
        return _ceil(kept, setup.block_size) + 1


@dataclass(frozen=True)
class Capacity:
    """What a memory of ``memory_bytes`` holds, on one device.

    ``num_blocks``, ``tokens`` and ``max_concurrency`` are what vLLM says at its start ("KV cache size", "Maximum
    concurrency"). ``usable_blocks`` leaves out the null block. ``starts``: vLLM accepts ``max_model_len``; else
    ``longest_len`` is the longest that it would, None where not even one token fits.
    """

    memory_bytes: int
    num_blocks: int
    usable_blocks: int
    tokens: int
    max_concurrency: float
    starts: bool
    longest_len: int | None


@dataclass(frozen=True)
class KvPlan:
    """A model's KV cache under a setup. All sizes are those on one device.

    Raises ConfigError for a format that this attention does not have, and for heads that can't be divided.
    """

    shape: ModelShape
    setup: KvSetup

    def __post_init__(self) -> None:
        parts, shape = self.setup.tensor_parallel_size, self.shape
        if shape.query_heads is not None and shape.query_heads % parts:
            raise ConfigError(
                f"{shape.query_heads} attention heads can't be divided among {parts} devices.",
                "Choose a number of devices that divides them.",
            )
        if not shape.latent and shape.kv_heads % parts and parts % shape.kv_heads:
            raise ConfigError(
                f"{shape.kv_heads} KV heads can't be divided among {parts} devices.",
                "Choose a number of devices that divides them, or a multiple of them.",
            )
        longest = shape.max_length
        if longest is not None and self.setup.max_model_len > longest:
            raise ConfigError(
                f"max_model_len is {self.setup.max_model_len:,}, and this model takes at most {longest:,} tokens.",
                f"Set max_model_len to {longest} or less.",
            )
        self._check_format()

    def _check_format(self) -> None:
        shape, name = self.shape, self.setup.kv_dtype
        if name in PACKED_LATENT_BYTES and not (shape.latent and shape.head_size == PACKED_LATENT_SIZE):
            raise ConfigError(
                f"{name} is a format for DeepSeek's latent attention ({PACKED_LATENT_SIZE} numbers a token).",
                "Choose auto or fp8.",
            )
        if name in SCALED_ENTRY_BYTES and shape.latent:
            raise ConfigError(f"vLLM has no {name} for latent attention.", "Choose auto or fp8.")
        if name == "int4_per_token_head" and shape.head_size % 2:
            raise ConfigError(f"{name} needs an even head size, not {shape.head_size}.", "Choose another format.")

    @property
    def kv_heads(self) -> int:
        """KV heads on one device: divided, but never fewer than one."""
        return 1 if self.shape.latent else max(1, self.shape.kv_heads // self.setup.tensor_parallel_size)

    @property
    def layer_bytes_per_token(self) -> int:
        """Bytes that one layer keeps of one token, scales included."""
        name, head = self.setup.kv_dtype, self.shape.head_size
        if name in PACKED_LATENT_BYTES:
            return PACKED_LATENT_BYTES[name]
        if name in SCALED_ENTRY_BYTES:
            return self.kv_heads * 2 * (int(head * SCALED_ENTRY_BYTES[name]) + SCALE_BYTES)
        return self.vectors * head * self.entry_bytes

    @property
    def vectors(self) -> int:
        """Vectors of the head size that one layer keeps of a token."""
        return 1 if self.shape.latent else 2 * self.kv_heads

    @property
    def entry_bytes(self) -> int:
        """Bytes of one number, where there are no scales."""
        return ENTRY_BYTES.get(self.setup.kv_dtype, self.shape.dtype_bytes)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that all layers keep of one token (while it is within their windows)."""
        return self.shape.layers * self.layer_bytes_per_token

    @property
    def page_bytes(self) -> int:
        """One layer's part of a block."""
        return self.layer_bytes_per_token * self.setup.block_size

    @cached_property
    def groups(self) -> tuple[LayerGroup, ...]:
        """Layers that share a block table, as vLLM's ``_get_kv_cache_groups_uniform_page_size`` forms them."""
        shape = self.shape
        kinds = [(shape.layers - shape.window_layers, None), (shape.window_layers, shape.window)]
        kinds = [(layers, window) for layers, window in kinds if layers]
        counts = [layers for layers, _ in kinds]
        size = max(counts) if max(counts) < NEARLY_AS_MANY * min(counts) else min(counts)
        groups: list[LayerGroup] = []
        for layers, window in kinds:
            parts = _ceil(layers, size)
            groups += [LayerGroup(len(range(part, layers, parts)), window) for part in range(parts)]
        return tuple(groups)

    @property
    def block_bytes(self) -> int:
        """What one block takes: a page of every layer of the widest group."""
        return self.page_bytes * max(group.layers for group in self.groups)

    def blocks_held(self, tokens: int) -> int:
        """Blocks that a request holds at most by the time it has so many tokens."""
        whole = _ceil(tokens, self.setup.block_size)
        return sum(min(whole, group.blocks_held(tokens, self.setup)) for group in self.groups)

    @property
    def blocks_per_request(self) -> int:
        """Blocks that vLLM plans for a request of ``max_model_len``."""
        return self._planned(self.setup.max_model_len)

    def _planned(self, length: int) -> int:
        return sum(group.blocks_held(length, self.setup) for group in self.groups)

    def capacity(self, memory_bytes: int) -> Capacity:
        """What a KV cache of so many bytes a device holds."""
        if memory_bytes < 0:
            raise ConfigError(f"A KV cache of {memory_bytes:,} bytes can't be.", "Give it memory.")
        blocks = memory_bytes // self.block_bytes
        concurrency = blocks / self.blocks_per_request
        usable = max(0, blocks - NULL_BLOCKS)
        return Capacity(
            memory_bytes=memory_bytes,
            num_blocks=blocks,
            usable_blocks=usable,
            tokens=int(concurrency * self.setup.max_model_len),
            max_concurrency=concurrency,
            starts=self._starts(self.setup.max_model_len, memory_bytes),
            longest_len=self._longest(memory_bytes),
        )

    def _starts(self, length: int, memory_bytes: int) -> bool:
        """Whether one request of that length fits beside the null block; else vLLM refuses to start."""
        return self._planned(length) * self.block_bytes <= memory_bytes - NULL_BLOCKS * self.block_bytes

    def _longest(self, memory_bytes: int) -> int | None:
        """The longest length up to ``max_model_len`` that vLLM would start with."""
        low, high = 0, self.setup.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._starts(middle, memory_bytes) else (low, middle - 1)
        return low or None

    def paged_users(self, memory_bytes: int, tokens_each: int) -> int:
        """Requests of so many tokens that fit at once, every one at its full length. Nothing shared."""
        self._check_length(tokens_each)
        usable = max(0, memory_bytes // self.block_bytes - NULL_BLOCKS)
        return usable // self.blocks_held(tokens_each)

    def contiguous_users(self, memory_bytes: int) -> int:
        """Requests that fit where each reserves ``max_model_len`` in one piece. No fragmentation counted."""
        return memory_bytes // self.contiguous_bytes

    @property
    def contiguous_bytes(self) -> int:
        """What one reservation takes; a layer with a window reserves no more than its window."""
        length, shape = self.setup.max_model_len, self.shape
        windowed = min(length, shape.window or length) * shape.window_layers
        return (length * (shape.layers - shape.window_layers) + windowed) * self.layer_bytes_per_token

    def _check_length(self, tokens: int) -> None:
        if tokens < 1:
            raise ConfigError(f"A request of {tokens} tokens can't be.", "Use at least 1.")
        if tokens > self.setup.max_model_len:
            raise ConfigError(
                f"Prompt and output are {tokens:,} tokens, and max_model_len is {self.setup.max_model_len:,}.",
                "Shorten them, or raise max_model_len.",
            )


def _ceil(value: int, part: int) -> int:
    return -(-value // part)
