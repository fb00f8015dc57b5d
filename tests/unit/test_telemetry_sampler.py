"""The collector by its ticks: what it reads, what it marks, and what a bad endpoint does to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine.config import Endpoint, LoadTestConfig, ServerConfig
from engine.environment import Gpu
from engine.errors import ServerNotReady
from engine.load.results import Badge, LevelResult, LoadResults, LoadSnapshot, LoadState
from engine.server.state import ServerSnapshot, ServerState
from engine.telemetry import sampler as sampler_module
from engine.telemetry.gpu import GpuReader
from engine.telemetry.marks import load_marks
from engine.telemetry.processes import ProcessReader, process_name
from engine.telemetry.sampler import Sampler
from tests.fake_openai import FakeOpenAI
from tests.unit.telemetry_texts import metrics_text

READY = ServerSnapshot(
    ServerState.READY, generation=1, config=ServerConfig(), endpoint=Endpoint("http://127.0.0.1:9/v1", "m")
)


class Scene:
    """A sampler whose server, load test, clock and metrics text a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.load = ServerSnapshot(), LoadSnapshot()
        self.now_s = 1_796_000_000.0
        self.text: str | Exception = ""
        self.asked = 0
        self.sampler = Sampler(lambda: self.server, lambda: self.load, clock=lambda: self.now_s)
        monkeypatch.setattr(sampler_module, "read", self._read)

    def _read(self, *_: object) -> str:
        self.asked += 1
        if isinstance(self.text, Exception):
            raise self.text
        return self.text

    def tick(self, text: str | Exception | None = None) -> None:
        self.text = self.text if text is None else text
        self.sampler.tick()
        self.now_s += 1


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(monkeypatch)
    yield made
    made.sampler.close()


def test_without_a_server_only_the_machine_is_looked_at(scene: Scene) -> None:
    scene.tick()
    scene.tick()
    seen = scene.sampler.snapshot(60)
    assert scene.asked == 0 and not seen.ready and not seen.silent
    assert seen.window.points[-1].get("host_memory_gb") > 0
    assert seen.window.points[-1].get("running") is None


@pytest.mark.parametrize("bad", [ServerNotReady("gone", ""), "", "half of a te", metrics_text(generation=9)[:-1]])
def test_a_bad_reply_is_a_gap_and_no_more(scene: Scene, bad: str | Exception) -> None:
    scene.server = READY
    for count in range(4):
        scene.tick(metrics_text(generation=100 * count))
    scene.tick(bad)
    assert scene.sampler.snapshot(60).silent
    for count in range(5, 8):
        scene.tick(metrics_text(generation=100 * count))
    seen = scene.sampler.snapshot(60)
    assert not seen.silent
    rates = [point.get("generation_tok_s") for point in seen.window.points]
    assert rates[4] is None and rates[5] is None
    assert rates[-1] == pytest.approx(100.0)


def test_counters_that_were_reset_are_no_spike(scene: Scene) -> None:
    scene.server = READY
    for count in (1000, 1010, 1020, 5, 15, 25):
        scene.tick(metrics_text(start_s=None, generation=count))
    rates = [point.get("generation_tok_s") for point in scene.sampler.snapshot(60).window.points]
    assert rates == [None, pytest.approx(10), pytest.approx(10), None, pytest.approx(10), pytest.approx(10)]


def test_start_restart_and_failure_are_marked_with_what_changed(scene: Scene) -> None:
    for server in (
        replace(READY, state=ServerState.STARTING),
        READY,
        replace(READY, state=ServerState.STARTING, generation=2, config=ServerConfig(max_num_seqs=7)),
        replace(READY, state=ServerState.FAILED, generation=2),
        replace(READY, state=ServerState.FAILED, generation=2),
    ):
        scene.server = server
        scene.tick(metrics_text(running=0))
    texts = [mark.text for mark in scene.sampler.snapshot(60).marks]
    before = ServerConfig().max_num_seqs
    word = "default" if before is None else before
    assert texts == ["Start", "Server ready", f"Restart: max_num_seqs {word} → 7", "Server failed"]


def test_levels_of_a_load_test_are_marked(scene: Scene) -> None:
    scene.server = replace(READY, reserved="A load test is running.")
    running = LoadSnapshot(LoadState.RUNNING, LoadTestConfig(), labels=("2 users", "4 users"))
    for load in (
        running,
        replace(running, level=0, warming_up=True),
        replace(running, level=0),
        replace(running, level=0),
        replace(running, level=1),
        replace(running, state=LoadState.DONE, level=1),
    ):
        scene.load = load
        scene.tick(metrics_text(running=0))
    texts = [mark.text for mark in scene.sampler.snapshot(60).marks]
    assert texts == ["Server ready", "2 users, warm-up", "2 users", "4 users", "Load test done"]


