"""The supervisor over a fake server process: states, phases, stops at any moment, crashes, and no leftovers."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.config import Device, Endpoint, ServerConfig, Settings
from engine.endpoint_api import ServedModel
from engine.environment import Gpu, Hardware
from engine.errors import (
    AlreadyRunning,
    ConfigError,
    DataFolderInUse,
    DiskFull,
    LabError,
    ModelOffline,
    RequestRejected,
    ServerFailed,
    ServerNotReady,
    StoreError,
)
from engine.fetch import base_url_of
from engine.models import ModelOrigin, ModelSource
from engine.server import life, record, supervisor
from engine.server.life import free_port
from engine.server.processes import start_ticks
from engine.server.startup import Phase
from engine.server.state import ServerSnapshot, ServerState
from tests.fake_openai import MODEL, FakeOpenAI, Script
from tests.supervised import CPU, TIMEOUT_S, Lab, alive, eventually

SERVER_PHASES = [Phase.IMPORT, Phase.WEIGHTS, Phase.KV_CACHE, Phase.WARM_UP, Phase.READY]


# -- the start


def test_nothing_runs_before_anybody_asks(lab: Lab) -> None:
    assert lab.snapshot() == ServerSnapshot()
    with pytest.raises(ServerNotReady, match="stopped") as caught:
        lab.supervisor.endpoint()
    assert caught.value.remedy
    assert lab.supervisor.log_tail() == []


def test_a_start_is_published_at_once_and_ends_ready(lab: Lab) -> None:
    config = ServerConfig(model="owner/name", max_num_seqs=4)
    lab.supervisor.start(config)
    first = lab.snapshot()
    assert (first.state, first.generation, first.config) == (ServerState.STARTING, 1, config)
    with pytest.raises(ServerNotReady, match="starting"):
        lab.supervisor.endpoint()
    ready = lab.supervisor.wait_ready(TIMEOUT_S)
    assert (ready.state, ready.generation, ready.attached) == (ServerState.READY, 1, False)
    assert ready.pid is not None and alive(ready.pid)
    assert ready.source is not None and ready.source.model_id == "owner/name"
    assert ready.ready_after_s is not None and ready.ready_after_s == ready.elapsed_s > 0
    assert all(item.done for item in ready.phases) and len(ready.phases) == len(Phase)
    assert (ready.capacity.tokens, ready.capacity.max_concurrency) == (93_184, 91.0)
    assert lab.supervisor.endpoint() == ready.endpoint


def test_the_endpoint_has_the_servers_own_length_and_a_key_that_shows_nowhere(lab: Lab) -> None:
    ready = lab.start_and_wait(ServerConfig(max_model_len=4096))
    assert ready.endpoint is not None and ready.endpoint.api_key
    assert ready.endpoint.max_model_len == 2048  # what the server says, not what was asked for
    assert ready.endpoint.base_url.startswith("http://127.0.0.1:") and ready.endpoint.base_url.endswith("/v1")
    assert ready.command == lab.launched[0].shell_line()
    assert ready.endpoint.api_key not in repr(ready)
    assert ready.endpoint.api_key not in "\n".join(lab.supervisor.log_tail())


def test_every_start_has_a_key_of_its_own(lab: Lab) -> None:
    first = lab.start_and_wait()
    lab.supervisor.stop(wait=True)
    second = lab.start_and_wait()
    assert first.endpoint and second.endpoint
    assert first.endpoint.api_key != second.endpoint.api_key
    assert second.generation == 2


@pytest.mark.parametrize("phase", SERVER_PHASES)
def test_every_phase_of_the_start_is_seen(lab: Lab, phase: Phase) -> None:
    lab.at(phase, "wait")
    lab.supervisor.start()
    current = lab.wait_for_phase(phase)
    index = list(Phase).index(phase)
    assert [item.done for item in current.phases] == [True] * index + [False] * (len(Phase) - index)
    assert current.phases[index].elapsed_s is not None
    assert current.message
    lab.gate.touch()
    assert lab.supervisor.wait_ready(TIMEOUT_S).ready


def test_it_is_not_ready_before_a_token_came_back(lab: Lab) -> None:
    lab.at(Phase.READY, "wait")
    lab.supervisor.start()
    starting = lab.wait_for_phase(Phase.READY)
    assert starting.endpoint is not None
    port = int(starting.endpoint.base_url.split(":")[2].removesuffix("/v1"))
    socket.create_connection(("127.0.0.1", port), 5).close()  # it does listen
    with pytest.raises(ServerFailed, match="not ready after"):
        lab.supervisor.wait_ready(0.3)
    assert lab.snapshot().state == ServerState.STARTING
    lab.gate.touch()
    assert lab.supervisor.wait_ready(TIMEOUT_S).ready


def test_the_times_of_a_start_are_expected_of_the_next(lab: Lab) -> None:
    ready = lab.start_and_wait()
    assert ready.expected_s is None
    lab.supervisor.stop(wait=True)
    again = lab.start_and_wait()
    assert ready.load_s is not None and ready.ready_after_s is not None and ready.load_s <= ready.ready_after_s
    assert again.expected_s == pytest.approx(ready.load_s)
    assert {item.phase for item in again.phases if item.expected_s is not None} == set(Phase) - {Phase.MODEL}


def test_the_log_of_the_server_can_be_read(lab: Lab) -> None:
    ready = lab.start_and_wait()
    assert lab.supervisor.log_tail(1, "kv cache SIZE") == [
        line for line in lab.supervisor.log_tail() if "KV cache size" in line
    ]
    assert ready.log_path is not None
    assert Path(ready.log_path).is_relative_to(lab.settings.logs_dir)
    assert Path(ready.log_path).stat().st_mode & 0o077 == 0


# -- starts that fail


@pytest.mark.parametrize("phase", SERVER_PHASES)
def test_a_crash_while_starting_is_diagnosed(lab: Lab, phase: Phase) -> None:
    lab.at(phase, "die")
    lab.supervisor.start()
    with pytest.raises(ServerFailed) as caught:
        lab.supervisor.wait_ready(TIMEOUT_S)
    failed = lab.snapshot()
    assert failed.state == ServerState.FAILED and failed.diagnosis is not None
    assert f"the fake engine fails in {phase.value}" in failed.diagnosis.cause
    assert (caught.value.cause, caught.value.remedy) == (failed.diagnosis.cause, failed.diagnosis.remedy)
    assert any("the fake engine fails" in line for line in failed.diagnosis.evidence)
    assert failed.pid is None and lab.processes() == []
    assert record.read_record(lab.settings.state_dir) is None
    with pytest.raises(ServerNotReady, match="failed"):
        lab.supervisor.endpoint()


def test_a_failed_start_can_be_repeated(lab: Lab) -> None:
    lab.at(Phase.WEIGHTS, "die")
    lab.supervisor.start()
    lab.wait_for(ServerState.FAILED)
    lab.words = []
    ready = lab.start_and_wait()
    assert (ready.generation, ready.diagnosis) == (2, None)


def test_a_first_token_that_is_refused_is_a_failure(lab: Lab) -> None:
    lab.at(Phase.READY, "refuse")
    lab.supervisor.start()
    failed = lab.wait_for(ServerState.FAILED)
    assert failed.diagnosis is not None and "the fake refuses" in failed.diagnosis.cause
    assert lab.processes() == []


def test_a_model_that_can_not_be_had_fails_with_its_remedy(lab: Lab) -> None:
    def offline(*_: Any) -> ModelSource:
        raise ModelOffline("The hub can't be reached.", "Connect to the network.")

    lab.prepare = offline
    lab.supervisor.start()
    failed = lab.wait_for(ServerState.FAILED)
    assert failed.diagnosis is not None
    assert (failed.diagnosis.cause, failed.diagnosis.remedy) == (
        "The hub can't be reached.",
        "Connect to the network.",
    )
    assert lab.launched == []


def test_a_fault_of_the_lab_itself_does_not_stay_at_starting(lab: Lab) -> None:
    def broken(*_: Any) -> ModelSource:
        raise ZeroDivisionError("oh")

    lab.prepare = broken
    lab.supervisor.start()
    failed = lab.wait_for(ServerState.FAILED)
    assert failed.diagnosis is not None and "ZeroDivisionError: oh" in failed.diagnosis.cause


def test_a_port_that_is_taken_is_refused_before_anything_starts(lab: Lab) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        lab.supervisor.start(ServerConfig(port=port))
        failed = lab.wait_for(ServerState.FAILED)
    assert failed.diagnosis is not None and f"Port {port} is taken" in failed.diagnosis.cause
    assert failed.diagnosis.remedy
    assert lab.launched == []


def test_a_chosen_port_is_used(lab: Lab) -> None:
    port = free_port()
    ready = lab.start_and_wait(ServerConfig(port=port))
    assert ready.endpoint is not None and ready.endpoint.base_url == f"http://127.0.0.1:{port}/v1"


def test_a_record_that_can_not_be_written_leaves_no_server(lab: Lab) -> None:
    lab.settings.state_dir.mkdir(parents=True, exist_ok=True)
    (lab.settings.state_dir / "server.new").mkdir()
    lab.supervisor.start()
    failed = lab.wait_for(ServerState.FAILED)
    assert failed.diagnosis is not None
    assert len(lab.launched) == 1 and lab.processes() == []


def test_two_starts_within_a_second_have_logs_of_their_own(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "20251201-120000")
    first = lab.start_and_wait()
    lab.supervisor.stop(wait=True)
    lab.at(Phase.IMPORT, "wait")
    lab.supervisor.start()
    second = eventually(lambda: lab.snapshot() if lab.snapshot().log_path else None)
    assert second.log_path != first.log_path
    assert second.phases[-1].elapsed_s is None


# -- the stop


@pytest.mark.parametrize("phase", SERVER_PHASES)
def test_a_start_can_be_called_off_in_every_phase(lab: Lab, phase: Phase) -> None:
    lab.at(phase, "wait")
    lab.supervisor.start()
    running = lab.wait_for_phase(phase)
    eventually(lab.processes)
    lab.supervisor.stop()
    stopped = lab.wait_for(ServerState.STOPPED)
    assert (stopped.state, stopped.endpoint, stopped.pid) == (ServerState.STOPPED, None, None)
    assert "no process of it is left" in stopped.message
    assert lab.processes() == [] and running.generation == stopped.generation
    assert record.read_record(lab.settings.state_dir) is None


def test_a_start_can_be_called_off_while_the_model_is_prepared(lab: Lab) -> None:
    preparing = threading.Event()

    def endless(model: str, settings: Settings, progress: Callable[[str], None], check: Callable[[], None]) -> Any:
        progress("Downloading 1 of 9")
        preparing.set()
        while True:
            check()
            time.sleep(0.01)

    lab.prepare = endless
    lab.supervisor.start()
    assert preparing.wait(TIMEOUT_S)
    assert lab.snapshot().message == "Downloading 1 of 9"
    lab.supervisor.stop(wait=True)
    assert lab.snapshot().state == ServerState.STOPPED
    assert "before it began" in lab.snapshot().message
    assert lab.launched == []


def test_a_ready_server_is_stopped_and_its_record_dropped(lab: Lab) -> None:
    ready = lab.start_and_wait()
    assert ready.pid is not None
    lab.supervisor.stop()
    assert lab.snapshot().state in (ServerState.STOPPING, ServerState.STOPPED)
    stopped = lab.wait_for(ServerState.STOPPED)
    assert not alive(ready.pid) and stopped.diagnosis is None
    assert record.read_record(lab.settings.state_dir) is None
    with pytest.raises(ServerFailed, match="was stopped"):
        lab.supervisor.wait_ready(TIMEOUT_S)


def test_a_server_that_ignores_the_request_to_end_is_ended_all_the_same(lab: Lab) -> None:
    lab.words = ["--stubborn"]
    ready = lab.start_and_wait()
    lab.supervisor.stop()
    stopping = lab.snapshot()
    assert stopping.state == ServerState.STOPPING and stopping.busy
    with pytest.raises(AlreadyRunning, match="stopping"):
        lab.supervisor.start()
    lab.supervisor.stop(wait=True)
    assert lab.snapshot().state == ServerState.STOPPED
    assert ready.pid is not None and not alive(ready.pid)


def test_stopping_twice_or_nothing_does_nothing(lab: Lab) -> None:
    lab.supervisor.stop(wait=True)
    assert lab.snapshot() == ServerSnapshot()
    lab.start_and_wait()
    lab.supervisor.stop()
    lab.supervisor.stop()
    lab.supervisor.stop(wait=True)
    lab.supervisor.stop(wait=True)
    assert lab.snapshot().state == ServerState.STOPPED


def test_closing_leaves_no_process_and_may_be_repeated(lab: Lab) -> None:
    lab.start_and_wait()
    assert len(lab.processes()) == 2  # the server and its guard
    lab.supervisor.close()
    assert lab.processes() == []
    lab.supervisor.close()


def test_the_memory_of_the_gpus_is_awaited_after_a_stop(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_free(*free: int | None) -> Hardware:
        return replace(CPU, device=Device.CUDA, gpus=tuple(Gpu(i, memory_free_bytes=f) for i, f in enumerate(free)))

    lab.hardware = with_free(2**33, 2**33)
    lab.start_and_wait()
    lab.supervisor.stop(wait=True)
    assert "GPU memory is back" in lab.snapshot().message
    monkeypatch.setattr(life, "MEMORY_BACK_S", 0.3)
    lab.start_and_wait()
    lab.hardware = with_free(2**33, 2**30)
    lab.supervisor.stop(wait=True)
    assert "still held" in lab.snapshot().message
    lab.hardware = with_free(None)
    lab.start_and_wait()
    lab.supervisor.stop(wait=True)
    assert "GPU" not in lab.snapshot().message


# -- a crash while ready


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash_while_ready_is_noticed_and_diagnosed(lab: Lab, number: signal.Signals) -> None:
    ready = lab.start_and_wait()
    assert ready.pid is not None
    os.kill(ready.pid, number)
    failed = lab.wait_for(ServerState.FAILED)
    assert failed.diagnosis is not None and number.name in failed.diagnosis.cause
    assert failed.diagnosis.remedy
    assert failed.pid is None and failed.generation == ready.generation
    assert record.read_record(lab.settings.state_dir) is None
    with pytest.raises(ServerNotReady, match="failed"):
        lab.supervisor.endpoint()
    assert lab.start_and_wait().generation == ready.generation + 1


def test_a_guard_that_is_killed_is_noticed(lab: Lab) -> None:
    ready = lab.start_and_wait()
    assert ready.pid is not None
    os.kill(psutil.Process(ready.pid).ppid(), signal.SIGKILL)
    failed = lab.wait_for(ServerState.FAILED)
    assert failed.diagnosis is not None and "guard process was killed" in failed.diagnosis.cause
    assert not alive(ready.pid)


# -- one at a time


def test_of_many_presses_of_start_at_once_one_wins(lab: Lab) -> None:
    barrier = threading.Barrier(8)
    outcomes: list[str] = []

    def press() -> None:
        barrier.wait(TIMEOUT_S)
        try:
            lab.supervisor.start()
            outcomes.append("started")
        except AlreadyRunning:
            outcomes.append("refused")

    threads = [threading.Thread(target=press) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert sorted(outcomes) == ["refused"] * 7 + ["started"]
    ready = lab.supervisor.wait_ready(TIMEOUT_S)
    assert ready.generation == 1 and len(lab.launched) == 1
    assert len(lab.processes()) == 2


def test_a_start_while_ready_is_refused_and_harms_nothing(lab: Lab) -> None:
    ready = lab.start_and_wait()
    with pytest.raises(AlreadyRunning, match="ready"):
        lab.supervisor.start(ServerConfig(max_num_seqs=1))
    assert lab.snapshot() == ready


# -- restart


def test_a_restart_has_the_new_configuration_and_ends_the_old_server(lab: Lab) -> None:
    first = lab.start_and_wait()
    config = ServerConfig(max_num_seqs=3)
    lab.supervisor.restart(config)
    second = eventually(lambda: lab.snapshot() if lab.snapshot().generation == 2 and lab.snapshot().ready else None)
    assert second.config == config and second.pid != first.pid
    assert first.pid is not None and not alive(first.pid)
    assert len(lab.processes()) == 2


def test_waiting_for_a_restart_never_sees_the_gap_as_stopped(lab: Lab) -> None:
    lab.start_and_wait()
    lab.supervisor.restart(ServerConfig(max_num_seqs=3))
    assert lab.supervisor.wait_ready(TIMEOUT_S).generation == 2


def test_a_restart_during_a_start_replaces_it(lab: Lab) -> None:
    lab.at(Phase.KV_CACHE, "hang")
    lab.supervisor.start()
    lab.wait_for_phase(Phase.KV_CACHE)
    lab.words = []
    lab.supervisor.restart(ServerConfig(max_num_seqs=3))
    ready = lab.supervisor.wait_ready(TIMEOUT_S)
    assert ready.config == ServerConfig(max_num_seqs=3)
    assert len(lab.processes()) == 2


def test_a_restart_of_nothing_is_a_start(lab: Lab) -> None:
    lab.supervisor.restart(ServerConfig(max_num_seqs=3))
    assert lab.supervisor.wait_ready(TIMEOUT_S).generation == 1


def test_a_stop_calls_off_a_restart(lab: Lab) -> None:
    lab.words = ["--stubborn"]
    lab.start_and_wait()
    lab.supervisor.restart(ServerConfig(max_num_seqs=3))
    lab.supervisor.stop(wait=True)
    assert lab.snapshot().state == ServerState.STOPPED
    assert len(lab.launched) == 1 and lab.processes() == []


# -- the record


def test_another_process_finds_the_running_server_in_the_record(lab: Lab) -> None:
    ready = lab.start_and_wait(ServerConfig(max_num_seqs=3))
    found = eventually(lambda: (r := record.read_record(lab.settings.state_dir)) and r.ready and r)
    assert found.alive and found.pid == ready.pid
    assert ready.endpoint is not None
    beside = lab.open(owner=False)
    assert beside.snapshot().message == ""
    with pytest.raises(DataFolderInUse) as caught:
        beside.start()
    assert caught.value.remedy
    beside.adopt(found)
    adopted = beside.snapshot()
    assert adopted.ready and adopted.attached
    assert beside.endpoint() == ready.endpoint
    assert (adopted.config, adopted.source) == (ready.config, ready.source)
    beside.close()
    assert ready.pid is not None and alive(ready.pid)


def test_the_record_of_a_start_is_not_ready(lab: Lab) -> None:
    lab.at(Phase.WARM_UP, "hang")
    lab.supervisor.start()
    lab.wait_for_phase(Phase.WARM_UP)
    found = record.read_record(lab.settings.state_dir)
    assert found is not None and found.ready is False and found.alive


def test_a_leftover_of_an_earlier_life_is_ended_at_open(lab: Lab) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as left:
        ticks = start_ticks(left.pid)
        assert ticks is not None
        source = ModelSource("m", Path("."), ModelOrigin.LOCAL, "", None).to_dict()
        left_record = record.ServerRecord(left.pid, ticks, "http://127.0.0.1:1/v1", "k", "m", True, {}, source, "", "")
        record.write_record(lab.settings.state_dir, left_record)
        assert lab.open(owner=False).snapshot().message == ""
        assert left.poll() is None
        assert "Ended 1 processes" in lab.open().snapshot().message
        assert left.wait(TIMEOUT_S) == -signal.SIGKILL
    assert record.read_record(lab.settings.state_dir) is None


# -- attach


def test_attaching_to_another_server_and_detaching(lab: Lab) -> None:
    with FakeOpenAI() as fake:
        lab.supervisor.attach(f"127.0.0.1:{fake.port}", "their-key")
        attached = lab.snapshot()
        assert attached.ready and attached.attached and attached.endpoint is not None
        assert attached.endpoint == fake.endpoint("their-key")
        with pytest.raises(AlreadyRunning, match="attached") as caught:
            lab.supervisor.start()
        assert "Detach" in caught.value.remedy
        lab.supervisor.stop(wait=True)
        assert lab.snapshot().attached
        lab.supervisor.detach()
        assert lab.snapshot().state == ServerState.STOPPED and not lab.snapshot().attached
        lab.supervisor.detach()
        lab.supervisor.attach(fake.base_url)
        assert lab.snapshot().generation > attached.generation
        lab.supervisor.close()
        with socket.create_connection(("127.0.0.1", fake.port), 5):
            pass
    assert lab.launched == []


def test_attaching_while_the_labs_own_server_runs_is_refused(lab: Lab) -> None:
    ready = lab.start_and_wait()
    with FakeOpenAI() as fake, pytest.raises(AlreadyRunning):
        lab.supervisor.attach(fake.base_url)
    assert lab.snapshot() == ready
    lab.supervisor.detach()
    assert lab.snapshot() == ready


def test_attaching_to_nothing_changes_nothing(lab: Lab) -> None:
    with pytest.raises(ServerNotReady):
        lab.supervisor.attach(f"http://127.0.0.1:{free_port()}/v1")
    assert lab.snapshot() == ServerSnapshot()


def test_a_served_model_has_the_name_the_server_gives_it(lab: Lab) -> None:
    with FakeOpenAI(max_model_len=None) as fake:
        lab.supervisor.attach(fake.base_url)
    endpoint = lab.supervisor.endpoint()
    assert (endpoint.model, endpoint.max_model_len) == (MODEL, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://host/v1",
        "http://user:pw@host",
        "http://a b",
        "http://host:0",
        "http://",
        "https://",
        "http://host?x=1",
    ],
)
def test_what_is_no_base_url_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        base_url_of(text)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        (" http://host:8000/ ", "http://host:8000/v1"),
        ("https://host/v1/", "https://host/v1"),
        ("https://host/openai/v1", "https://host/openai/v1"),
        ("https://host/v1beta/openai/", "https://host/v1beta/openai"),
    ],
)
def test_a_base_url_is_completed(text: str, url: str) -> None:
    assert base_url_of(text) == url


def test_the_record_on_disk_has_the_key_of_the_endpoint(lab: Lab) -> None:
    ready = lab.start_and_wait()
    assert ready.endpoint is not None
    saved = json.loads((lab.settings.state_dir / record.FILE_NAME).read_text())
    assert saved["api_key"] == ready.endpoint.api_key


# -- what must hold when several people press buttons


def test_a_stop_in_the_middle_of_a_restart_ends_it(lab: Lab) -> None:
    lab.start_and_wait()
    for _ in range(5):
        lab.supervisor.restart(ServerConfig(max_num_seqs=3))
        lab.supervisor.stop(wait=True)
        assert lab.snapshot().state == ServerState.STOPPED
        assert lab.processes() == []
        lab.start_and_wait()


def test_an_attach_does_not_overwrite_a_server_that_was_started_meanwhile(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe_while_somebody_starts(*_: Any) -> None:
        lab.supervisor.start()

    monkeypatch.setattr(supervisor, "probe_one_token", probe_while_somebody_starts)
    with FakeOpenAI() as fake, pytest.raises(AlreadyRunning):
        lab.supervisor.attach(fake.base_url)
    assert not lab.supervisor.wait_ready(TIMEOUT_S).attached


def test_what_is_reserved_can_only_be_changed_by_its_holder(lab: Lab) -> None:
    refused: list[str] = []

    def press_everything() -> None:
        for press in (
            lab.supervisor.start,
            lab.supervisor.stop,
            lab.supervisor.detach,
            lambda: lab.supervisor.restart(ServerConfig()),
            lambda: lab.supervisor.attach("http://127.0.0.1:9"),
        ):
            try:
                press()
            except AlreadyRunning as error:
                refused.append(error.cause)

    with lab.supervisor.reserved("A test is running."):
        assert lab.snapshot().reserved == "A test is running."
        other = threading.Thread(target=press_everything)
        other.start()
        other.join(TIMEOUT_S)
        assert refused == ["A test is running."] * 5
        lab.start_and_wait()
        assert lab.snapshot().reserved == "A test is running."
        lab.supervisor.stop(wait=True)
    assert lab.snapshot().reserved == ""
    lab.start_and_wait()


def test_closing_ends_what_another_thread_has_reserved(lab: Lab) -> None:
    lab.start_and_wait()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lab.supervisor.reserved("A test is running."):
            held.set()
            release.wait(TIMEOUT_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(TIMEOUT_S)
    lab.supervisor.close()
    release.set()
    holder.join(TIMEOUT_S)
    assert lab.snapshot().state == ServerState.STOPPED and lab.processes() == []


# -- attached servers


def test_attaching_to_several_models_wants_one_of_them_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    served = [ServedModel("a/b", 100), ServedModel("c/d", None)]
    monkeypatch.setattr(supervisor, "list_models", lambda *_: served)
    monkeypatch.setattr(supervisor, "probe_one_token", lambda *_: None)
    with pytest.raises(ConfigError, match="a/b, c/d"):
        lab.supervisor.attach("127.0.0.1:9")
    with pytest.raises(ConfigError, match="e/f"):
        lab.supervisor.attach("127.0.0.1:9", model="e/f")
    lab.supervisor.attach("127.0.0.1:9", model="c/d")
    assert lab.supervisor.endpoint() == Endpoint("http://127.0.0.1:9/v1", "c/d")


def test_attaching_wants_a_first_token(lab: Lab) -> None:
    broken = Script(status=500, body=b'{"error": {"message": "engine dead"}}')
    with FakeOpenAI(broken) as fake, pytest.raises(RequestRejected, match="engine dead"):
        lab.supervisor.attach(fake.base_url)
    assert lab.snapshot().state == ServerState.STOPPED


def test_an_attached_server_that_goes_away_shows_and_so_does_its_return(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "WATCH_S", 0.05)
    with FakeOpenAI() as fake:
        lab.supervisor.attach(fake.base_url)
        port = fake.port
    failed = lab.wait_for(ServerState.FAILED)
    assert failed.attached and failed.diagnosis is not None and failed.diagnosis.remedy
    with pytest.raises(ServerNotReady):
        lab.supervisor.endpoint()
    with FakeOpenAI(port=port):
        assert lab.wait_for(ServerState.READY).diagnosis is None
    lab.supervisor.detach()
    assert lab.snapshot().state == ServerState.STOPPED


# -- what must not stop a healthy server


@pytest.mark.parametrize(
    "error", [StoreError("The database is locked.", "Try again."), DiskFull("No room on the disk.", "Free some space.")]
)
def test_a_history_that_can_not_be_read_or_written_stops_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, error: LabError
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(lab.store, "add_start", fail)
    monkeypatch.setattr(lab.store, "expected_start", fail)
    assert lab.start_and_wait().ready


def test_processes_that_can_not_be_ended_are_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.start_and_wait()
    really_stop = life.ServerChild.stop

    def stop(self: Any) -> Any:
        return replace(really_stop(self), left=(4711, 4712))

    monkeypatch.setattr(life.ServerChild, "stop", stop)
    lab.supervisor.restart(ServerConfig(max_num_seqs=3))
    failed = lab.wait_for(ServerState.FAILED)
    assert failed.diagnosis is not None and "4711, 4712" in failed.diagnosis.cause
    assert failed.generation == 1, "no second server may start beside what is left"


@pytest.mark.parametrize(("number", "name"), [(errno.ENOSPC, "disk_full"), (errno.EROFS, "refused")])
def test_a_folder_that_can_not_be_written_is_no_fault_of_the_lab(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(life.record, "write_record", fail)
    lab.supervisor.start()
    failed = lab.wait_for(ServerState.FAILED)
    assert failed.diagnosis is not None and failed.diagnosis.name == name and failed.diagnosis.remedy
    assert lab.processes() == []


@pytest.mark.parametrize("key", ["a\x00b", "schlüssel", "a\nb"])
def test_a_key_that_is_none_is_refused(lab: Lab, key: str) -> None:
    with FakeOpenAI() as fake:
        with pytest.raises(ConfigError, match="API key"):
            lab.supervisor.attach(fake.base_url, key)
        lab.supervisor.attach(fake.base_url, " key\n")
    assert lab.supervisor.endpoint().api_key == "key"
