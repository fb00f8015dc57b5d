"""ServerConfig + hardware + model → the exact command and environment.

Starts nothing and needs no network, so a command can be shown and tested: it follows from what is given, from the
model's ``config.json``, and from what is installed (vLLM's options, Intel's OpenMP). What is known not to start is
refused here, at once.

Hardware and model decide what a configuration leaves open:

* the dtype is always named, so that vLLM and Hugging Face can't understand "auto" differently;
* compute capability below 8.0 (a T4 is 7.5): float16 instead of bfloat16, attention backend TRITON_ATTN;
* CPU: bfloat16, every core bound, Intel's OpenMP preloaded, KV space sized from the capacity needed, eager mode
  (compiling takes a minute more at the first start and a quarter of it later);
* GPU: CUDA graphs unless asked otherwise (for one user they are most of the gain).
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from engine.config import Device, ServerConfig
from engine.environment import DEVICE_WORDS, GIB, Hardware, installed_vllm
from engine.errors import ConfigError
from engine.kv.capacity import ModelShape, max_length, read_config
from engine.models import ModelSource
from engine.vllm_facts import BF16_CAPABILITY, DEFAULT_CPU_BLOCK, MODULE, most_cpu_kv_gib

MIB = 1024**2
CPU_BLOCK_SIZES = (32, 64, 96, 128)
GPU_BLOCK_SIZES = (16, 32, 64, 128)
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Model types that vLLM does not run in float16: their numbers overflow.
NOT_IN_FLOAT16 = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
OPTION_SOURCES = (
    "engine/arg_utils.py",
    "entrypoints/openai/cli_args.py",
    "entrypoints/launchers/cli_args.py",
    "config/cache.py",
    "config/observability.py",
)
COMMON_ENVIRONMENT = {
    # The weights are on disk by now: nothing may depend on a network.
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# vLLM's own store of compiled models writes what it can't read back in the CPU build's way of compiling
# ("'function' object has no attribute 'finalize_loading'"), so every start compiles again; torch's own store works.
COMPILE_CACHE_ENVIRONMENT = {"VLLM_USE_AOT_COMPILE": "0"}
# NVML's order, in which the lab counts GPUs; CUDA's own begins with the fastest.
GPU_ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
SECRET_NAMES = frozenset({"VLLM_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
# Settings of the app's own process that mean something else, or nothing, to the server.
NOT_INHERITED = re.compile(r"^(STREAMLIT_|LAB_|PYTHON(PATH|STARTUP|HASHSEED)|VLLM_|OMP_|KMP_|LD_PRELOAD$|TMPDIR$)")


@dataclass(frozen=True)
class Launch:
    """``argv`` and the variables set for it (added to an inherited environment by ``full_env``)."""

    argv: tuple[str, ...]
    env: dict[str, str]

    def shell_line(self) -> str:
        """What to type to start the same server by hand; the key is left for the reader to fill in."""
        variables = (f"{k}={'…' if k in SECRET_NAMES else shlex.quote(v)}" for k, v in sorted(self.env.items()))
        return " ".join((*variables, shlex.join(self.argv)))

    def full_env(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The child's whole environment."""
        kept = {name: value for name, value in inherited.items() if not NOT_INHERITED.match(name)}
        return kept | self.env