def test_a_client_that_was_the_limit_is_marked_when_its_level_ends() -> None:
    running = LoadSnapshot(LoadState.RUNNING, LoadTestConfig(), level=0, labels=("64 users",))
    bound = Badge("client_bound", "Client-bound", "It used 98% of its core.")
    level = LevelResult("64 users", badges=(bound, Badge("cache_warm", "Cache-warm", "")))
    done = replace(running, results=LoadResults(levels=(level,)))
    assert [mark.text for mark in load_marks(running, done, 0.0)] == ["64 users: client-bound"]
    assert list(load_marks(done, done, 1.0)) == []
    over = replace(done, state=LoadState.DONE)
    assert [mark.text for mark in load_marks(done, over, 2.0)] == ["Load test done"]
    assert list(load_marks(over, over, 3.0)) == []


def test_viewers_share_one_snapshot_until_the_next_sample(scene: Scene) -> None:
    scene.tick()
    first = scene.sampler.snapshot(60)
    assert scene.sampler.snapshot(60) is first
    scene.tick()
    assert scene.sampler.snapshot(60) is not first


def test_it_starts_once_and_ends(scene: Scene) -> None:
    scene.sampler.start()
    thread = scene.sampler._thread
    scene.sampler.start()
    assert scene.sampler._thread is thread and thread is not None
    scene.sampler.close()
    assert not thread.is_alive()


class FakeNvml:
    """``refuses`` are the calls that this card does not answer."""

    NVML_TEMPERATURE_GPU, nvmlMemory_v2 = 0, 2

    class NVMLError(Exception):
        pass

    def __init__(self, *refuses: str) -> None:
        self.refuses, self.opened = refuses, 0

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetHandleByUUID": "handle",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=4 * 10**9, total=16 * 10**9),
            "nvmlDeviceGetPowerUsage": 70_500,
            "nvmlDeviceGetTemperature": 61,
        }

        def call(*_: object, **__: object) -> Any:
            if name == "nvmlInit":
                self.opened += 1
            if name in self.refuses:
                raise self.NVMLError
            return answers[name]

        return call


T4 = Gpu(0, "GPU-1", "Tesla T4")
FIELDS = {
    "nvmlDeviceGetUtilizationRates": ("gpu_utilisation_percent:GPU-1", 50.0),
    "nvmlDeviceGetMemoryInfo": ("gpu_memory_percent:GPU-1", 25.0),
    "nvmlDeviceGetPowerUsage": ("gpu_power_w:GPU-1", 70.5),
    "nvmlDeviceGetTemperature": ("gpu_temperature_c:GPU-1", 61.0),
}


@pytest.mark.parametrize("refused", FIELDS)
def test_a_field_that_a_card_refuses_is_unknown_and_the_others_are_known(refused: str) -> None:
    reader = GpuReader([T4], FakeNvml(refused))
    assert reader.read() == {key: None if call == refused else value for call, (key, value) in FIELDS.items()}


def test_without_nvml_it_is_said_and_not_asked_again() -> None:
    nvml = FakeNvml("nvmlInit")
    reader = GpuReader([T4], nvml)
    assert reader.read() == {} and reader.read() == {}
    assert "NVML" in reader.notice and nvml.opened == 1


def test_without_a_gpu_nothing_is_asked() -> None:
    nvml = FakeNvml()
    reader = GpuReader([], nvml)
    assert reader.read() == {} and nvml.opened == 0 and not reader.notice


def test_processes_of_a_group_are_read_by_their_part() -> None:
    clock = iter([0.0, 1.0])
    reader = ProcessReader(clock=lambda: next(clock))
    first = reader.read(os.getpgid(0), measuring=False)
    second = reader.read(os.getpgid(0), measuring=False)
    assert first["host_busy_cores"] is None
    assert any(key.startswith("process_memory_gb:") and value > 0 for key, value in second.items())
    assert second["host_busy_cores"] is not None and second["host_busy_cores"] >= 0
    assert any(key.startswith("process_busy_cores:") for key in second)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["VLLM::EngineCore_DP0"], "EngineCore_DP0"),
        (["VLLM::Worker_TP1"], "Worker_TP1"),
        (["python", "-m", "vllm.entrypoints.openai.api_server", "--port", "1"], "API server"),
        (["python", "-m", "engine.load.generator"], "engine.load.generator"),
        (["python", "-c", "resource_tracker"], "Helpers"),
        ([], "Helpers"),
    ],
)
def test_a_process_is_named_by_what_it_does(command: list[str], name: str) -> None:
    assert process_name(command) == name


def test_huge_missing_and_vanished_endpoints_are_gaps() -> None:
    """Over real HTTP: 50 MB of metrics, no such route, half an answer, nobody there."""
    good = metrics_text(running=2, generation=10)
    with FakeOpenAI() as fake:
        server = replace(READY, endpoint=Endpoint(fake.base_url, "m"))
        sampler = Sampler(lambda: server, LoadSnapshot)
        answers = []
        for text in (good, good + "filler 1\n" * 5_600_000, None, good[:-4], good):
            fake.metrics_text = text
            answers.append(sampler._ask(server) is not None)
    assert answers == [True, False, False, False, True]
    assert sampler._ask(server) is None
    sampler.close()


def test_an_endpoint_that_takes_its_time_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, and never says a word
        port = listener.getsockname()[1]
        server = replace(READY, endpoint=Endpoint(f"http://127.0.0.1:{port}/v1", "m"))
        sampler = Sampler(lambda: server, LoadSnapshot)
        assert sampler._ask(server) is None
        sampler.close()
