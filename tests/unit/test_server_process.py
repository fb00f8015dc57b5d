"""The guarded server process: whatever dies and however, nothing of it is left; log and record beside it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.config import PROJECT_ROOT
from engine.errors import ServerFailed
from engine.server import log, processes, record
from engine.server.child import Exit, ServerChild
from engine.server.command import Launch

TIMEOUT_S = 30.0
# What every scripted program can use: report() tells the test that it is set up, sleep() runs on for ever.
PRELUDE = """
import json, os, signal, subprocess, sys, time
def report(**values):
    with open(os.environ["REPORT"], "w") as file:
        json.dump({"pid": os.getpid(), **values}, file)
def ignore(*_): pass
def sleep():
    while True: time.sleep(60)
"""
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


class Program:
    """A scripted server: its launch, its log, and what it reports once it is set up."""

    def __init__(self, folder: Path, code: str) -> None:
        self.folder, self.log = folder, folder / "server.log"
        self._pipe = folder / "report"
        os.mkfifo(self._pipe)
        script = folder / "server.py"
        script.write_text(PRELUDE + code)
        self.launch = Launch((sys.executable, str(script)), {"REPORT": str(self._pipe)})

    def reported(self) -> dict[str, Any]:
        """Blocks until the program has said that it is set up."""
        return dict(json.loads(self._pipe.read_text()))


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Program]:
    return lambda code: Program(tmp_path, code)


@pytest.fixture
def run(program: Callable[[str], Program]) -> Iterator[Callable[[str], tuple[ServerChild, Program]]]:
    """Starts scripted programs, and ends what a failing test leaves behind."""
    children: list[ServerChild] = []

    def start(code: str) -> tuple[ServerChild, Program]:
        made = program(code)
        children.append(ServerChild(made.launch, made.log, os.environ))
        return children[-1], made

    yield start
    for child in children:
        child.stop()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def still_alive_after_waiting(pids: list[int]) -> list[int]:
    """The processes that do not end by themselves in good time."""
    found = [psutil.Process(pid) for pid in pids if alive(pid)]
    return [process.pid for process in psutil.wait_procs(found, timeout=TIMEOUT_S)[1] if alive(process.pid)]


def guard_of(child: ServerChild) -> int:
    assert child.pid is not None
    return psutil.Process(child.pid).ppid()


WITH_GRANDCHILDREN = f"""
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
def start(**options):
    process = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE, **options)
    process.stdout.readline()
    return process.pid
