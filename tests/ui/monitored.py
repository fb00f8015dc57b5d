"""A lab whose dashboard shows scripted minutes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from engine.server.state import ServerSnapshot
from engine.telemetry.alerts import Limits, spans
from engine.telemetry.marks import Mark, MarkKind
from engine.telemetry.readings import MetricsReader
from engine.telemetry.sampler import TelemetrySnapshot
from engine.telemetry.series import Sample
from engine.telemetry.window import look
from tests.ui.fakes import READY, STOPPED, FakeLab, make_lab
from tests.unit.telemetry_texts import metrics_text

T0 = 1_796_107_000.0
MACHINE = {
    "host_busy_cores": 1.9,
    "host_memory_gb": 6.1,
    "process_busy_cores:EngineCore": 1.7,
    "process_memory_gb:EngineCore": 2.4,
    "client_busy_cores": 0.1,
}
GPU = {
    "gpu_utilisation_percent:GPU-1": 88.0,
    "gpu_memory_percent:GPU-1": 91.0,
    "gpu_power_w:GPU-1": None,
    "gpu_temperature_c:GPU-1": 61.0,
}
Maker = Callable[[int, Limits], TelemetrySnapshot]


@dataclass
class FakeTelemetry:
    """Answers with what ``make`` makes; keeps what was asked for."""

    make: Maker
    asked: list[tuple[int, Limits]] = field(default_factory=list)

    def snapshot(self, window_s: int = 300, limits: Limits | None = None) -> TelemetrySnapshot:
        self.asked.append((window_s, limits or Limits()))
        return self.make(window_s, limits or Limits())


def idle(window_s: int, limits: Limits) -> TelemetrySnapshot:
    """No server: the machine alone."""
    samples = [Sample(T0 + second, 0, None, MACHINE) for second in range(0, 60, 5)]
    return TelemetrySnapshot(look(samples, window_s, T0 + 55))


def busy(window_s: int, limits: Limits, quiet: bool = False, gpu: bool = False) -> TelemetrySnapshot:
    """Two minutes under a growing load; ``quiet``: a server that nobody asks anything."""
    reader, samples = MetricsReader(), []
    for second in range(120):
        done = 0 if quiet else second // 2
        text = metrics_text(
            running=0 if quiet else 8,
            waiting=0 if quiet else second // 10,
            kv=0.0 if quiet else min(1.0, second / 120 + 0.1),
            generation=0 if quiet else 300 * second,
            prompt=0 if quiet else 40 * second,
            preemptions=0,
            queries=0 if quiet else 40 * second,
            hits=0 if quiet else 10 * second,
            observed={"ttft": [0.3] * done, "e2e": [0.7] * done},
        )
        samples.append(Sample(T0 + second, 1, reader.read(text), MACHINE | (GPU if gpu else {})))
    window = look(samples, window_s, T0 + 119)
    marks = (
        Mark(T0 + 2, MarkKind.SERVER, "Server ready"),
        Mark(T0 + 20, MarkKind.LOAD, "4 users"),
        Mark(T0 + 70, MarkKind.LOAD, "16 users"),
    )
    return TelemetrySnapshot(
        window,
        spans(window.points, limits),
        tuple(mark for mark in marks if mark.at_s >= window.from_s),
        ready=True,
        cost_cores=0.004,
        gpu_names={"GPU-1": "GPU"} if gpu else {},
    )


def quiet(window_s: int, limits: Limits) -> TelemetrySnapshot:
    return replace(busy(window_s, limits, quiet=True), marks=(), spans=())


def with_gpu(window_s: int, limits: Limits) -> TelemetrySnapshot:
    return busy(window_s, limits, gpu=True)


def monitored(make: Maker, server: ServerSnapshot | None = None, runs: list[object] | None = None) -> FakeLab:
    lab = make_lab(server or (STOPPED if make is idle else READY), runs=runs)
    lab.telemetry = FakeTelemetry(make)  # type: ignore[attr-defined]
    return lab
