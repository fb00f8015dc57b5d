"""Real processes killed in the middle of a real comparison: what is told, what is kept, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

import psutil
import pytest

from engine.compare_results import CompareSnapshot, CompareState, LaneState
from engine.config import CompareConfig, Settings
from engine.server.processes import group_members, openmp_files
from engine.server.state import ServerState
from engine.services import LabServices, open_lab
from tests.e2e.lab import READY_S, data_folder, wait_for

# Long enough that there is time to kill something in the middle of an answer.
CONFIG = CompareConfig(max_tokens=100, repeats=1)
ENDS_S = 60.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServices]:
    services = open_lab(Settings(data_folder(tmp_path_factory.mktemp("kills") / "data")))
    yield services
    services.close()


def children() -> set[int]:
    """All processes below this one but the one that keeps vLLM imported, which outlives servers."""
    return {child.pid for child in psutil.Process().children(recursive=True) if not is_zygote(child)}


def is_zygote(process: psutil.Process) -> bool:
    try:
        return "engine.server.zygote" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def served(lab: LabServices) -> int:
    """The process group of a server that is ready: the one that runs, or a new one."""
    if not lab.supervisor.snapshot().ready:
        lab.supervisor.start()
    pid = lab.supervisor.wait_ready(READY_S).pid
    assert pid is not None
    return pid


def process_named(pgid: int, part: str) -> int:
    """The one process of a group whose title says what it is to vLLM."""
    (found,) = [pid for pid in group_members(pgid) if part in " ".join(psutil.Process(pid).cmdline())]
    return found


def writing(lab: LabServices, engine: str) -> Callable[[], bool]:
    """Whether an engine is in the middle of an answer."""

    def look() -> bool:
        lane = lab.compare.snapshot().lane(engine)
        return lane is not None and lane.state == LaneState.RUNNING and 5 < len(lane.text_pieces) < 60

    return look


def ended(lab: LabServices) -> CompareSnapshot:
    return wait_for(
        "the end of the comparison",
        lambda: None if lab.compare.snapshot().running else lab.compare.snapshot(),
        ENDS_S,
    )


def saved_engines(lab: LabServices, snapshot: CompareSnapshot) -> set[str]:
    """What a comparison that failed has saved."""
    assert snapshot.state == CompareState.FAILED
    run = lab.store.get(snapshot.run_id or "")
    assert run is not None and run.status == CompareState.FAILED
    assert run.results["error"] == snapshot.error
    return {name for name, found in run.results["engines"].items() if found["throughput_tok_s"] > 0}


def test_a_killed_hugging_face_process_leaves_the_server_alone_and_what_was_measured_stays(lab: LabServices) -> None:
    server = served(lab)
    before = children()
    lab.compare.start(replace(CONFIG, users=(8,)))
    wait_for("many answers of Hugging Face", lambda: "8 prompts" in lab.compare.snapshot().message, READY_S)
    (child,) = children() - before
    os.kill(child, signal.SIGKILL)
    snapshot = ended(lab)
    assert "Hugging Face process was killed" in (snapshot.error or "")
    assert saved_engines(lab, snapshot) == {"hf"}
    assert children() == before and not openmp_files(child)
    current = lab.supervisor.snapshot()
    assert (current.ready, current.pid) == (True, server)


@pytest.mark.parametrize("victim", ["VLLM::EngineCore", "VLLM::Worker"])
def test_a_killed_part_of_the_server_ends_the_comparison_and_what_was_measured_stays(
    lab: LabServices, victim: str
) -> None:
    server = served(lab)
    lab.compare.start(CONFIG)
    wait_for("an answer of vLLM", writing(lab, "vllm"), READY_S)
    os.kill(process_named(server, victim), signal.SIGKILL)
    snapshot = ended(lab)
    assert saved_engines(lab, snapshot) == {"hf"}
    failed = lab.supervisor.snapshot()
    assert failed.diagnosis is not None and (snapshot.error, snapshot.remedy) == (
        failed.diagnosis.cause,
        failed.diagnosis.remedy,
    )
    assert "was killed" in failed.diagnosis.cause
    wait_for("the end of the server", lambda: lab.supervisor.snapshot().state == ServerState.FAILED)
    assert group_members(server) == [] and children() == set()
