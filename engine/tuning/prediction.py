"""What a restart will do, before it: KV cache, requests at once, time; and, after it, how right that was.

The KV cache follows from the command that would be started (``build_launch``) and vLLM's own arithmetic
(``engine.kv.capacity``). It is exact wherever the cache's memory is given, as it always is on a CPU. On a GPU vLLM
measures what is left: that is estimated, from the server that runs where it has the same weights on the same devices,
else from a usual reserve.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from engine.config import Device, ServerConfig
from engine.environment import GIB, Hardware
from engine.errors import ConfigError, LabError
from engine.kv.capacity import Capacity, KvPlan, KvSetup, ModelShape
from engine.kv.cards import RESERVE_GIB, Card, budget, default_batched_tokens, this_machine
from engine.models import ModelSource
from engine.server.command import DTYPE_BYTES, Launch, build_launch, resolved_dtype, uses_eager
from engine.server.processes import group_members, proportional_bytes
from engine.server.state import KvCapacity, Phase, ServerSnapshot
from engine.server.supervisor import history_key
from engine.store import RunStore

PORT = 8000
CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
# Bytes of a number in nearly every checkpoint.
CHECKPOINT_BYTES = 2
GUESSED_RESERVE = int(RESERVE_GIB * GIB)
NOT_HERE = "The model is not on this machine yet: its KV cache is not known before it is downloaded."
EAGER = "Eager: no compiling and no graphs at the start."
COMPILED = "Compiled: the warm-up compiles the model"
NO_EXPERIENCE = "how long it takes here is not known yet."


@dataclass(frozen=True)
class Refusal:
    """Why a configuration can't start, and what to do."""

    cause: str
    remedy: str


