"""Restarts of the real vLLM on a CPU, forked from a process that has it imported: as quick as they are right."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.client import CompletionRequest, run_concurrently
from engine.config import Device, Endpoint, ServerConfig, Settings
from engine.environment import detect_hardware
from engine.server.command import Launch, build_launch
from engine.server.processes import group_members, openmp_files
from engine.server.state import ServerSnapshot, ServerState
from engine.server.supervisor import Supervisor
from engine.server.warm import WarmStarts
from engine.store import RunStore
from tests.e2e.lab import READY_S, data_folder, wait_for

RESTARTS = 3
BROKEN = ServerConfig(max_num_seqs=7)
PROMPT = "The capital of France is"

pytestmark = pytest.mark.skipif(
    detect_hardware(Settings.from_env()).device != Device.CPU, reason="a GPU's server is not forked"
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(data_folder(tmp_path_factory.mktemp("restart") / "data"), hub_offline=True)


@pytest.fixture(scope="module")
def warm(settings: Settings) -> WarmStarts:
    return WarmStarts(settings.logs_dir / "imports.log")


@pytest.fixture(scope="module")
def forked(settings: Settings, warm: WarmStarts) -> Iterator[Supervisor]:
    supervisor = Supervisor(settings, RunStore(settings.database), warm=warm, build=build)
    yield supervisor
    supervisor.close()


def build(config: ServerConfig, *args: Any, **kwargs: Any) -> Launch:
    """The lab's launch; its engine core fails where BROKEN is asked for."""
    launch = build_launch(config, *args, **kwargs)
    binding = {"VLLM_CPU_OMP_THREADS_BIND": "no core"} if config == BROKEN else {}
    return replace(launch, env=launch.env | binding)


def restarted(supervisor: Supervisor, config: ServerConfig) -> ServerSnapshot:
    """The next server, once it is ready."""
    before = supervisor.snapshot().generation
    supervisor.restart(config)
    wait_for("the next start", lambda: supervisor.snapshot().generation > before)
    return supervisor.wait_ready(READY_S)


def text_of(endpoint: Endpoint) -> str:
    """What greedy decoding answers."""
    (trace,) = run_concurrently(endpoint, [CompletionRequest(prompt=PROMPT, max_tokens=16, temperature=0.0)])
    assert trace.error is None
    return trace.text


def titled(pgid: int, part: str) -> int:
    (found,) = [pid for pid in group_members(pgid) if part in " ".join(psutil.Process(pid).cmdline())]
    return found


def computing_cores(worker: int) -> list[str]:
    """The cores that each thread of OpenMP may run on: gloo's, ZeroMQ's and OpenBLAS's threads are named otherwise."""
    statuses = [(task / "status").read_text() for task in Path(f"/proc/{worker}/task").iterdir()]
    return sorted(
        cores[1]
        for status in statuses
        if re.search(r"^Name:\tVLLM::Worker$", status, re.MULTILINE)
        and (cores := re.search(r"^Cpus_allowed_list:\t(.*)$", status, re.MULTILINE))
    )


def test_a_restart_is_forked_serves_and_leaves_nothing_behind(forked: Supervisor, warm: WarmStarts) -> None:
    forked.start(ServerConfig())
    forked.wait_ready(READY_S)
    zygote = warm.pids()
    for number in range(RESTARTS):
        before = forked.snapshot()
        assert before.pid is not None
        members = group_members(before.pid)
        config = ServerConfig(max_num_seqs=8 + number)
        ready = restarted(forked, config)
        assert ready.forked and ready.config == config and warm.pids() == zygote
        assert f"--max-num-seqs {8 + number}" in ready.command
        assert not any(psutil.pid_exists(pid) for pid in members)
        assert [path for pid in members for path in openmp_files(pid)] == []
        assert text_of(forked.endpoint())


def test_it_answers_and_is_bound_as_one_that_was_started_as_a_program(forked: Supervisor, settings: Settings) -> None:
    ready = restarted(forked, ServerConfig())
    assert ready.pid is not None
    of_fork = text_of(forked.endpoint()), computing_cores(titled(ready.pid, "VLLM::Worker")), ready.capacity
    engine = psutil.Process(titled(ready.pid, "VLLM::EngineCore"))
    assert set(engine.cpu_affinity() or ()) == os.sched_getaffinity(0)
    forked.stop(wait=True)
    plain = Supervisor(settings, RunStore(settings.database))
    try:
        plain.start(ServerConfig())
        started = plain.wait_ready(READY_S)
        assert started.pid is not None and not started.forked
        assert (
            text_of(plain.endpoint()),
            computing_cores(titled(started.pid, "VLLM::Worker")),
            started.capacity,
        ) == of_fork
    finally:
        plain.close()


def test_a_start_that_fails_is_explained_and_the_next_is_forked_again(forked: Supervisor, warm: WarmStarts) -> None:
    forked.stop(wait=True)
    forked.start(BROKEN)
    failed = wait_for("the failure", lambda: s if not (s := forked.snapshot()).busy else None, READY_S)
    assert failed.state == ServerState.FAILED and failed.diagnosis is not None
    assert failed.diagnosis.evidence and "no core" in " ".join(forked.log_tail())
    zygote = warm.pids()
    assert restarted(forked, ServerConfig()).forked and warm.pids() == zygote
