"""What is known about the server at one moment: frozen values that any thread may read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from engine.config import Endpoint, ServerConfig
from engine.dialects import Detected
from engine.models import ModelSource


class ServerState(StrEnum):
    """Compare with ``==``: a reloaded module makes a second class."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


class Phase(StrEnum):
    """The stages of a start, in order."""

    MODEL = "model"
    IMPORT = "import"
    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"
    WARM_UP = "warm_up"
    READY = "ready"


PHASE_LABELS = {
    Phase.MODEL: "Prepare the model",
    Phase.IMPORT: "Import vLLM",
    Phase.WEIGHTS: "Load the weights",
    Phase.KV_CACHE: "Make the KV cache",
    Phase.WARM_UP: "Warm up",
    Phase.READY: "Answer a first token",
}


@dataclass(frozen=True)
class PhaseProgress:
    """One stage: seconds spent, None before it began; seconds expected, None without history."""

    phase: Phase
    elapsed_s: float | None
    expected_s: float | None
    done: bool

    @property
    def label(self) -> str:
        return PHASE_LABELS[self.phase]


@dataclass(frozen=True)
class Fix:
    """A change of settings that is likely to help, as field names of ServerConfig."""

    label: str
    changes: dict[str, object]


@dataclass(frozen=True)
class Diagnosis:
    """Why a start or a server failed: cause and remedy in words, and the log lines that prove it."""

    name: str
    cause: str
    remedy: str
    evidence: tuple[str, ...] = ()
    fix: Fix | None = None


@dataclass(frozen=True)
class KvCapacity:
    """KV cache as the server reports it; None where it does not."""

    tokens: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    max_concurrency: float | None = None


@dataclass(frozen=True)
class ServerSnapshot:
    """Everything a page needs to know about the server.

    ``generation`` grows with every start, so that a viewer can tell one server from the next.
    ``attached``: somebody else runs it; ``adopted``: that is a lab on this data folder, so what it serves is known.
    ``detected`` is the engine of a server that somebody else runs, None for our own.
    ``ready_after_s`` counts from the press of Start, ``load_s`` from the start of the process; ``forked``: that had
    vLLM imported already. ``reserved`` says why nobody may start or stop it now; empty when anybody may.
    Times are seconds; ``started_at`` is Unix time.
    """

    state: ServerState = ServerState.STOPPED
    generation: int = 0
    attached: bool = False
    adopted: bool = False
    config: ServerConfig | None = None
    endpoint: Endpoint | None = None
    source: ModelSource | None = None
    phases: tuple[PhaseProgress, ...] = ()
    elapsed_s: float | None = None
    expected_s: float | None = None
    ready_after_s: float | None = None
    load_s: float | None = None
    forked: bool = False
    started_at: float | None = None
    message: str = ""
    diagnosis: Diagnosis | None = None
    capacity: KvCapacity = field(default_factory=KvCapacity)
    command: str = ""
    pid: int | None = None
    log_path: str | None = None
    reserved: str = ""
    detected: Detected | None = None

    @property
    def ready(self) -> bool:
        return self.state == ServerState.READY

    @property
    def engine_name(self) -> str:
        """For people; our own server is always vLLM."""
        if self.attached and not self.adopted:
            return (self.detected or Detected()).words
        return "vLLM"

    @property
    def busy(self) -> bool:
        return self.state in (ServerState.STARTING, ServerState.STOPPING)
