"""ServerConfig + hardware + model → the exact command and environment. Pure, so it can be shown and tested.

Hardware decides what a configuration leaves open:

* compute capability below 8.0 (a T4 is 7.5): dtype half, attention backend TRITON_ATTN;
* CPU: every core bound, Intel's OpenMP preloaded, KV space sized from the capacity needed, eager mode
  (compiling takes a minute longer to start and is no faster here);
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

from engine.config import Device, ServerConfig
from engine.environment import Hardware
from engine.errors import ConfigError
from engine.kv.capacity import ModelShape
from engine.models import ModelSource

MODULE = "vllm.entrypoints.openai.api_server"
GIB = 1024**3
BF16_CAPABILITY = (8, 0)
CPU_BLOCK_SIZES = (32, 64, 96, 128)
GPU_BLOCK_SIZES = (16, 32, 64, 128)
DEFAULT_CPU_BLOCK = 128
# RAM that the KV cache may take of what is free: weights, the engine's own memory and the baseline need the rest.
RAM_SHARE_FOR_KV = 0.5
OPTION_SOURCES = (
    "engine/arg_utils.py",
    "entrypoints/openai/cli_args.py",
    "entrypoints/launchers/cli_args.py",
    "config/cache.py",
    "config/observability.py",
)
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
    options: frozenset[str] | None = None,
    python: str = sys.executable,
) -> Launch:
    """The command for this configuration on this hardware.

    ``options`` are the names the installed vLLM takes (``installed_options``): the ones that only
    add figures are left out where it does not. Raises ConfigError for what cannot start here.
    """
    _check(config, hardware)
    known = installed_options() if options is None else options
    flags = [
        ("--model", str(source.path)),
        ("--served-model-name", source.model_id),
        ("--host", "127.0.0.1"),
        ("--port", str(port)),
        ("--max-num-seqs", str(config.max_num_seqs)),
        ("--dtype", _dtype(config, hardware)),
        ("--seed", str(config.seed)),
        *_optional_flags(config, hardware),
        *_parallel_flags(config),
    ]
    argv = [python, "-m", MODULE, *(word for flag in flags for word in flag)]
    argv.append("--enforce-eager" if uses_eager(config, hardware) else "--no-enforce-eager")
    argv.append("--enable-prefix-caching" if config.enable_prefix_caching else "--no-enable-prefix-caching")
    for name in ("enable-per-request-metrics", "enable-prompt-tokens-details", "disable-uvicorn-access-log"):
        if name.replace("-", "_") in known:
            argv.append(f"--{name}")
    return Launch(tuple(argv), _environment(config, hardware, source, api_key, python))


def uses_eager(config: ServerConfig, hardware: Hardware) -> bool:
    """Whether torch.compile and CUDA graphs are off."""
    return hardware.device == Device.CPU if config.enforce_eager is None else config.enforce_eager


def block_sizes(hardware: Hardware) -> tuple[int, ...]:
    """The block sizes (tokens) that this machine's attention backend takes."""
    return CPU_BLOCK_SIZES if hardware.device == Device.CPU else GPU_BLOCK_SIZES


