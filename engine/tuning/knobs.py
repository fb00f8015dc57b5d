"""Every knob of the server as data: its values on this machine with this model, and what it trades.

Only what the installed vLLM takes is offered: its options, KV-cache formats and attention backends are read from its
sources (``installed_options``, ``accepted_words``). A knob that has no choice here says why (``refused``).
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from engine.config import DTYPES, Device, ServerConfig
from engine.environment import GIB, Hardware
from engine.errors import ConfigError
from engine.kv.cards import this_machine
from engine.kv.shape import ModelShape
from engine.server.command import block_sizes, installed_options
from engine.vllm_facts import BF16_CAPABILITY, RAM_SHARE_FOR_KV

Value = int | float | bool | str | None
AUTO = "auto"
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CPU_MOST_SEQUENCES = 256
BATCHED_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
MEMORY_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95)
KV_GIB = (1, 2, 4, 8, 16, 32, 64, 128)
# Backends for keys and values of every token, of those that vLLM lists, in the order people should try them.
GPU_BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")
NEEDS_AMPERE = frozenset({"FLASH_ATTN"})
KV_DTYPES = (AUTO, "fp8", "fp8_e5m2")
SIZES = (1, 2, 4, 8, 16, 32, 64)
SOURCES = {"CacheDType": "config/cache.py", "AttentionBackendEnum": "v1/attention/backends/registry.py"}


@dataclass(frozen=True)
class Knob:
    """One setting of ``ServerConfig`` that restarts the server.

    ``values`` are those to offer, in order; None stands for ``automatic`` (what the lab or vLLM then does, in words).
    ``named`` are values that have words of their own. ``trades`` is one sentence. ``refused`` says why there is
    nothing to choose here; empty where there is.
    """

    name: str
    label: str
    flag: str
    trades: str
    unit: str = ""
    values: tuple[Value, ...] = ()
    automatic: str = ""
    named: tuple[tuple[Value, str], ...] = ()
    refused: str = ""

    @property
    def offered(self) -> bool:
        return not self.refused

    @property
    def is_number(self) -> bool:
        """Whether its values have an order, so that a slider fits."""
        given = [value for value in self.values if value is not None]
        return bool(given) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in given)

    def with_value(self, value: Value) -> Knob:
        """The same knob, certain to offer this value too (what runs now, say)."""
        if value in self.values or not self.offered:
            return self
        numbers = [one for one in (*self.values, value) if one is not None]
        added = tuple(sorted(numbers)) if self.is_number and value is not None else tuple(numbers)
        return replace(self, values=((None,) if None in (*self.values, value) else ()) + added)

    def show(self, value: Value) -> str:
        """A value in words."""
        if value is None:
            return self.automatic or "automatic"
        for one, words in self.named:
            if one is value:
                return words
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, str):
            return value
        unit = self.unit.removesuffix("s") if value == 1 else self.unit
        return f"{value:,g} {unit}".strip() if isinstance(value, float) else f"{value:,} {unit}".strip()


KNOBS = (
    Knob(
        "max_model_len",
        "Context length",
        "--max-model-len",
        "Longer prompts and answers, for fewer requests that are certain to fit at once.",
        "tokens",
        automatic="the model's own",
    ),
    Knob(
        "max_num_seqs",
        "Requests at once",
        "--max-num-seqs",
        "More requests share each step: more tokens per second in all, each of them slower; the rest waits.",
        "requests",
    ),
    Knob(
        "gpu_memory_utilization",
        "GPU memory share",
        "--gpu-memory-utilization",
        "More KV cache, so more tokens at once, and less room for other programs and for peaks.",
    ),
    Knob(
        "kv_cache_gib",
        "KV cache",
        "--kv-cache-memory-bytes",
        "More tokens at once before requests must wait or are preempted, for memory that nothing else can use.",
        "GiB",
        automatic="as much as the settings need",
    ),
    Knob(
        "max_num_batched_tokens",
        "Tokens per step",
        "--max-num-batched-tokens",
        "A larger step reads long prompts sooner (TTFT), and makes those who are being answered wait longer (ITL).",
        "tokens",
        automatic="vLLM's own",
    ),
    Knob(
        "block_size",
        "KV block size",
        "--block-size",
        "Smaller blocks waste less at the end of each request and share finer; larger ones have shorter tables.",
        "tokens",
        automatic="the lab's own",
    ),
    Knob(
        "enable_prefix_caching",
        "Prefix caching",
        "--enable-prefix-caching",
        "Equal prompt beginnings are computed once (TTFT falls); without any, it costs a little hashing.",
    ),
    Knob(
        "enforce_eager",
        "Execution",
        "--enforce-eager",
        "Compiled answers faster; eager starts sooner.",
        automatic="eager on a CPU, compiled on a GPU",
        named=((True, "eager"), (False, "compiled, with graphs")),
    ),
    Knob(
        "dtype",
        "Number format",
        "--dtype",
        "16 bits halve weights, cache and memory traffic against float32; answers may differ in the last digits.",
    ),
    Knob(
        "kv_cache_dtype",
        "KV cache format",
        "--kv-cache-dtype",
        "8 bits hold twice the tokens in the same memory; answers may lose a little quality.",
    ),
    Knob(
        "enable_chunked_prefill",
        "Chunked prefill",
        "--enable-chunked-prefill",
        "On, a long prompt is read in pieces between the others' tokens; off, it stops everybody until it is read.",
        automatic="vLLM's own (on)",
    ),
    Knob(
        "attention_backend",
        "Attention backend",
        "--attention-backend",
        "The kernel that reads the KV cache: the fastest one depends on GPU, lengths and batch.",
        automatic="vLLM's own",
    ),
    Knob(
        "tensor_parallel_size",
        "Tensor parallel",
        "--tensor-parallel-size",
        "Every layer is split: more memory and speed per request, for traffic between the devices at each layer.",
    ),
    Knob(
        "pipeline_parallel_size",
        "Pipeline parallel",
        "--pipeline-parallel-size",
        "Layers are dealt out: larger models fit with little traffic, but one request is not answered faster.",
    ),
    Knob(
        "data_parallel_size",
        "Data parallel",
        "--data-parallel-size",
        "Whole copies of the model: more requests at once, each no faster, and the weights once per copy.",
    ),
)
NAMES = tuple(knob.name for knob in KNOBS)


def knobs(hardware: Hardware, shape: ModelShape | None, options: frozenset[str] | None = None) -> tuple[Knob, ...]:
    """Every knob with its values here. ``shape`` None: the model is not known, so its limits are not either."""
    known = installed_options() if options is None else options
    return tuple(_placed(knob, hardware, shape, known) for knob in KNOBS)


def knob(name: str, hardware: Hardware, shape: ModelShape | None, options: frozenset[str] | None = None) -> Knob:
    """One of them; raises ConfigError for a name that is none."""
    for one in knobs(hardware, shape, options):
        if one.name == name:
            return one
    raise ConfigError(f"There is no knob {name!r}.", f"Use one of {', '.join(NAMES)}.")


def changed(before: ServerConfig, after: ServerConfig) -> dict[str, Value]:
    """Settings that differ, with their new values."""
    new, old = after.to_dict(), before.to_dict()
    return {name: value for name, value in new.items() if value != old[name]}


def in_words(changes: Mapping[str, Value]) -> str:
    """Changed settings in one line, by their own names: "max_num_seqs 8, enable_prefix_caching off"."""
    bare = {one.name: replace(one, unit="") for one in KNOBS}
    words = (f"{name} {bare[name].show(value) if name in bare else value}" for name, value in changes.items())
    return ", ".join(words) or "as it was"


def _placed(knob: Knob, hardware: Hardware, shape: ModelShape | None, options: frozenset[str]) -> Knob:
    on_gpu = hardware.device == Device.CUDA
    option = knob.flag.removeprefix("--").replace("-", "_")
    # A CPU gets its KV space from an environment variable, whatever options there are.
    if options and option not in options and not (knob.name == "kv_cache_gib" and not on_gpu):
        return replace(knob, refused=f"The installed vLLM has no {knob.flag}.")
    values = VALUES[knob.name](hardware, shape)
    if len(values) < 2:
        return replace(knob, values=values, refused=_only_one(knob.name, hardware))
    return replace(knob, values=values)


def _only_one(name: str, hardware: Hardware) -> str:
    on_gpu = hardware.device == Device.CUDA
    if name == "gpu_memory_utilization" and not on_gpu:
        return "There is no GPU here: the KV cache is sized in GiB."
    if name.endswith("parallel_size"):
        return "This machine has one GPU." if on_gpu else "The cores of one machine are one device."
    if name == "attention_backend" and not on_gpu:
        return "vLLM's CPU build has one attention backend."
    return "There is only one choice here."


def _lengths(_: Hardware, shape: ModelShape | None) -> tuple[Value, ...]:
    longest = shape.max_length if shape else None
    fitting = [length for length in LENGTHS if longest is None or length < longest]
    return (*fitting, longest) if longest else (*fitting, None)


def _sequences(hardware: Hardware, _: ModelShape | None) -> tuple[Value, ...]:
    most = CPU_MOST_SEQUENCES if hardware.device == Device.CPU else SEQUENCES[-1]
    return tuple(number for number in SEQUENCES if number <= most)


def _kv_gib(hardware: Hardware, _: ModelShape | None) -> tuple[Value, ...]:
    if hardware.device == Device.CPU:
        most = hardware.ram_total_bytes * RAM_SHARE_FOR_KV
    else:
        most = min((gpu.memory_total_bytes or 0 for gpu in hardware.gpus), default=0)
    return (None, *(gib for gib in KV_GIB if gib * GIB <= most))


def _shares(hardware: Hardware, _: ModelShape | None) -> tuple[Value, ...]:
    return MEMORY_SHARES if hardware.device == Device.CUDA else ()


def _batched(_: Hardware, shape: ModelShape | None) -> tuple[Value, ...]:
    return (None, *BATCHED_TOKENS)


def _blocks(hardware: Hardware, _: ModelShape | None) -> tuple[Value, ...]:
    return (None, *block_sizes(hardware))


def _dtypes(hardware: Hardware, _: ModelShape | None) -> tuple[Value, ...]:
    return tuple(name for name in DTYPES if not (name == "bfloat16" and _is_old(hardware)))


def _kv_dtypes(hardware: Hardware, shape: ModelShape | None) -> tuple[Value, ...]:
    accepted = accepted_words("CacheDType")
    card = this_machine(hardware)
    wanted = (name for name in KV_DTYPES if card is None or card.refuses(name) is None)
    return tuple(name for name in wanted if name == AUTO or not accepted or name in accepted)


def _backends(hardware: Hardware, shape: ModelShape | None) -> tuple[Value, ...]:
    if hardware.device == Device.CPU or (shape is not None and shape.latent):
        return (None,)
    accepted, old = accepted_words("AttentionBackendEnum"), _is_old(hardware)
    names = (name for name in GPU_BACKENDS if not accepted or name in accepted)
    return (None, *(name for name in names if not (old and name in NEEDS_AMPERE)))


def _tensor(hardware: Hardware, shape: ModelShape | None) -> tuple[Value, ...]:
    heads = shape.query_heads if shape else None
    return tuple(size for size in _devices(hardware) if not heads or heads % size == 0)


def _devices(hardware: Hardware, *_: Any) -> tuple[int, ...]:
    count = len(hardware.gpus) if hardware.device == Device.CUDA else 1
    return tuple(size for size in SIZES if size <= count) or (1,)


def _switch(*_: Any) -> tuple[Value, ...]:
    return (True, False)


def _open_switch(*_: Any) -> tuple[Value, ...]:
    return (None, True, False)


VALUES: dict[str, Callable[[Hardware, ModelShape | None], tuple[Value, ...]]] = {
    "max_model_len": _lengths,
    "max_num_seqs": _sequences,
    "gpu_memory_utilization": _shares,
    "kv_cache_gib": _kv_gib,
    "max_num_batched_tokens": _batched,
    "block_size": _blocks,
    "enable_prefix_caching": _switch,
    "enforce_eager": _open_switch,
    "dtype": _dtypes,
    "kv_cache_dtype": _kv_dtypes,
    "enable_chunked_prefill": _open_switch,
    "attention_backend": _backends,
    "tensor_parallel_size": _tensor,
    "pipeline_parallel_size": _devices,
    "data_parallel_size": _devices,
}


def _is_old(hardware: Hardware) -> bool:
    capabilities = [gpu.compute_capability for gpu in hardware.gpus if gpu.compute_capability is not None]
    return bool(capabilities) and min(capabilities) < BF16_CAPABILITY


@cache
def accepted_words(name: str) -> frozenset[str]:
    """The words of a ``Literal`` or the members of an ``Enum`` in the installed vLLM; empty where it can't be read."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return frozenset()
    path = Path(next(iter(spec.submodule_search_locations))) / SOURCES[name]
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(word for node in tree.body for word in _words(node, name))


def _words(node: ast.stmt, name: str) -> Iterable[str]:
    if isinstance(node, ast.ClassDef) and node.name == name:
        targets = [target for part in node.body if isinstance(part, ast.Assign) for target in part.targets]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
        return [str(part.value) for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
    return []
