"""What the server says about itself while a level is measured: counters before and after, gauges in between."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from engine.config import Endpoint
from engine.errors import LabError
from engine.telemetry.prometheus import ServerMetrics, scrape

# Writing /metrics takes the API server about 10 ms of its core: once a second is 1%.
EVERY_S = 1.0
UNKNOWN = ServerMetrics()


class MetricsWatch:
    """Reads ``/metrics`` once a second on a thread of its own; a server without it leaves everything unknown."""

    def __init__(self, endpoint: Endpoint, every_s: float = EVERY_S) -> None:
        self._endpoint, self._every_s = endpoint, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load-metrics", daemon=True)
        self.before = self.after = self.now = UNKNOWN
        self._usage: list[float] = []
        self._waiting: list[int] = []

    def __enter__(self) -> Self:
        self.before = self._read()
        if self.before != UNKNOWN:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
            self.after = self._read()

    @property
    def waiting(self) -> int | None:
        """Requests that waited in the server at the last reading."""
        return self.now.waiting

    @property
    def kv_cache_peak_pct(self) -> float | None:
        return 100 * max(self._usage) if self._usage else None

    @property
    def waiting_peak(self) -> int | None:
        return max(self._waiting) if self._waiting else None

    def grown(self, name: str) -> int | None:
        """By how much a counter grew; None where it isn't known, or where a restart set it back."""
        before, after = getattr(self.before, name), getattr(self.after, name)
        return after - before if before is not None and after is not None and after >= before else None

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self.now = self._read()
            if self.now.kv_cache_usage is not None:
                self._usage.append(self.now.kv_cache_usage)
            if self.now.waiting is not None:
                self._waiting.append(self.now.waiting)

    def _read(self) -> ServerMetrics:
        try:
            return scrape(self._endpoint)
        except LabError:
            return UNKNOWN