def build_launch(
    config: ServerConfig,
    hardware: Hardware,
    source: ModelSource,
    *,
    port: int,
    api_key: str,
    kv_events: str | None = None,
    compiled: Path | None = None,
    options: frozenset[str] | None = None,
    built_for: Device | None = None,
    python: str = sys.executable,
) -> Launch:
    """The command for this configuration, hardware and model.

    ``options`` are the names that vLLM takes (``installed_options``): the ones that only add figures are left out where
    it does not. ``kv_events`` is the value of ``--kv-events-config``, where somebody listens. ``compiled`` is
    the folder that keeps what torch.compile makes, from one CPU start to the next. ``built_for`` is the
    device that vLLM is built for (``installed_vllm``). Raises ConfigError for what can't start here, ModelUnusable for
    a model whose config can't be read.
    """
    model = read_config(source.path / "config.json")
    dtype = resolved_dtype(config, hardware, source)
    _check_machine(config, hardware, built_for or installed_vllm())
    _check_model(config, dtype, model)
    known = installed_options() if options is None else options
    flags = [
        ("--model", str(source.path)),
        ("--served-model-name", source.model_id),
        ("--host", "127.0.0.1"),
        ("--port", str(port)),
        ("--max-num-seqs", str(config.max_num_seqs)),
        ("--dtype", dtype),
        ("--seed", str(config.seed)),
        *_optional_flags(config, hardware),
        *_parallel_flags(config),
    ]
    argv = [python, "-m", MODULE, *(word for flag in flags for word in flag)]
    argv.append("--enforce-eager" if uses_eager(config, hardware) else "--no-enforce-eager")
    argv.append("--enable-prefix-caching" if config.enable_prefix_caching else "--no-enable-prefix-caching")
    if config.enable_chunked_prefill is not None:
        argv.append(f"--{'' if config.enable_chunked_prefill else 'no-'}enable-chunked-prefill")
    for name in ("enable-per-request-metrics", "enable-prompt-tokens-details", "disable-uvicorn-access-log"):
        if name.replace("-", "_") in known:
            argv.append(f"--{name}")
    if kv_events is not None and publishes_kv_events(known):
        argv += ["--kv-events-config", kv_events]
    env = COMMON_ENVIRONMENT | {"VLLM_API_KEY": api_key, "VLLM_NO_USAGE_STATS": "1"}
    if hardware.device == Device.CPU:
        env |= _cpu_environment(config, hardware, python)
        if compiled is not None:
            env |= {"TORCHINDUCTOR_CACHE_DIR": str(compiled)} | COMPILE_CACHE_ENVIRONMENT
        env["VLLM_CPU_KVCACHE_SPACE"] = str(_kv_space(config, hardware, model, dtype))
    else:
        # Building FlashInfer's sampler needs nvcc, which most machines do not have.
        env |= GPU_ENVIRONMENT | {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    return Launch(tuple(argv), env)


def resolved_dtype(config: ServerConfig, hardware: Hardware, source: ModelSource) -> str:
    """The number format that both engines compute in: "bfloat16", "float16" or "float32".

    Left open on a GPU, it is the checkpoint's own as vLLM understands it: float32 is halved, and an old GPU has no
    bfloat16. Raises ModelUnusable for a model whose config can't be read.
    """
    if config.dtype != "auto":
        return "float16" if config.dtype == "half" else config.dtype
    if hardware.device == Device.CPU:
        return "bfloat16"
    model = read_config(source.path / "config.json")
    takes_float16 = str(model.get("model_type")) not in NOT_IN_FLOAT16
    if _is_old(hardware):
        return "float16" if takes_float16 else "float32"
    return "float16" if _own_dtype(model) in ("float16", "half") and takes_float16 else "bfloat16"


def _own_dtype(model: Mapping[str, Any]) -> str:
    text = model.get("text_config")
    parts = (model, text) if isinstance(text, Mapping) else (model,)
    names = (part.get("dtype") or part.get("torch_dtype") for part in parts)
    return next((str(name).removeprefix("torch.") for name in names if name), "")


def uses_eager(config: ServerConfig, hardware: Hardware) -> bool:
    """Whether torch.compile and CUDA graphs are off."""
    return hardware.device == Device.CPU if config.enforce_eager is None else config.enforce_eager


def block_sizes(hardware: Hardware) -> tuple[int, ...]:
    """The block sizes (tokens) that this machine's attention backend takes."""
    return CPU_BLOCK_SIZES if hardware.device == Device.CPU else GPU_BLOCK_SIZES


def _kv_space(config: ServerConfig, hardware: Hardware, model: Mapping[str, Any], dtype: str) -> int:
    """What was asked for, if that much is free; else what fits the settings."""
    if config.kv_cache_gib is None:
        return _sized_kv_space(config, hardware, model, dtype)
    free_gib = hardware.ram_available_bytes / GIB
    if config.kv_cache_gib > free_gib:
        raise ConfigError(
            f"The KV cache is to be {config.kv_cache_gib:,} GiB, and {free_gib:.1f} GiB of memory are free.",
            "Give it less, or leave its size to the lab.",
        )
    return config.kv_cache_gib


def kv_space_gib(config: ServerConfig, hardware: Hardware, shape: ModelShape) -> int:
    """GiB for the CPU's KV cache: every sequence at full length, in whole blocks, within half of the free RAM.

    vLLM takes whole GiB, so one is given wherever one is free. Raises ConfigError where not even one full-length
    request fits.
    """
    block = config.block_size or DEFAULT_CPU_BLOCK
    length = config.max_model_len or shape.max_length or 2048
    per_request = -(-length // block) * block * shape.kv_bytes_per_token
    free = hardware.ram_available_bytes
    if free < GIB:
        raise ConfigError(
            f"The KV cache takes at least 1 GiB, and only {free / MIB:,.0f} MiB of memory are free.",
            "Close other programs.",
        )
    allowed = most_cpu_kv_gib(free)
    if allowed * GIB < per_request:
        raise ConfigError(
            f"One request of {length:,} tokens needs {per_request / GIB:.1f} GiB of KV cache, which may take "
            f"{allowed} GiB of the {free / GIB:.1f} GiB of memory that are free.",
            "Lower max_model_len, choose a smaller model, or free memory.",
        )
    return min(allowed, -(-per_request * config.max_num_seqs // GIB))


@cache
def installed_options() -> frozenset[str]:
    """Names of options the installed vLLM knows, read from its sources: importing it would take seconds."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return frozenset()
    root = Path(next(iter(spec.submodule_search_locations)))
    texts = [(root / name).read_text("utf-8") for name in OPTION_SOURCES if (root / name).is_file()]
    return frozenset(re.findall(r"^    (\w+)\s*:", "\n".join(texts), re.MULTILINE))


def publishes_kv_events(options: frozenset[str]) -> bool:
    """Whether a vLLM with these options can tell about its KV blocks."""
    return "kv_events_config" in options


def _check_machine(config: ServerConfig, hardware: Hardware, built_for: Device | None) -> None:
    on_gpu = hardware.device == Device.CUDA
    if built_for not in (None, hardware.device):
        raise ConfigError(
            f"The installed vLLM is built for {DEVICE_WORDS[built_for]}, "
            f"but is to run on the {'GPU' if on_gpu else 'CPU'}.",
            "Run make setup: it installs the one that fits.",
        )
    if not on_gpu and hardware.lacks_avx2:
        raise ConfigError(
            f"vLLM's CPU build needs AVX2, and this CPU ({hardware.cpu_model or 'unknown'}) has none.",
            "Use a newer CPU or an NVIDIA GPU.",
        )
    if config.block_size is not None and config.block_size not in block_sizes(hardware):
        sizes = ", ".join(map(str, block_sizes(hardware)))
        raise ConfigError(f"Block size {config.block_size} is not taken here.", f"Use one of {sizes}.")
    workers = _workers(config)
    if not on_gpu and workers > len(hardware.cpu_ids):
        raise ConfigError(
            f"{workers} workers are asked for, but there are {len(hardware.cpu_ids)} cores.",
            "Lower the parallel sizes: every worker needs at least one core.",
        )
    if on_gpu and workers > len(hardware.gpus) and config.distributed_executor_backend != "ray":
        raise ConfigError(
            f"{workers} workers are asked for, but there are {len(hardware.gpus)} GPUs.",
            "Lower the parallel sizes, or use the ray backend with a cluster.",
        )
    if on_gpu and config.kv_cache_dtype.startswith("fp8") and _is_old(hardware):
        raise ConfigError("This GPU has no fp8 KV cache in vLLM.", "Set kv_cache_dtype to auto.")
    if on_gpu and config.dtype == "bfloat16" and _is_old(hardware):
        raise ConfigError("This GPU can't compute in bfloat16.", "Set dtype to auto or half.")


def _check_model(config: ServerConfig, dtype: str, model: Mapping[str, Any]) -> None:
    longest = max_length(model)
    if config.max_model_len is not None and longest is not None and config.max_model_len > longest:
        raise ConfigError(
            f"max_model_len is {config.max_model_len:,}, and this model takes at most {longest:,} tokens.",
            f"Set max_model_len to {longest} or less.",
        )
    kind = str(model.get("model_type"))
    if dtype == "float16" and kind in NOT_IN_FLOAT16:
        raise ConfigError(f"Models of the type {kind} do not work in half.", "Set dtype to auto.")


def _workers(config: ServerConfig) -> int:
    return config.tensor_parallel_size * config.pipeline_parallel_size * config.data_parallel_size


def _is_old(hardware: Hardware) -> bool:
    capabilities = [gpu.compute_capability for gpu in hardware.gpus if gpu.compute_capability is not None]
    return bool(capabilities) and min(capabilities) < BF16_CAPABILITY


def _optional_flags(config: ServerConfig, hardware: Hardware) -> list[tuple[str, str]]:
    on_gpu = hardware.device == Device.CUDA
    backend = config.attention_backend
    if backend is None and on_gpu and _is_old(hardware):
        backend = "TRITON_ATTN"
    kv_bytes = config.kv_cache_gib * GIB if config.kv_cache_gib is not None and on_gpu else None
    values: list[tuple[str, object]] = [
        ("--max-model-len", config.max_model_len),
        ("--max-num-batched-tokens", config.max_num_batched_tokens),
        ("--block-size", config.block_size or (None if on_gpu else DEFAULT_CPU_BLOCK)),
        ("--attention-backend", backend),
        ("--kv-cache-dtype", None if config.kv_cache_dtype == "auto" else config.kv_cache_dtype),
        ("--gpu-memory-utilization", config.gpu_memory_utilization if on_gpu else None),
        ("--kv-cache-memory-bytes", kv_bytes),
    ]
    return [(flag, str(value)) for flag, value in values if value is not None]


def _parallel_flags(config: ServerConfig) -> list[tuple[str, str]]:
    sizes = [
        ("--tensor-parallel-size", config.tensor_parallel_size),
        ("--pipeline-parallel-size", config.pipeline_parallel_size),
        ("--data-parallel-size", config.data_parallel_size),
    ]
    flags = [(flag, str(size)) for flag, size in sizes if size > 1]
    if config.distributed_executor_backend:
        flags.append(("--distributed-executor-backend", config.distributed_executor_backend))
    return flags


def _cpu_environment(config: ServerConfig, hardware: Hardware, python: str) -> dict[str, str]:
    binding = _thread_binding(hardware.cpu_ids, _workers(config))
    threads = cpu_thread_environment(hardware, python)
    # The binding gives each worker its threads; with this one set, the engine's other processes spin for work as well.
    del threads["OMP_NUM_THREADS"]
    return threads | {"VLLM_CPU_OMP_THREADS_BIND": binding, "CUDA_VISIBLE_DEVICES": ""}


def _sized_kv_space(config: ServerConfig, hardware: Hardware, model: Mapping[str, Any], dtype: str) -> int:
    return kv_space_gib(config, hardware, ModelShape.from_config(model, DTYPE_BYTES[dtype]))


def _thread_binding(cpu_ids: tuple[int, ...], workers: int) -> str:
    """Cores of each worker, workers separated by ``|``: vLLM wants one list for every rank."""
    share = len(cpu_ids) // workers
    shares = (cpu_ids[rank * share : (rank + 1) * share] for rank in range(workers))
    return "|".join(",".join(map(str, ids)) for ids in shares)


def cpu_thread_environment(hardware: Hardware, python: str = sys.executable) -> dict[str, str]:
    """Threads and OpenMP runtime of a CPU engine. vLLM takes its threads from its binding instead: as many cores."""
    env = {"OMP_NUM_THREADS": str(len(hardware.cpu_ids))}
    openmp = Path(python).parent.parent / "lib" / "libiomp5.so"
    if openmp.is_file() and not any(mark.isspace() or mark == ":" for mark in str(openmp)):  # the loader splits there
        env["LD_PRELOAD"] = str(openmp)
    return env
