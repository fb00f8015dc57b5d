"""What can be chosen, as frozen values, and the only reader of the lab's own environment variables.

Every experiment and every server start is described completely by one of these values,
so that a run can be repeated from what was saved with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from engine.errors import ConfigError

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
OFFERED_MODELS = (
    DEFAULT_MODEL,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "Qwen/Qwen2.5-0.5B-Instruct",
)
DTYPES = ("auto", "half", "bfloat16", "float32")
EXECUTOR_BACKENDS = ("mp", "ray")
CONTIGUOUS_ALLOCATORS = ("contiguous_max", "contiguous_pow2", "contiguous_oracle")
PAGED_ALLOCATORS = ("paged", "paged_prefix", "paged_parallel")
ALLOCATORS = (*CONTIGUOUS_ALLOCATORS, *PAGED_ALLOCATORS)
WORKLOADS = ("lab", "sharegpt", "alpaca", "shared_prefix", "parallel", "trace", "typed")
SIMULATION_LIMITS: dict[str, tuple[float, float]] = {
    "requests": (1, 100_000),
    "memory_tokens": (1, 4_194_304),
    "max_model_len": (2, 1_048_576),
    "block_size": (1, 4096),
    "buddy_unit": (1, 4096),
    "max_num_seqs": (1, 65_536),
    "watermark": (0, 0.5),
    "arrivals_per_100_steps": (0.01, 100_000),
    "step_s": (0.0001, 60),
    "long_share": (0, 1),
    "prefix_tokens": (0, 1_048_576),
    "prefix_groups": (1, 1000),
    "samples": (1, 64),
    "seed": (0, 2**63 - 1),
}
LOAD_PROFILES = ("closed", "constant", "poisson", "burst", "ramp", "trace")
LOAD_PROMPTS = ("synthetic", "short", "long", "mixed", "chat", "sharegpt", "file")
LENGTH_SHAPES = ("fixed", "uniform", "normal", "lognormal")
LOAD_LIMITS: dict[str, tuple[float, float]] = {
    "users": (1, 10_000),
    "rates": (0.01, 10_000),
    "requests": (1, 100_000),
    "duration_s": (1, 86_400),
    "trace_speed": (0.001, 10_000),
    "prompt_tokens": (1, 1_048_576),
    "max_tokens": (1, 1_048_576),
    "prompt_spread": (0, 1),
    "output_spread": (0, 1),
    "turns": (1, 20),
    "timeout_s": (1, 86_400),
    "seed": (0, 2**63 - 1),
    "slo_ttft_ms": (0.001, 86_400_000),
    "slo_tpot_ms": (0.001, 86_400_000),
    "slo_e2e_ms": (0.001, 86_400_000),
}
MOST_LOAD_LEVELS = 50
PROJECT_ROOT = Path(__file__).resolve().parent.parent
DEFAULT_PORT = 8501
TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})


class Device(StrEnum):
    """What vLLM runs on."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True)
class Settings:
    """The environment variables of the lab, read once.

    ``LAB_DATA_DIR`` moves everything the lab writes; ``LAB_DEVICE`` (cpu, cuda) overrides
    detection; ``LAB_AUTOSTART=0`` leaves the server off; ``LAB_PORT`` moves the app from port 8501;
    ``HF_HUB_OFFLINE=1`` keeps off the network.
    """

    data_dir: Path
    device: Device | None = None
    autostart: bool = True
    hub_offline: bool = False
    port: int = DEFAULT_PORT

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the variables; raises ConfigError for a value that means nothing."""
        env = os.environ if environ is None else environ
        data_dir = env.get("LAB_DATA_DIR", "").strip()
        device = env.get("LAB_DEVICE", "").strip().lower()
        if device not in ("", *Device):
            raise ConfigError(f"LAB_DEVICE is {device!r}.", "Use cpu or cuda, or leave it unset.")
        return cls(
            data_dir=_folder(data_dir) if data_dir else PROJECT_ROOT / "data",
            device=Device(device) if device else None,
            autostart=_flag(env, "LAB_AUTOSTART", default=True),
            hub_offline=_flag(env, "HF_HUB_OFFLINE", default=False),
            port=_port(env.get("LAB_PORT", "").strip()),
        )

    @property
    def database(self) -> Path:
        return self.data_dir / "runs.db"

    @property
    def models_dir(self) -> Path:
        return self.data_dir / "models"

    @property
    def logs_dir(self) -> Path:
        return self.data_dir / "logs"

    def model_environment(self) -> dict[str, str]:
        """The variables by which a child process finds the same models."""
        return {"LAB_DATA_DIR": str(self.data_dir), "HF_HUB_OFFLINE": "1" if self.hub_offline else "0"}

    @property
    def compiled_dir(self) -> Path:
        """What torch.compile made, for the next start of the same model."""
        return self.data_dir / "compiled"

    @property
    def state_dir(self) -> Path:
        """What is true only while something runs: locks, the running server's address."""
        return self.data_dir / "state"


