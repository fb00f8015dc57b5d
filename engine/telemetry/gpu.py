"""GPU readings of now from NVML, each card by its UUID and each field on its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from engine.environment import Gpu

T = TypeVar("T")
NO_LIBRARY = "The GPU's numbers can't be read: NVML, a part of NVIDIA's driver, does not answer."


class GpuReader:
    """For one thread. Without GPUs NVML isn't even loaded; where it doesn't answer, ``notice`` says so, once."""

    def __init__(self, gpus: Sequence[Gpu], nvml: Any = None) -> None:
        self._gpus = [gpu for gpu in gpus if gpu.uuid]
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self._open = False
        self.notice = ""

    @property
    def names(self) -> dict[str, str]:
        """What people call each card, by the ``which`` of its values' keys."""
        several = len(self._gpus) > 1
        return {str(gpu.uuid): f"GPU {gpu.index}" if several else "GPU" for gpu in self._gpus}

    def read(self) -> dict[str, float | None]:
        """``gpu_memory_percent:UUID`` and so on; None for what this card, container or driver refuses to tell."""
        values: dict[str, float | None] = {}
        if self._gpus and not self.notice and self._opened():
            for gpu in self._gpus:
                values |= self._read(str(gpu.uuid))
        return values

    def close(self) -> None:
        if self._open:
            self._open = False
            self._ask(self._nvml.nvmlShutdown)

    def _opened(self) -> bool:
        if self._open:
            return True
        if self._nvml is None:
            import pynvml

            self._nvml = pynvml
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError:
            self.notice = NO_LIBRARY
            return False
        self._open = True
        return True

    def _read(self, uuid: str) -> dict[str, float | None]:
        nvml, handle = self._nvml, self._handle(uuid)
        rates = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle)) if handle is not None else None
        # The v1 call counts memory that the driver keeps for itself as used.
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        power_mw = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        temperature = self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        return {
            f"gpu_utilisation_percent:{uuid}": None if rates is None else float(rates.gpu),
            f"gpu_memory_percent:{uuid}": 100 * memory.used / memory.total if memory and memory.total else None,
            f"gpu_power_w:{uuid}": None if power_mw is None else power_mw / 1000,
            f"gpu_temperature_c:{uuid}": None if temperature is None else float(temperature),
        }

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            found = self._ask(lambda: self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode()))
            if found is None:
                return None
            self._handles[uuid] = found
        return self._handles[uuid]

    def _ask(self, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except self._nvml.NVMLError:
            return None