inside = [start(), start()]
outside = start(start_new_session=True)
report(pids=[*inside, outside])
sleep()
"""


# -- stop


def test_a_server_that_heeds_sigterm_ends_without_force(run: Any) -> None:
    child, made = run("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nreport()\nsleep()")
    pid = made.reported()["pid"]
    assert child.pid == pid and child.exit is None and child.wait(0.0) is None
    assert child.stop() == Exit(code=0, killed=0, left=(), asked=True)
    assert not alive(pid)


def test_a_server_that_ignores_sigterm_is_killed(run: Any) -> None:
    child, made = run("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nreport()\nsleep()")
    pid = made.reported()["pid"]
    assert child.stop() == Exit(code=-signal.SIGKILL, killed=1, left=(), asked=True)
    assert not alive(pid)


def test_stop_ends_grandchildren_that_ignore_sigterm_and_one_that_left_the_group(run: Any) -> None:
    child, made = run(WITH_GRANDCHILDREN)
    pids = made.reported()["pids"]
    assert len(pids) == 3 and all(map(alive, pids))
    ended = child.stop()
    assert (ended.code, ended.killed, ended.left, ended.asked) == (0, 2, (), True)
    assert [pid for pid in pids if alive(pid)] == []


def test_an_orphan_that_left_the_group_long_ago_is_ended_too(run: Any) -> None:
    child, made = run(
        "reader, writer = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork():\n"
        "        os._exit(0)\n"
        "    os.write(writer, str(os.getpid()).encode())\n"
        "    sleep()\n"
        "os.wait()\n"
        "report(orphan=int(os.read(reader, 20)))\n"
        "sleep()\n"
    )
    orphan = made.reported()["orphan"]
    assert alive(orphan)
    child.stop()
    assert not alive(orphan)


def test_stopping_twice_and_from_many_threads_ends_it_once(run: Any) -> None:
    child, made = run("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nreport()\nsleep()")
    made.reported()
    exits: list[Exit] = []
    threads = [threading.Thread(target=lambda: exits.append(child.stop())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert exits == [Exit(code=7, killed=0, left=(), asked=True)] * 4
    assert child.stop() == child.exit == exits[0]


# -- ends by itself


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_exit_code_is_told(run: Any, code: int) -> None:
    child, _ = run(f"sys.exit({code})")
    assert child.wait(TIMEOUT_S) == Exit(code=code, killed=0, left=(), asked=False)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_signal_that_ended_it_is_told(run: Any, number: signal.Signals) -> None:
    child, made = run("report()\nsleep()")
    os.kill(made.reported()["pid"], number)
    assert child.wait(TIMEOUT_S) == Exit(code=-number, killed=0, left=(), asked=False)


def test_grandchildren_go_when_the_leader_dies(run: Any) -> None:
    child, made = run(WITH_GRANDCHILDREN)
    reported = made.reported()
    os.kill(reported["pid"], signal.SIGKILL)
    ended = child.wait(TIMEOUT_S)
    assert ended == Exit(code=-signal.SIGKILL, killed=2, left=(), asked=False)
    assert [pid for pid in reported["pids"] if alive(pid)] == []


def test_a_program_that_is_missing_is_a_failure_with_a_remedy(tmp_path: Path) -> None:
    launch = Launch((str(tmp_path / "no-such-python"),), {})
    with pytest.raises(ServerFailed, match="no-such-python") as caught:
        ServerChild(launch, tmp_path / "server.log", os.environ)
    assert "make setup" in caught.value.remedy


def test_a_log_that_can_not_be_written_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="could not be started"):
        ServerChild(Launch((sys.executable, "-c", ""), {}), tmp_path / "missing" / "server.log", os.environ)


# -- the owner or the guard dies

OWNER = """
import os, sys
from pathlib import Path
from engine.server.child import ServerChild
from engine.server.command import Launch
child = ServerChild(Launch(tuple(sys.argv[3:]), {"REPORT": sys.argv[1]}), Path(sys.argv[2]), os.environ)
print(child.pid, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def owned(program: Any) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A process that owns a server with grandchildren, and what the server reported."""
    made = program(WITH_GRANDCHILDREN.replace("report(", "report(scratch=os.getcwd(), guard=os.getppid(), "))
    command = [sys.executable, "-c", OWNER, made.launch.env["REPORT"], str(made.log), *made.launch.argv]
    with subprocess.Popen(command, cwd=PROJECT_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        yield owner, made.reported()
        owner.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, None], ids=["SIGKILL", "SIGTERM", "it returns"])
def test_the_server_goes_with_the_process_that_owns_it(owned: Any, number: signal.Signals | None) -> None:
    owner, reported = owned
    pids = [reported["pid"], reported["guard"], *reported["pids"]]
    assert all(map(alive, pids))
    if number is None:
        owner.communicate("\n", timeout=TIMEOUT_S)
    else:
        owner.send_signal(number)
        owner.wait(TIMEOUT_S)
    assert still_alive_after_waiting(pids) == []
    assert not Path(reported["scratch"]).exists()


def test_the_server_goes_when_its_guard_is_killed_and_that_is_told(run: Any) -> None:
    child, made = run(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"process = subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], stdout=subprocess.PIPE)\n"
        "process.stdout.readline()\n"
        "report(other=process.pid, scratch=os.getcwd())\n"
        "sleep()\n"
    )
    reported = made.reported()
    os.kill(guard_of(child), signal.SIGKILL)
    ended = child.wait(TIMEOUT_S)
    assert ended is not None and ended.error is not None
    assert (ended.code, ended.left, ended.asked) == (None, (), False)
    assert "guard" in ended.error
    assert still_alive_after_waiting([reported["pid"], reported["other"]]) == []
    assert not Path(reported["scratch"]).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_a_guard_that_is_only_asked_to_end_stays_with_its_server(run: Any, number: signal.Signals) -> None:
    child, made = run("report()\nsleep()")
    pid = made.reported()["pid"]
    os.kill(guard_of(child), number)
    assert child.wait(0.3) is None and alive(pid)
    assert child.stop().code == -signal.SIGTERM


# -- what the server finds


def test_the_server_has_a_group_of_its_own_and_a_scratch_folder_that_is_removed(run: Any) -> None:
    child, made = run(
        "open('left-here', 'w').close()\n"
        "report(group=os.getpgrp(), session=os.getsid(0), folder=os.getcwd(), temp=os.environ['TMPDIR'],\n"
        "    rpc=os.environ['VLLM_RPC_BASE_PATH'])\n"
        "sleep()\n"
    )
    reported = made.reported()
    scratch = Path(reported["folder"])
    assert reported["pid"] == reported["group"] == reported["session"]
    assert reported["pid"] not in (os.getpgrp(), os.getsid(0))
    assert {reported["temp"], reported["rpc"]} == {str(scratch)}
    assert (scratch / "left-here").exists()
    child.stop()
    assert not scratch.exists()


def test_the_server_reads_nothing_and_has_ordinary_signals(run: Any) -> None:
    _, made = run(
        "numbers = (signal.SIGHUP, signal.SIGTERM)\n"
        "report(stdin=sys.stdin.read(), plain=[signal.getsignal(n) == signal.SIG_DFL for n in numbers])\n"
    )
    reported = made.reported()
    assert reported["stdin"] == ""
    assert reported["plain"] == [True, True]


def test_shared_memory_of_a_killed_server_is_removed(run: Any) -> None:
    child, made = run(
        "from multiprocessing import resource_tracker, shared_memory\n"
        "resource_tracker.register = lambda *_: None\n"
        "block = shared_memory.SharedMemory(create=True, size=4096)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "report(name=block.name)\n"
        "sleep()\n"
    )
    path = Path("/dev/shm") / made.reported()["name"].lstrip("/")
    assert path.exists()
    child.stop()
    assert not path.exists()


# -- the log


def test_both_outputs_and_every_start_go_to_the_log(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("before\n")
    code = "import os; os.write(1, b'out\\n'); os.write(2, b'err\\n')"
    child = ServerChild(Launch((sys.executable, "-c", code), {}), path, os.environ)
    assert child.wait(TIMEOUT_S) is not None
    assert path.read_text() == "before\nout\nerr\n"


def test_a_follower_gives_every_complete_line_once(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    follower = log.LogFollower(path)
    assert follower.new_lines() == []
    path.write_bytes(b"one\ntwo\nthr")
    assert follower.new_lines() == ["one", "two"]
    assert follower.new_lines() == []
    with path.open("ab") as file:
        file.write("ee\n\xff\nbar\rbar\n".encode("latin-1"))
    assert follower.new_lines() == ["three", "\ufffd", "bar\rbar"]


def test_a_follower_catches_up_with_a_large_log(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    lines = [f"line {number} {'x' * 100}" for number in range(20_000)]
    path.write_text("\n".join(lines) + "\n")
    follower, seen = log.LogFollower(path), []
    while more := follower.new_lines():
        seen += more
    assert seen == lines


def test_the_tail_is_the_end_of_the_log_and_can_be_searched(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    assert log.tail(path, 5) == []
    path.write_text("".join(f"{'ERROR' if number % 2 else 'info'} {number}\n" for number in range(50_000)))
    assert log.tail(path, 2) == ["info 49998", "ERROR 49999"]
    assert log.tail(path, 2, "error") == ["ERROR 49997", "ERROR 49999"]
    assert log.tail(path, 2, "nowhere") == []


def test_only_the_newest_logs_are_kept(tmp_path: Path) -> None:
    for number in range(15):
        (tmp_path / f"server-2025120{number // 10}-{number:06}-1.log").touch()
    (tmp_path / "baseline.log").touch()
    log.prune(tmp_path, keep=4)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["baseline.log", *(f"server-20251201-{number:06}-1.log" for number in range(11, 15))]


# -- processes


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group of its own."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def ticks_of(pid: int) -> int:
    ticks = processes.start_ticks(pid)
    assert ticks is not None
    return ticks


def test_a_process_is_known_by_its_start(sleeper: subprocess.Popen[bytes]) -> None:
    assert ticks_of(sleeper.pid) >= ticks_of(os.getpid())
    assert processes.group_members(sleeper.pid) == [sleeper.pid]
    assert sleeper.pid in processes.children_of(os.getpid())


def test_a_zombie_counts_as_gone(sleeper: subprocess.Popen[bytes]) -> None:
    ticks = ticks_of(sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(sleeper.pid).status() == psutil.STATUS_ZOMBIE
    assert processes.start_ticks(sleeper.pid) is None
    assert processes.group_members(sleeper.pid) == []
    assert not processes.is_ours(sleeper.pid, ticks)


def test_a_reused_number_is_not_ours(sleeper: subprocess.Popen[bytes]) -> None:
    ticks = ticks_of(sleeper.pid)
    assert processes.is_ours(sleeper.pid, ticks)
    assert not processes.is_ours(sleeper.pid, ticks - 1)
    assert not processes.is_ours(sleeper.pid, ticks + 1)


def test_a_group_whose_leader_is_gone_is_still_ours(tmp_path: Path) -> None:
    code = "import os, subprocess; print(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid, flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE) as leader:
        ticks = ticks_of(leader.pid)
        assert leader.stdout is not None
        member = int(leader.stdout.readline())
        leader.wait(TIMEOUT_S)
        assert processes.group_members(leader.pid) == [member]
        assert processes.is_ours(leader.pid, ticks)
        assert not processes.is_ours(leader.pid, ticks_of(member) + 1)
        assert processes.kill_group(leader.pid) == (1, [])
        assert not alive(member)


def test_a_group_that_is_not_there_has_nobody_to_end() -> None:
    with subprocess.Popen(["true"], start_new_session=True) as process:
        process.wait(TIMEOUT_S)
        assert processes.group_members(process.pid) == []
        assert processes.end_group(process.pid, 0.0) == (0, [])
        assert processes.kill_group(process.pid) == (0, [])


def test_waiting_for_a_group_ends_when_time_is_up(sleeper: subprocess.Popen[bytes]) -> None:
    assert processes.wait_gone(sleeper.pid, 0.1) is False
    sleeper.kill()
    assert processes.wait_gone(sleeper.pid, TIMEOUT_S) is True


# -- the record


def record_of(pid: int, ticks: int) -> record.ServerRecord:
    return record.ServerRecord(
        pid=pid,
        ticks=ticks,
        base_url="http://127.0.0.1:8000/v1",
        api_key="very-secret",
        model="owner/name",
        ready=True,
        config={"max_num_seqs": 4},
        source={"model_id": "owner/name"},
        command="vllm serve",
        log_path="server.log",
        max_model_len=2048,
        ready_after_s=1.5,
    )


def test_the_record_comes_back_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    old = os.umask(0)
    try:
        record.write_record(state, record_of(1, 2))
        record.write_record(state, replace(record_of(1, 2), ready=False))
    finally:
        os.umask(old)
    assert record.read_record(state) == replace(record_of(1, 2), ready=False)
    assert [path.name for path in state.iterdir()] == [record.FILE_NAME]
    assert stat.S_IMODE((state / record.FILE_NAME).stat().st_mode) == 0o600


def test_a_record_file_that_others_may_read_is_replaced_not_reused(tmp_path: Path) -> None:
    for name in (record.FILE_NAME, "server.new"):
        (tmp_path / name).write_text("old")
        (tmp_path / name).chmod(0o666)
    record.write_record(tmp_path, record_of(1, 2))
    assert stat.S_IMODE((tmp_path / record.FILE_NAME).stat().st_mode) == 0o600
    assert record.read_record(tmp_path) == record_of(1, 2)


@pytest.mark.parametrize("text", [None, "", "{", "[]", "7", "{}", '{"pid": 1, "unknown": 2}'])
def test_a_record_that_can_not_be_read_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / record.FILE_NAME).write_text(text)
    assert record.read_record(tmp_path) is None
    assert record.end_leftover(tmp_path) == []


def test_dropping_a_record_twice_does_nothing(tmp_path: Path) -> None:
    record.write_record(tmp_path, record_of(1, 2))
    record.drop_record(tmp_path)
    record.drop_record(tmp_path)
    assert record.read_record(tmp_path) is None


def test_a_leftover_server_is_ended_and_its_record_dropped(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    left = record_of(sleeper.pid, ticks_of(sleeper.pid))
    record.write_record(tmp_path, left)
    assert left.alive
    assert record.end_leftover(tmp_path) == [sleeper.pid]
    assert sleeper.wait(TIMEOUT_S) == -signal.SIGKILL
    assert record.read_record(tmp_path) is None
    assert not left.alive


def test_another_program_with_the_leftovers_number_is_left_alone(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    record.write_record(tmp_path, record_of(sleeper.pid, ticks_of(sleeper.pid) - 100))
    assert record.end_leftover(tmp_path) == []
    assert alive(sleeper.pid)
    assert record.read_record(tmp_path) is None
