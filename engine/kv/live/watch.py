"""What the page of live blocks shows, put together for everybody who looks, and only while somebody does.

``/metrics`` and the words in blocks are asked for by one thread, once a second, whatever the number of viewers; it
ends when nobody has looked for a while, and keeps still while something is measured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.errors import AlreadyRunning, LabError, RequestRejected, ServerNotReady
from engine.kv.live.block_tree import Key
from engine.kv.live.chains import Segment
from engine.kv.live.follow import Cache, LiveBlocks
from engine.kv.live.sharing import FourRequests, SharingSnapshot
from engine.kv.live.words import WordBook
from engine.server.state import ServerSnapshot
from engine.telemetry.prometheus import ServerMetrics, scrape

EVERY_S = 1.0
LOOK_LASTS_S = 5.0
CHAINS = 8
ATTACHED = "This server was started elsewhere, so what it says about its blocks does not come here."
# More would keep the server from its work for too long at a time.
WORDS_AT_ONCE = 24


@dataclass(frozen=True)
class BlocksSnapshot:
    """The live cache at one moment.

    ``cache`` is None where there are no events, and ``missing`` says why. ``metrics`` are the last that were read, None
    before and while something is measured. ``used_blocks`` hold something for a running request, of ``total_blocks``
    that can be used.
    """

    server: ServerSnapshot
    cache: Cache | None
    missing: str
    metrics: ServerMetrics | None
    four: SharingSnapshot

    @property
    def total_blocks(self) -> int | None:
        """vLLM keeps one block back, to stand for no block."""
        total = self.metrics.num_blocks if self.metrics else None
        return None if total is None else total - 1

    @property
    def used_blocks(self) -> int | None:
        usage = self.metrics.kv_cache_usage if self.metrics else None
        return None if usage is None or self.total_blocks is None else round(usage * self.total_blocks)

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share 0 to 1 of all prompt tokens since the server's start."""
        return self.metrics.prefix_hit_rate_since(NOTHING_ASKED) if self.metrics else None


NOTHING_ASKED = ServerMetrics(prefix_queries=0, prefix_hits=0)


class BlockWatch:
    """Any thread may look. ``server`` gives the server's state now; ``before_sending`` may refuse the four requests."""

    def __init__(
        self, live: LiveBlocks, server: Callable[[], ServerSnapshot], before_sending: Callable[[], None] = lambda: None
    ) -> None:
        self._live, self._server, self._before = live, server, before_sending
        self._words = WordBook()
        self._four = FourRequests(live.mark, self._may_send)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._looked_s = 0.0
        self._generation = 0
        self._metrics: ServerMetrics | None = None
        self._tells_words = True

    def look(self) -> BlocksSnapshot:
        """The state now; keeps ``/metrics`` and words coming for the next few seconds."""
        server = self._server()
        with self._lock:
            self._looked_s = time.monotonic()
            self._follow(server)
            if server.ready and not self._watching() and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run, name="block-watch", daemon=True)
                self._thread.start()
            metrics = None if server.reserved else self._metrics  # what was read before is not true now
        cache = self._live.cache(self._words.get, CHAINS) if server.ready else None
        missing = "" if cache else ATTACHED if server.attached else self._live.missing
        return BlocksSnapshot(server, cache, missing, metrics, self._four.snapshot())

    def send_four(self) -> None:
        """Send the four requests. Raises AlreadyRunning or ServerNotReady."""
        server = self._server()
        if server.endpoint is None or not server.ready:
            raise ServerNotReady("The server is not ready.", "Start it on the Server page and wait.")
        with self._lock:
            self._follow(server)
        self._four.start(server.endpoint)

    @property
    def sending(self) -> bool:
        """Whether the four requests are on their way."""
        return self._four.running

    def close(self) -> None:
        self._closing.set()
        self._four.close()
        thread = self._thread
        if thread is not None:
            thread.join()

    def _may_send(self) -> None:
        reserved = self._server().reserved
        if reserved:
            raise AlreadyRunning(reserved, "Wait until it is over.")
        self._before()

    def _follow(self, server: ServerSnapshot) -> None:
        """What is known of one server is not true of the next."""
        if server.generation != self._generation:
            self._four.forget()
        if server.generation != self._generation or not server.ready:
            self._generation, self._metrics, self._tells_words = server.generation, None, True
            self._words.clear()

    def _watching(self) -> bool:
        """A thread that a fault has ended is replaced at the next look."""
        return self._thread is not None and self._thread.is_alive()

    # -- on the watch's thread

    def _run(self) -> None:
        while not self._closing.is_set():
            server = self._server()
            with self._lock:
                if time.monotonic() - self._looked_s > LOOK_LASTS_S or not server.ready:
                    self._thread = None
                    return
            if not server.reserved:
                self._ask(server)
            self._closing.wait(EVERY_S)

    def _ask(self, server: ServerSnapshot) -> None:
        assert server.endpoint is not None
        try:
            metrics = scrape(server.endpoint)
        except LabError:
            metrics = None
        with self._lock:
            if server.generation == self._generation:
                self._metrics = metrics
        wanted = self._wordless()
        if wanted and self._tells_words:
            try:
                self._words.ask(server.endpoint, {key: self._live.tokens(key) for key in wanted})
            except RequestRejected:  # it has no /detokenize: the next second won't change that
                self._tells_words = False
            except LabError:
                return

    def _wordless(self) -> list[Key]:
        """Blocks on the screen whose words aren't known, from the beginnings of chains on."""
        cache = self._live.cache(self._words.get, CHAINS)
        shown = [block.key for segment in _flat(cache.chains if cache else ()) for block in segment.blocks]
        return [key for key in shown if self._words.get(key) is None and self._live.tokens(key)][:WORDS_AT_ONCE]


def _flat(segments: tuple[Segment, ...]) -> Iterator[Segment]:
    """All segments, level by level."""
    while segments:
        yield from segments
        segments = tuple(child for segment in segments for child in segment.children)
