"""The one collector of this process: server, GPU, machine and load generator once a second, for everybody who looks.

Nobody who looks causes a reading. While no server is ready only the machine is looked at, and less often.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.environment import Gpu
from engine.errors import LabError
from engine.load.results import LoadSnapshot
from engine.server.state import ServerSnapshot
from engine.telemetry.alerts import Limits, Span, spans
from engine.telemetry.gpu import GpuReader
from engine.telemetry.marks import Mark, load_marks, server_marks
from engine.telemetry.processes import ProcessReader
from engine.telemetry.prometheus import read
from engine.telemetry.readings import MetricsReader, Reading
from engine.telemetry.series import Sample, Series
from engine.telemetry.window import Window, look

TICK_S = 1.0
# Writing /metrics takes the API server about 10 ms of its core: while it is measured it is asked half as often.
MEASURED_TICK_S = 2.0
IDLE_TICK_S = 5.0
TIMEOUT_S = 2.0
MOST_MARKS = 500
MOST_WINDOWS = 8
SILENT = "The server does not answer at /metrics: its lines have a gap."


@dataclass(frozen=True)
class TelemetrySnapshot:
    """What the dashboard shows of the last minutes.

    ``ready``: a server is up. ``silent``: it is, and says nothing of itself. ``cost_cores`` is what collecting takes,
    as a share of one core over the last minute. ``gpu_names`` are by UUID.
    """

    window: Window
    spans: tuple[Span, ...] = ()
    marks: tuple[Mark, ...] = ()
    ready: bool = False
    silent: bool = False
    notice: str = ""
    cost_cores: float | None = None
    gpu_names: dict[str, str] = field(default_factory=dict)


class Sampler:
    """``start()`` begins; any thread may look. ``server`` and ``load`` give what is true now."""

    def __init__(
        self,
        server: Callable[[], ServerSnapshot],
        load: Callable[[], LoadSnapshot],
        gpus: Sequence[Gpu] = (),
        *,
        gpu_reader: GpuReader | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._server, self._load, self._clock = server, load, clock
        self._gpu = gpu_reader or GpuReader(gpus)
        self._processes, self._metrics = ProcessReader(), MetricsReader()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._series = Series()
        self._marks: deque[Mark] = deque(maxlen=MOST_MARKS)
        self._seen_server, self._seen_load = ServerSnapshot(), LoadSnapshot()
        self._era, self._generation = 0, 0
        self._last: Reading | None = None
        self._costs: deque[tuple[float, float]] = deque(maxlen=60)
        self._windows: dict[tuple[int, Limits], TelemetrySnapshot] = {}

    def start(self) -> None:
        """Begin collecting; nothing happens when it has begun."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End it and wait for that."""
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        self._gpu.close()

    def snapshot(self, window_s: int = 300, limits: Limits | None = None) -> TelemetrySnapshot:
        """The last ``window_s`` seconds; worked out once for each new sample, whatever the number of viewers."""
        limits = limits or Limits()
        with self._lock:
            known = self._windows.get((window_s, limits))
            if known is not None:
                return known
            now_s = self._series.last.at_s if self._series.last else self._clock()
            samples = self._series.since(now_s - window_s)
            marks = tuple(mark for mark in self._marks if mark.at_s >= now_s - window_s)
            server, costs = self._seen_server, list(self._costs)
        window = look(samples, window_s, now_s)
        last = samples[-1] if samples else None
        made = TelemetrySnapshot(
            window,
            spans(window.points, limits),
            marks,
            server.ready,
            server.ready and last is not None and last.reading is None,
            self._gpu.notice,
            _cost(costs),
            self._gpu.names,
        )
        with self._lock:
            if last is self._series.last and len(self._windows) < MOST_WINDOWS:
                self._windows[(window_s, limits)] = made
        return made

    # -- on the sampler's thread

    def _run(self) -> None:
        next_s = time.monotonic()
        while not self._closing.is_set():
            ready = self.tick()
            tick_s = (MEASURED_TICK_S if self._seen_server.reserved else TICK_S) if ready else IDLE_TICK_S
            next_s = max(next_s + tick_s, time.monotonic())
            self._wait(next_s, ready)

    def _wait(self, until_s: float, ready: bool) -> None:
        """Shorter where a server has come up meanwhile: asking for its state costs nothing."""
        while not self._closing.wait(min(TICK_S, max(0.0, until_s - time.monotonic()))):
            if time.monotonic() >= until_s or (not ready and self._changed()):
                return

    def _changed(self) -> bool:
        server = self._server()
        return (server.state, server.generation) != (self._seen_server.state, self._seen_server.generation)

    def tick(self) -> bool:
        """Take one sample; True while a server is ready. Called by the thread, and by tests."""
        began_s = time.thread_time()
        server = self._server()
        reading = self._ask(server) if server.ready else None
        at_s = self._clock()  # after the answer: a late one tells of its own moment, and rates divide by these times
        machine = self._gpu.read()
        # Of an attached server nothing is known but what it says: its processes may be on another machine.
        group = server.pid if not server.attached else None
        machine |= self._processes.read(group, bool(server.reserved))
        load = self._load() if server.reserved or self._seen_load.running else self._seen_load
        with self._lock:
            self._marks.extend(server_marks(self._seen_server, server, at_s))
            self._marks.extend(load_marks(self._seen_load, load, at_s))
            self._seen_server, self._seen_load = server, load
            self._note_era(server, reading)
            self._series.add(Sample(at_s, self._era, reading, machine))
            self._windows.clear()
            self._costs.append((time.monotonic(), time.thread_time() - began_s))
        return server.ready

    def _ask(self, server: ServerSnapshot) -> Reading | None:
        """None for everything but a whole text that makes sense."""
        if server.endpoint is None:
            return None
        try:
            return self._metrics.read(read(server.endpoint, TIMEOUT_S), server.endpoint.engine)
        except LabError:
            return None

    def _note_era(self, server: ServerSnapshot, reading: Reading | None) -> None:
        anew = server.generation != self._generation
        if reading is not None:
            anew = anew or (self._last is not None and not reading.follows(self._last))
            self._last = reading
        if anew:
            self._era += 1
            self._generation = server.generation


def _cost(costs: Sequence[tuple[float, float]]) -> float | None:
    """Share of one core over the last readings; None before there are some."""
    if len(costs) < 2:
        return None
    passed_s = costs[-1][0] - costs[0][0]
    return sum(spent_s for _, spent_s in costs[1:]) / passed_s if passed_s > 0 else None