def kv_space_gib(config: ServerConfig, hardware: Hardware, shape: ModelShape) -> int:
    """GiB for the CPU's KV cache: every sequence at full length, in whole blocks, within half of the free RAM.

    vLLM takes whole GiB; raises ConfigError when not even one full-length request fits.
    """
    if config.kv_cache_gib is not None:
        return config.kv_cache_gib
    block = config.block_size or DEFAULT_CPU_BLOCK
    length = config.max_model_len or shape.max_length or 2048
    per_request = -(-length // block) * block * shape.kv_bytes_per_token
    allowed = int(hardware.ram_available_bytes * RAM_SHARE_FOR_KV) // GIB
    if allowed * GIB < per_request:
        raise ConfigError(
            f"One request of {length:,} tokens needs {per_request / GIB:.1f} GiB of KV cache; "
            f"{allowed} GiB can be spared of the {hardware.ram_available_bytes / GIB:.1f} GiB that are free.",
            "Lower max_model_len, choose a smaller model, or free memory.",
        )
    return max(1, min(allowed, -(-per_request * config.max_num_seqs // GIB)))


@cache
def installed_options() -> frozenset[str]:
    """Names of options the installed vLLM knows, read from its sources: importing it would take seconds."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return frozenset()
    root = Path(next(iter(spec.submodule_search_locations)))
    texts = [(root / name).read_text("utf-8") for name in OPTION_SOURCES if (root / name).is_file()]
    return frozenset(re.findall(r"^    (\w+)\s*:", "\n".join(texts), re.MULTILINE))


def _check(config: ServerConfig, hardware: Hardware) -> None:
    if config.block_size is not None and config.block_size not in block_sizes(hardware):
        sizes = ", ".join(map(str, block_sizes(hardware)))
        raise ConfigError(f"Block size {config.block_size} is not taken here.", f"Use one of {sizes}.")
    workers = _workers(config)
    if hardware.device == Device.CPU and workers > len(hardware.cpu_ids):
        raise ConfigError(
            f"{workers} workers are asked for, but there are {len(hardware.cpu_ids)} cores.",
            "Lower the parallel sizes: every worker needs at least one core.",
        )
    if hardware.device == Device.CUDA and workers > len(hardware.gpus) and config.distributed_executor_backend != "ray":
        raise ConfigError(
            f"{workers} workers are asked for, but there are {len(hardware.gpus)} GPUs.",
            "Lower the parallel sizes, or use the ray backend with a cluster.",
        )
    if hardware.device == Device.CUDA and config.kv_cache_dtype.startswith("fp8") and _is_old(hardware):
        raise ConfigError("This GPU has no fp8 KV cache in vLLM.", "Set kv_cache_dtype to auto.")


def _workers(config: ServerConfig) -> int:
    return config.tensor_parallel_size * config.pipeline_parallel_size * config.data_parallel_size


def _is_old(hardware: Hardware) -> bool:
    capabilities = [gpu.compute_capability for gpu in hardware.gpus if gpu.compute_capability is not None]
    return bool(capabilities) and min(capabilities) < BF16_CAPABILITY


def _dtype(config: ServerConfig, hardware: Hardware) -> str:
    if config.dtype != "auto":
        return config.dtype
    if hardware.device == Device.CPU:
        return "bfloat16"
    return "half" if _is_old(hardware) else "auto"


def _optional_flags(config: ServerConfig, hardware: Hardware) -> list[tuple[str, str]]:
    on_gpu = hardware.device == Device.CUDA
    backend = config.attention_backend
    if backend is None and on_gpu and _is_old(hardware):
        backend = "TRITON_ATTN"
    kv_bytes = config.kv_cache_gib * GIB if config.kv_cache_gib is not None and on_gpu else None
    values: list[tuple[str, object]] = [
        ("--max-model-len", config.max_model_len),
        ("--max-num-batched-tokens", config.max_num_batched_tokens),
        ("--block-size", config.block_size),
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


def _environment(
    config: ServerConfig, hardware: Hardware, source: ModelSource, api_key: str, python: str
) -> dict[str, str]:
    env = {
        "VLLM_API_KEY": api_key,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # The weights are on disk by now: no start may depend on a network.
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if hardware.device == Device.CPU:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(config.kv_cache_gib or _sized_kv_space(config, hardware, source))
        env |= cpu_thread_environment(hardware, python)
        env["VLLM_CPU_OMP_THREADS_BIND"] = _thread_binding(hardware.cpu_ids, _workers(config))
        env["CUDA_VISIBLE_DEVICES"] = ""
    else:
        # Building FlashInfer's sampler needs nvcc, which most machines do not have.
        env["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    return env


def _sized_kv_space(config: ServerConfig, hardware: Hardware, source: ModelSource) -> int:
    dtype_bytes = 4 if _dtype(config, hardware) == "float32" else 2
    shape = ModelShape.from_config_file(source.path / "config.json", dtype_bytes)
    return kv_space_gib(config, hardware, shape)


def _thread_binding(cpu_ids: tuple[int, ...], workers: int) -> str:
    """Cores of each worker, workers separated by ``|``: vLLM wants one list for every rank."""
    share = len(cpu_ids) // workers
    shares = (cpu_ids[rank * share : (rank + 1) * share] for rank in range(workers))
    return "|".join(",".join(map(str, ids)) for ids in shares)


def cpu_thread_environment(hardware: Hardware, python: str = sys.executable) -> dict[str, str]:
    """Threads and OpenMP runtime for a CPU engine; the Hugging Face baseline gets the very same."""
    env = {"OMP_NUM_THREADS": str(len(hardware.cpu_ids))}
    openmp = Path(python).parent.parent / "lib" / "libiomp5.so"
    if openmp.is_file():
        env["LD_PRELOAD"] = str(openmp)
    return env