@dataclass(frozen=True)
class Prediction:
    """What a start with ``config`` will do on this machine; None where it is not known.

    Sizes are those on one device: bytes, blocks, tokens. ``max_concurrency``: requests of full length that fit at once
    (vLLM's "Maximum concurrency"); ``requests_at_once``: that, at most ``max_num_seqs``, at least one.
    ``exact`` is False where the KV cache's memory is an estimate, and ``memory_words`` say where it is from.
    ``phases_s`` are the median seconds of each phase of earlier starts in this mode, ``restart_s`` their sum.
    """

    config: ServerConfig | None = None
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    exact: bool = False
    memory_words: str = ""
    kv_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    block_size: int | None = None
    block_bytes: int | None = None
    num_blocks: int | None = None
    tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    dtype: str | None = None
    eager: bool | None = None
    warm_up_words: str = ""
    phases_s: Mapping[str, float] | None = None
    command: str = ""

    @property
    def starts(self) -> bool:
        return not self.refusals

    @property
    def restart_s(self) -> float | None:
        return sum(self.phases_s.values()) if self.phases_s else None

    @property
    def requests_at_once(self) -> int | None:
        """Of full length; shorter ones share the same memory, so that more of them fit."""
        if self.max_concurrency is None or self.config is None:
            return None
        return min(self.config.max_num_seqs, max(1, int(self.max_concurrency)))

    def to_dict(self) -> dict[str, Any]:
        values = asdict(replace(self, config=None))
        del values["config"]
        return values | {"starts": self.starts, "restart_s": self.restart_s, "requests_at_once": self.requests_at_once}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from ``to_dict``, but for ``config``; unknown names (a newer version's) are ignored."""
        known = {one.name for one in fields(cls)} - {"config", "refusals", "warnings"}
        return cls(
            refusals=tuple(Refusal(**one) for one in values.get("refusals") or ()),
            warnings=tuple(values.get("warnings") or ()),
            **{name: value for name, value in values.items() if name in known},
        )


@dataclass(frozen=True)
class Outcome:
    """One number, predicted and as the server said it. ``off_pct``: by how much the prediction was off, with sign."""

    name: str
    label: str
    unit: str
    predicted: float | int | None
    actual: float | int | None

    @property
    def off_pct(self) -> float | None:
        if self.predicted is None or not self.actual:
            return None
        return 100 * (self.predicted - self.actual) / self.actual


@dataclass(frozen=True)
class Known:
    """What a prediction is made from.

    ``running``: a server that is ready now; ``held_bytes``: the RAM it gives back; ``compiled``: the folder that keeps
    what torch.compile makes.
    """

    hardware: Hardware
    source: ModelSource | None
    store: RunStore
    running: ServerSnapshot | None = None
    held_bytes: int = 0
    compiled: Path | None = None

    @property
    def hardware_then(self) -> Hardware:
        """As it will be when the server that runs has ended."""
        return replace(self.hardware, ram_available_bytes=self.hardware.ram_available_bytes + self.held_bytes)


def launch_of(config: ServerConfig, known: Known) -> Launch | None:
    """What would be started, without a key; None where the model is not here. Raises a LabError for what can't be."""
    if known.source is None:
        return None
    port, compiled = config.port or PORT, known.compiled
    return build_launch(config, known.hardware_then, known.source, port=port, api_key="", compiled=compiled)


def known_now(hardware: Hardware, source: ModelSource | None, store: RunStore, snapshot: ServerSnapshot) -> Known:
    """What there is to know at this moment; asks the server's processes for their memory."""
    ours = snapshot.ready and not snapshot.attached
    held = None
    if ours and snapshot.pid and hardware.device == Device.CPU:
        held = proportional_bytes(group_members(snapshot.pid))
    return Known(hardware, source, store, snapshot if ours else None, held or 0)


def start_history(store: RunStore, config: ServerConfig, hardware: Hardware) -> Mapping[str, float] | None:
    """Median seconds of each phase over earlier starts of this model in this mode; None without any."""
    mode = uses_eager(config, hardware)
    for eager in (config.enforce_eager, mode, None):
        asked = replace(config, enforce_eager=eager)
        with contextlib.suppress(LabError):  # history is a comfort, not a condition
            if uses_eager(asked, hardware) == mode and (found := store.expected_start(history_key(asked))):
                return found
    return None


def predict(base: ServerConfig, changes: Mapping[str, Any], known: Known) -> Prediction:
    """What a start of ``base`` with these settings changed will do; never raises for what can't start: it refuses."""
    try:
        config = replace(base, **changes)
    except ConfigError as error:
        return Prediction(refusals=(Refusal(error.cause, error.remedy),))
    prediction = Prediction(config=config, phases_s=start_history(known.store, config, known.hardware))
    if known.source is None:
        return replace(prediction, warnings=(NOT_HERE,))
    try:
        return _predict(prediction, config, known, known.source)
    except LabError as error:
        return replace(prediction, refusals=(Refusal(error.cause, error.remedy),))


def _predict(prediction: Prediction, config: ServerConfig, known: Known, source: ModelSource) -> Prediction:
    hardware, launch = known.hardware_then, launch_of(config, known)
    assert launch is not None
    dtype, eager = resolved_dtype(config, hardware, source), uses_eager(config, hardware)
    card = this_machine(hardware)
    prediction = replace(
        prediction,
        dtype=dtype,
        eager=eager,
        warm_up_words=_warm_up_words(eager, prediction.phases_s),
        command=launch.shell_line(),
    )
    try:
        plan = _plan(config, source, dtype, card)
    except ConfigError as error:
        # vLLM may well serve what is not reckoned here.
        return replace(prediction, warnings=(f"{error.cause} What a restart does to it is not predicted.",))
    refusals, warnings = _scheduler(config, plan.setup, card)
    memory, exact, words = _memory(config, plan, launch, known, source, card)
    prediction = replace(
        prediction,
        refusals=refusals,
        warnings=warnings,
        exact=exact,
        memory_words=words,
        kv_bytes=memory,
        kv_bytes_per_token=plan.kv_bytes_per_token,
        block_size=plan.setup.block_size,
        block_bytes=plan.block_bytes,
        max_model_len=plan.setup.max_model_len,
        max_num_batched_tokens=plan.setup.max_num_batched_tokens,
    )
    return prediction if memory is None else _with_capacity(prediction, plan, plan.capacity(memory))


def _with_capacity(prediction: Prediction, plan: KvPlan, capacity: Capacity) -> Prediction:
    prediction = replace(
        prediction,
        num_blocks=capacity.num_blocks,
        tokens=capacity.tokens,
        max_concurrency=capacity.max_concurrency,
    )
    if capacity.starts:
        return prediction
    length, needed = plan.setup.max_model_len, plan.blocks_per_request
    cause = (
        f"One request of {length:,} tokens needs {needed:,} KV blocks, and {capacity.memory_bytes / GIB:.1f} GiB hold "
        f"{capacity.usable_blocks:,}."
    )
    less = f"Set max_model_len to {capacity.longest_len:,} or less" if capacity.longest_len else "Use a smaller model"
    remedy = f"{less}, or give the KV cache more memory."
    if prediction.exact:
        return replace(prediction, refusals=(*prediction.refusals, Refusal(cause, remedy)))
    return replace(prediction, warnings=(*prediction.warnings, f"It may not start. {cause} {remedy}"))


def _plan(config: ServerConfig, source: ModelSource, dtype: str, card: Card | None) -> KvPlan:
    shape = ModelShape.from_config_file(source.path / "config.json", DTYPE_BYTES[dtype])
    stages = config.pipeline_parallel_size
    if stages > 1 and shape.window_layers:
        raise ConfigError("Layers with sliding windows are dealt out among pipeline stages.", "")
    # The stage with the most layers has the fewest blocks, and vLLM gives that many to all.
    return KvPlan(replace(shape, layers=-(-shape.layers // stages)), _setup(config, shape, card))


def _setup(config: ServerConfig, shape: ModelShape, card: Card | None) -> KvSetup:
    length = config.max_model_len or shape.max_length or KvSetup.max_num_batched_tokens
    parts = config.tensor_parallel_size * config.pipeline_parallel_size
    block = config.block_size or (card.block_size if card else KvSetup.block_size)
    return KvSetup(
        max_model_len=length,
        block_size=block,
        kv_dtype=config.kv_cache_dtype,
        tensor_parallel_size=config.tensor_parallel_size,
        max_num_batched_tokens=config.max_num_batched_tokens
        or default_batched_tokens(
            card, config.max_num_seqs, length, devices=parts, chunked=config.enable_chunked_prefill is not False
        ),
        concurrent_batches=card.concurrent_batches if card else KvSetup.concurrent_batches,
    )


def _scheduler(config: ServerConfig, setup: KvSetup, card: Card | None) -> tuple[tuple[Refusal, ...], tuple[str, ...]]:
    """What vLLM's scheduler refuses (``config/scheduler.py``, ``verify_max_model_len``), and what it warns of."""
    batched, refusals, warnings = setup.max_num_batched_tokens, [], []
    if batched < config.max_num_seqs:
        refusals.append(
            Refusal(
                f"max_num_batched_tokens would be {batched:,}, which is below max_num_seqs ({config.max_num_seqs:,}).",
                "Every running sequence needs at least one token per step: set the first, or lower the second.",
            )
        )
    if config.enable_chunked_prefill is False:
        if batched < setup.max_model_len:
            refusals.append(
                Refusal(
                    f"Without chunked prefill a prompt of {setup.max_model_len:,} tokens must fit into one step of "
                    f"{batched:,}.",
                    "Raise max_num_batched_tokens, lower max_model_len, or let prefill be chunked.",
                )
            )
        warnings.append("vLLM does not officially support switching chunked prefill off.")
    if config.max_num_batched_tokens and batched > config.max_num_seqs * setup.max_model_len:
        warnings.append("A step may hold more tokens than all requests together can have: no step will ever be full.")
    if card is not None and (refused := card.refuses(config.kv_cache_dtype)):
        refusals.append(Refusal(refused, "Set kv_cache_dtype to auto."))
    return tuple(refusals), tuple(warnings)


def _memory(
    config: ServerConfig, plan: KvPlan, launch: Launch, known: Known, source: ModelSource, card: Card | None
) -> tuple[int | None, bool, str]:
    """Bytes of the KV cache on one device, whether that is exact, and where it is from."""
    if CPU_SPACE in launch.env:
        gib = int(launch.env[CPU_SPACE])
        if config.kv_cache_gib is None and gib < _wanted_gib(config, plan):
            return gib * GIB, False, "half of the RAM that will be free, which changes from moment to moment"
        return gib * GIB, True, "as asked for" if config.kv_cache_gib else "room for every request at full length"
    if config.kv_cache_gib is not None:
        return config.kv_cache_gib * GIB, True, "as asked for"
    total = card.memory_bytes if card else None
    if total is None:
        return None, False, "the GPU does not tell its memory"
    if (other := _other_than_kv(config, known, total)) is not None:
        requested = budget(total, config.gpu_memory_utilization, 0, 0).kv
        return max(0, requested - other), False, "estimated from what the running server needs beside its KV cache"
    if source.weights_bytes is None:
        return None, False, "the size of the weights is not known"
    weights = -(-source.weights_bytes // (config.tensor_parallel_size * config.pipeline_parallel_size))
    left = budget(total, config.gpu_memory_utilization, weights, GUESSED_RESERVE)
    return left.kv, False, f"estimated: what weights and a reserve of {RESERVE_GIB:g} GiB leave"


def _wanted_gib(config: ServerConfig, plan: KvPlan) -> int:
    """What ``kv_space_gib`` gives where there is RAM enough."""
    blocks = -(-plan.setup.max_model_len // plan.setup.block_size)
    per_request = blocks * plan.setup.block_size * plan.shape.kv_bytes_per_token
    return -(-per_request * config.max_num_seqs // GIB)


def _other_than_kv(config: ServerConfig, known: Known, total: int) -> int | None:
    """What the running server has beside its KV cache on a GPU, with other weights where the number format is another.

    None where it says nothing about this one: another model, otherwise spread, or with its cache's memory given.
    """
    running = known.running.config if known.running else None
    if known.running is None or running is None or running.kv_cache_gib is not None:
        return None
    same = ("model", "tensor_parallel_size", "pipeline_parallel_size")
    if any(getattr(running, name) != getattr(config, name) for name in same):
        return None
    source, blocks = known.running.source, known.running.capacity.num_blocks
    if source is None or blocks is None:
        return None
    with contextlib.suppress(LabError):
        before, after = (resolved_dtype(one, known.hardware, source) for one in (running, config))
        plan = _plan(running, source, before, this_machine(known.hardware))
        requested = budget(total, running.gpu_memory_utilization, 0, 0).kv
        weights = source.weights_bytes or 0
        devices = config.tensor_parallel_size * config.pipeline_parallel_size
        more = weights * (DTYPE_BYTES[after] - DTYPE_BYTES[before]) // (CHECKPOINT_BYTES * devices)
        return requested - blocks * plan.block_bytes + more
    return None


def _warm_up_words(eager: bool, starts: Mapping[str, float] | None) -> str:
    if eager:
        return EAGER
    warm_up_s = (starts or {}).get(Phase.WARM_UP.value)
    return f"{COMPILED}; {NO_EXPERIENCE}" if warm_up_s is None else f"{COMPILED} ({warm_up_s:.0f} s at earlier starts)."


def outcomes(prediction: Prediction, actual: KvCapacity) -> tuple[Outcome, ...]:
    """Predicted against what the started server says at ``/metrics`` (``vllm:cache_config_info``) and in its log."""
    bytes_each = prediction.block_bytes
    actual_bytes = actual.num_blocks * bytes_each if actual.num_blocks is not None and bytes_each else None
    predicted_bytes = prediction.num_blocks * bytes_each if prediction.num_blocks is not None and bytes_each else None
    return (
        Outcome("kv_bytes", "KV cache", "bytes", predicted_bytes, actual_bytes),
        Outcome("block_size", "Block size", "tokens", prediction.block_size, actual.block_size),
        Outcome("num_blocks", "Blocks", "blocks", prediction.num_blocks, actual.num_blocks),
        Outcome("tokens", "Tokens", "tokens", prediction.tokens, actual.tokens),
        Outcome("max_concurrency", "Full-length requests", "×", prediction.max_concurrency, actual.max_concurrency),
    )