@dataclass(frozen=True)
class ServerConfig:
    """One vLLM server. ``None`` means: decided from the hardware and the model.

    Lengths are tokens, memory is GiB. Names are vLLM's own flags.
    """

    model: str = DEFAULT_MODEL
    max_model_len: int | None = 2048
    max_num_seqs: int = 32
    max_num_batched_tokens: int | None = None
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    enforce_eager: bool | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_gib: int | None = None
    attention_backend: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    distributed_executor_backend: str | None = None
    port: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.model.strip() or self.model.startswith("-"):
            raise ConfigError(f"{self.model!r} is not a model name.", "Give a hub id (owner/name) or a folder.")
        for name in ("max_num_seqs", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            _positive(name, getattr(self, name))
        for name in ("max_model_len", "max_num_batched_tokens", "block_size", "kv_cache_gib"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.max_model_len == 1:
            raise ConfigError("max_model_len is 1.", "Use at least 2: one token to ask with, one to answer with.")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype is {self.dtype!r}.", f"Use one of {', '.join(DTYPES)}.")
        if not 0.05 <= self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}.", "Use a share from 0.05 to 1."
            )
        if self.distributed_executor_backend not in (None, *EXECUTOR_BACKENDS):
            raise ConfigError(
                f"distributed_executor_backend is {self.distributed_executor_backend!r}.", "Use mp or ray."
            )
        if self.port is not None and not 1024 <= self.port <= 65535:
            raise ConfigError(f"Port {self.port} can't be used.", "Use 1024 to 65535, or leave it to the lab.")
        batched = self.max_num_batched_tokens
        if batched is not None and batched < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({batched}) is below max_num_seqs ({self.max_num_seqs}).",
                "Every running sequence needs at least one token per step: raise the first or lower the second.",
            )
        length = self.max_model_len
        if self.enable_chunked_prefill is False and batched is not None and length is not None and batched < length:
            raise ConfigError(
                f"max_num_batched_tokens ({batched}) is below max_model_len ({length}), without chunked prefill.",
                "A prompt must then fit into one step: raise the first, lower the second, or let prefill be chunked.",
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from ``to_dict``; unknown names (a newer version's) are ignored."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server: where it is and what it serves.

    ``base_url`` ends in ``/v1`` as the OpenAI SDK wants it. ``engine`` is a key of ``engine.dialects``, None where it
    isn't known. The key never shows in ``repr``.
    """

    base_url: str
    model: str
    api_key: str | None = None
    max_model_len: int | None = None
    engine: str | None = None

    @property
    def root_url(self) -> str:
        """Where ``/metrics``, ``/health`` and ``/tokenize`` live."""
        return self.base_url.removesuffix("/v1")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def __repr__(self) -> str:
        return f"Endpoint(base_url={self.base_url!r}, model={self.model!r}, max_model_len={self.max_model_len})"


# Other engines that a comparison starts as servers of their own.
PEER_ENGINES = ("llamacpp", "transformers")


@dataclass(frozen=True)
class CompareConfig:
    """HF against vLLM: the same prompt ids, output length, dtype and threads for both; others beside them.

    ``users`` are the numbers of simultaneous prompts to measure; ``eager_against_graphs``
    restarts the server to measure vLLM both ways.
    """

    prompt: str = "Explain in simple words why the sky is blue."
    max_tokens: int = 50
    repeats: int = 3
    users: tuple[int, ...] = (1,)
    engines: tuple[str, ...] = ("hf", "vllm")
    static_batch: bool = True
    eager_against_graphs: bool = False

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise ConfigError("The prompt is empty.", "Write something for the model to continue.")
        if not 2 <= self.max_tokens <= 4096:
            raise ConfigError(f"max_tokens is {self.max_tokens}.", "Use 2 to 4096: TPOT needs two tokens.")
        if not 1 <= self.repeats <= 50:
            raise ConfigError(f"repeats is {self.repeats}.", "Use 1 to 50.")
        if not self.users or not all(1 <= n <= 256 for n in self.users):
            raise ConfigError(f"users is {self.users}.", "Use one or more numbers from 1 to 256.")
        unknown = set(self.engines) - {"hf", "vllm", *PEER_ENGINES}
        if unknown or not self.engines:
            known = ", ".join(("hf", "vllm", *PEER_ENGINES))
            raise ConfigError(f"Unknown engine {', '.join(sorted(unknown)) or '(none)'}.", f"Use some of {known}.")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class LoadTestConfig:
    """A load test: one level after the other, each with its own pressure on the server.

    ``profile`` closed and burst: a level for each number in ``users``; constant and poisson: one for each of ``rates``
    (requests/s); ramp: from the first of ``rates`` (or of ``users``, where there are no rates) doubling until the
    server is saturated or the last one is reached; trace: arrival times and lengths of the CSV file ``trace``,
    ``trace_speed`` times as fast. A level sends ``requests`` requests, or takes new ones for ``duration_s``, whichever
    ends first, but at least one for every user; where both are left out, ``engine.load.profiles`` chooses.

    Lengths are tokens: exact for synthetic prompts. ``…_shape`` and ``…_spread`` (half width or standard deviation,
    as a share of the mean) make them vary. ``force_length`` has every answer reach its ``max_tokens`` where the engine
    can (``ignore_eos``). ``nonce`` begins every prompt with something of its own, against the prefix cache;
    ``same_prompt`` sends one and the same prompt, without it. ``timeout_s`` is for one request.
    """

    profile: str = "closed"
    users: tuple[int, ...] = (1, 5, 10, 20)
    rates: tuple[float, ...] = ()
    requests: int | None = None
    duration_s: float | None = None
    trace: str = ""
    trace_speed: float = 1.0
    prompts: str = "synthetic"
    prompt_file: str = ""
    prompt_tokens: int = 64
    max_tokens: int = 50
    prompt_shape: str = "fixed"
    prompt_spread: float = 0.0
    output_shape: str = "fixed"
    output_spread: float = 0.0
    turns: int = 3
    nonce: bool = True
    same_prompt: bool = False
    force_length: bool = True
    warm_up: bool = True
    temperature: float = 0.0
    timeout_s: float = 300.0
    seed: int = 0
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    slo_e2e_ms: float | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in LOAD_LIMITS.items():
            value = getattr(self, name)
            for number in value if isinstance(value, tuple) else (value,):
                if number is not None and not low <= number <= high:
                    raise ConfigError(f"{name} is {number}.", f"Use {low:,} to {high:,}.")
        for name, known in (
            ("profile", LOAD_PROFILES),
            ("prompts", LOAD_PROMPTS),
            ("prompt_shape", LENGTH_SHAPES),
            ("output_shape", LENGTH_SHAPES),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} is {getattr(self, name)!r}.", f"Use one of {', '.join(known)}.")
        if not 0 <= self.temperature <= 2:
            raise ConfigError(f"temperature is {self.temperature}.", "Use 0 to 2.")
        self._check_levels()
        if self.profile == "trace" and not self.trace.strip():
            raise ConfigError("No trace file was given.", "Give a CSV file: arrival_s,input_tokens,output_tokens.")
        if self.prompts == "file" and not self.prompt_file.strip():
            raise ConfigError("No file of prompts was given.", "Give a JSONL, CSV or ShareGPT file.")

    def _check_levels(self) -> None:
        if self.profile in ("constant", "poisson") and not self.rates:
            raise ConfigError("No rate was given.", "Give one or more, in requests per second.")
        if self.profile in ("closed", "burst") and not self.users:
            raise ConfigError("No number of users was given.", "Give one or more, like 1,5,10,20.")
        if self.profile == "ramp" and not (self.users or self.rates):
            raise ConfigError("No number of users was given.", "Give where it begins and ends, like 1,64.")
        if max(len(self.users), len(self.rates)) > MOST_LOAD_LEVELS:
            raise ConfigError("That are too many levels.", f"Use at most {MOST_LOAD_LEVELS}.")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from ``to_dict``, also after JSON; unknown names (a newer version's) are ignored."""
        known = {field.name for field in fields(cls)}
        lists = {name: tuple(values[name]) for name in ("users", "rates") if name in values}
        return cls(**{name: value for name, value in values.items() if name in known} | lists)


@dataclass(frozen=True)
class SimulationConfig:
    """One simulated KV cache and the requests that come to it. Lengths are tokens, times are steps of the model.

    ``arrivals_per_100_steps`` None: every request waits from the start (a closed loop). A trace is a closed loop too
    unless ``step_s`` says how many seconds one step takes. ``buddy_unit`` is the smallest piece of the contiguous
    allocators, ``block_size`` that of the paged ones; ``watermark`` the share of blocks that admission leaves free.
    ``long_share`` (of the lab's prompts), ``prefix_tokens``, ``prefix_groups`` and ``samples`` shape the workloads
    that use them; ``trace`` is the path of a CSV file, ``typed`` one request a line: prompt and output tokens.
    """

    workload: str = "lab"
    requests: int = 200
    memory_tokens: int = 4000
    max_model_len: int = 512
    block_size: int = 16
    buddy_unit: int = 16
    max_num_seqs: int = 256
    watermark: float = 0.0
    arrivals_per_100_steps: float | None = None
    step_s: float | None = None
    long_share: float = 0.5
    prefix_tokens: int = 128
    prefix_groups: int = 2
    samples: int = 1
    seed: int = 0
    trace: str = ""
    typed: str = ""
    allocators: tuple[str, ...] = (*CONTIGUOUS_ALLOCATORS, "paged")

    def __post_init__(self) -> None:
        for name, (low, high) in SIMULATION_LIMITS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} is {value}.", f"Use {low:,} to {high:,}.")
        for name in ("block_size", "buddy_unit"):
            if getattr(self, name) > self.memory_tokens:
                raise ConfigError(
                    f"{name} ({getattr(self, name)}) is larger than the memory ({self.memory_tokens} tokens).",
                    "Make it smaller, or give more memory.",
                )
        if self.samples > self.max_num_seqs:
            raise ConfigError(
                f"samples ({self.samples}) is above max_num_seqs ({self.max_num_seqs}): no request could ever start.",
                "Raise max_num_seqs, or ask for fewer answers.",
            )
        if self.workload not in WORKLOADS:
            raise ConfigError(f"There is no workload {self.workload!r}.", f"Use one of {', '.join(WORKLOADS)}.")
        unknown = [name for name in self.allocators if name not in ALLOCATORS]
        if unknown or not self.allocators:
            raise ConfigError(
                f"There is no allocator {unknown[0]!r}." if unknown else "No allocator was chosen.",
                f"Use one or more of {', '.join(ALLOCATORS)}.",
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} is {value}.", "Use a whole number of at least 1.")


def _folder(word: str) -> Path:
    try:
        return Path(word).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"LAB_DATA_DIR is {word!r}: {error}.", "Give a folder that can be written.") from error


def _port(word: str) -> int:
    if not word:
        return DEFAULT_PORT
    if not word.isdecimal() or not 1024 <= int(word) <= 65535:
        raise ConfigError(f"LAB_PORT is {word!r}.", "Use 1024 to 65535, or leave it unset for 8501.")
    return int(word)


def _flag(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    word = env.get(name, "").strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    if word:
        raise ConfigError(f"{name} is {word!r}.", "Use 1 or 0.")
    return default
