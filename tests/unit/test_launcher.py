"""Warm starts: servers forked from a process that has imported already are like ones started as programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.config import PROJECT_ROOT
from engine.server.child import ServerChild
from engine.server.command import Launch, cpu_thread_environment
from engine.server.processes import group_members, openmp_files, start_ticks
from engine.server.state import ServerSnapshot
from engine.server.supervisor import IMPORTING, history_key
from engine.server.warm import WarmStarts, can_fork
from tests.supervised import CPU, Lab, alive, eventually

MODULES = ("tests.forked_import",)
PROGRAM = "tests.forked_program"
SECRET = "secret-key-of-the-test"
PRELOAD = cpu_thread_environment(CPU).get("LD_PRELOAD", "/nowhere/libiomp5.so")


def launch(*words: str, module: str = PROGRAM, **env: str) -> Launch:
    fixed = {"LD_PRELOAD": PRELOAD, "PYTHONPATH": str(PROJECT_ROOT), "VLLM_API_KEY": SECRET}
    return Launch((sys.executable, "-m", module, *words), fixed | env)


def go_on() -> None:
    """Nobody calls a start off."""


class CalledOff(Exception):
    """Somebody does."""


class Bench:
    """Starts programs the warm way and knows what they printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warm = WarmStarts(folder / "imports.log", MODULES, ("tests.nowhere", "tests.fake_openai"))
        self.log = folder / "server.log"
        self.log.touch()
        self.children: list[ServerChild] = []

    @property
    def zygote(self) -> int:
        (pid,) = self.warm.pids()
        return pid

    def start(self, order: Launch) -> ServerChild:
        guard = self.warm.guard(order, os.environ, go_on)
        assert guard is not None, self.warm.why_not
        self.children.append(ServerChild(order, self.log, os.environ, guard))
        return self.children[-1]

    def told(self) -> list[dict[str, Any]]:
        """What the server, its child and its grandchild say of themselves, and how the child ended."""
        lines = eventually(lambda: [line for line in self.log.read_text().splitlines() if line.startswith("[{")])
        return list(json.loads(lines[-1]))

    def close(self) -> None:
        for child in self.children:
            child.stop()
        self.warm.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


# -- a forked server


def test_the_server_and_its_children_have_the_imports_of_the_zygote(bench: Bench) -> None:
    child = bench.start(launch())
    server, one, two, _ = bench.told()
    assert server["pid"] == child.pid
    assert len({bench.zygote, server["pid"], one["pid"], two["pid"]}) == 4
    assert {process["imported_by"] for process in (server, one, two)} == {bench.zygote}


def test_it_has_the_arguments_folder_and_environment_that_were_ordered(bench: Bench) -> None:
    child = bench.start(launch("--port", "1", VLLM_CPU_KVCACHE_SPACE="3"))
    server, *_ = bench.told()
    assert server["argv"] == ["--port", "1"] and server["main"] == PROGRAM and server["name"] == "MainProcess"
    assert Path(server["cwd"]) == Path(server["tempdir"]) == Path(child.scratch)
    expected = launch(VLLM_CPU_KVCACHE_SPACE="3").full_env(os.environ)
    expected |= {"TMPDIR": child.scratch, "VLLM_RPC_BASE_PATH": child.scratch, "SET_BY_IMPORT": "yes"}
    assert server["environment"] == expected | {"SET_BY_SERVER": "for its child"}


def test_children_get_the_environment_of_the_moment_and_their_exit_codes_are_told(bench: Bench) -> None:
    bench.start(launch())
    _, one, two, end = bench.told()
    assert (one["name"], two["name"]) == ("Child", "Grandchild")
    assert one["environment"]["SET_BY_SERVER"] == two["environment"]["SET_BY_SERVER"] == "for its child"
    assert "SET_BY_CHILD" in two["environment"]
    assert one["exit_code_of_child"] == 5
    assert end == {"alive": True, "killed": -signal.SIGKILL}


def test_it_leads_a_group_of_its_own_and_ends_when_asked(bench: Bench) -> None:
    child = bench.start(launch())
    bench.told()
    assert child.pid is not None and child.ticks == start_ticks(child.pid)
    assert os.getpgid(child.pid) == os.getsid(child.pid) == child.pid
    members = group_members(child.pid)
    assert len(members) >= 2  # the server and its nursery
    ended = child.stop()
    assert (ended.code, ended.killed, ended.left, ended.asked) == (7, 0, (), True)
    assert not any(map(alive, members)) and not Path(child.scratch).exists()
    assert [path for pid in members for path in openmp_files(pid)] == []


def test_the_key_is_in_no_command_line(bench: Bench) -> None:
    child = bench.start(launch())
    bench.told()
    assert child.pid is not None
    for pid in (bench.zygote, psutil.Process(child.pid).ppid(), *group_members(child.pid)):
        assert SECRET not in Path(f"/proc/{pid}/cmdline").read_text()


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        (("--exit", "3"), 3, ""),
        (("--exit", "0"), 0, ""),
        (("--exit-text",), 1, "no reason"),
        (("--raise",), 1, "RuntimeError: raised by the program"),
    ],
)
def test_it_ends_with_the_code_and_the_words_of_the_program(
    bench: Bench, words: tuple[str, ...], code: int, printed: str
) -> None:
    child = bench.start(launch(*words))
    ended = eventually(lambda: child.exit)
    assert (ended.code, ended.asked) == (code, False)
    assert printed in bench.log.read_text()


def test_a_module_that_is_not_there_fails_in_the_log(bench: Bench) -> None:
    child = bench.start(launch(module="tests.nowhere"))
    assert eventually(lambda: child.exit).code == 1
    assert "No module named tests.nowhere" in bench.log.read_text()


def test_a_killed_guard_takes_the_server_along(bench: Bench) -> None:
    child = bench.start(launch())
    bench.told()
    assert child.pid is not None
    os.kill(psutil.Process(child.pid).ppid(), signal.SIGKILL)
    ended = eventually(lambda: child.exit)
    assert ended.error == "its guard process was killed" and not alive(child.pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_only_a_killed_process_takes_along_those_it_had_started(bench: Bench, number: signal.Signals) -> None:
    bench.start(launch("--end-parent", str(int(number))))
    ((sleeper,),) = [list(line.values()) for line in bench.told()]
    eventually(lambda: "ended" in bench.log.read_text())
    if number == signal.SIGKILL:
        eventually(lambda: not alive(sleeper))
    else:
        assert alive(sleeper)


# -- where a fork won't do


@pytest.mark.parametrize("word", ["--loader", "--kill-nursery"])
def test_children_are_spawned_where_a_fork_can_not_be_like_that(bench: Bench, word: str) -> None:
    bench.start(launch(word))
    server, one, two, end = bench.told()
    assert server["imported_by"] == bench.zygote
    assert (one["imported_by"], two["imported_by"]) == (one["pid"], two["pid"])
    assert end == {"alive": True, "killed": -signal.SIGKILL}


@pytest.mark.parametrize(
    "order",
    [
        Launch((sys.executable, "-m", PROGRAM), {}),
        Launch((sys.executable, "-m", PROGRAM), {"LD_PRELOAD": "/lib/libgomp.so.1"}),
        Launch((sys.executable, "program.py"), {"LD_PRELOAD": PRELOAD}),
        Launch(("/usr/bin/python3", "-m", PROGRAM), {"LD_PRELOAD": PRELOAD}),
    ],
)
def test_what_can_not_be_forked_starts_no_zygote(bench: Bench, order: Launch) -> None:
    assert not can_fork(order)
    assert bench.warm.guard(order, os.environ, go_on) is None
    assert bench.warm.why_not == "" and bench.warm.pids() == ()


def test_a_failing_import_is_said_and_the_next_start_tries_again(bench: Bench) -> None:
    assert bench.warm.guard(launch(IMPORT_FAILS="1"), os.environ, go_on) is None
    assert bench.warm.why_not == "importing failed" and bench.warm.pids() == ()
    assert "the module is broken" in (bench.folder / "imports.log").read_text()
    bench.start(launch())


def test_an_import_that_starts_a_thread_makes_it_unfit(bench: Bench) -> None:
    assert bench.warm.guard(launch(IMPORT_STARTS_A_THREAD="1"), os.environ, go_on) is None
    assert bench.warm.why_not == "importing started 1 threads, and a fork would lose them"


def test_a_folder_that_is_gone_means_a_plain_start(tmp_path: Path) -> None:
    warm = WarmStarts(tmp_path / "gone" / "imports.log", MODULES, ())
    assert warm.guard(launch(), os.environ, go_on) is None
    assert "No such file" in warm.why_not
    warm.close()


# -- the zygote's life


def test_one_zygote_serves_many_servers_and_leaves_nothing_open(bench: Bench) -> None:
    bench.start(launch("--exit", "0")).wait(30)
    zygote, open_before = bench.zygote, len(os.listdir("/proc/self/fd"))
    for number in range(20):
        child = bench.start(launch("--exit", str(number), VLLM_API_KEY=f"another {number}"))
        ended = child.wait(30)
        assert ended is not None and ended.code == number
    assert bench.zygote == zygote
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= open_before)
    eventually(lambda: psutil.Process(zygote).children() == [])
    assert len(os.listdir(f"/proc/{zygote}/fd")) < 12


def test_another_environment_needs_another_zygote(bench: Bench) -> None:
    bench.start(launch("--exit", "0"))
    first = bench.zygote
    bench.start(launch("--exit", "0", HF_HUB_OFFLINE="1"))
    assert bench.zygote != first and not alive(first)


def test_a_killed_zygote_is_replaced_and_its_server_goes_on(bench: Bench) -> None:
    child = bench.start(launch())
    bench.told()
    os.kill(bench.zygote, signal.SIGKILL)
    eventually(lambda: bench.warm.pids() == ())
    assert child.exit is None and child.pid is not None and alive(child.pid)
    bench.start(launch("--exit", "0"))
    assert child.stop().code == 7


def test_a_start_called_off_while_importing_leaves_the_zygote_to_the_next(bench: Bench, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    order = launch(IMPORT_WAITS_FOR=str(gate))

    def call_off() -> None:
        if bench.warm.pids():
            raise CalledOff

    with pytest.raises(CalledOff):
        bench.warm.guard(order, {}, call_off)
    importing = bench.zygote
    gate.touch()
    assert bench.warm.guard(order, {}, go_on) is not None
    assert bench.zygote == importing


def test_closing_ends_a_zygote_that_is_importing(bench: Bench, tmp_path: Path) -> None:
    def call_off() -> None:
        raise CalledOff

    with pytest.raises(CalledOff):
        bench.warm.guard(launch(IMPORT_WAITS_FOR=str(tmp_path / "never")), os.environ, call_off)
    importing = bench.zygote
    bench.warm.close()
    assert not alive(importing)


APP = """
import os, sys, threading, time
from pathlib import Path
from engine.server.child import ServerChild
from tests.unit.test_launcher import Bench, launch
bench = Bench(Path(sys.argv[1]))
def look():
    while not bench.warm.pids(): time.sleep(0.01)
    print(bench.zygote, flush=True)
threading.Thread(target=look).start()
child = bench.start(launch(**eval(sys.argv[2])))
bench.told()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("importing", [True, False])
def test_a_killed_app_takes_zygote_and_server_along(tmp_path: Path, importing: bool) -> None:
    env = {"IMPORT_WAITS_FOR": str(tmp_path / "never")} if importing else {}
    app = subprocess.Popen(
        [sys.executable, "-c", APP, str(tmp_path), repr(env)], cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True
    )
    assert app.stdout is not None
    pids = [int(app.stdout.readline()) for _ in range(1 if importing else 2)]
    app.kill()
    app.communicate()
    eventually(lambda: not any(map(alive, pids)))
    eventually(lambda: [path for pid in pids for path in openmp_files(pid)] == [])


# -- under the supervisor


@pytest.fixture
def warm_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    opened: list[Lab] = []

    def make(**env: str) -> Lab:
        lab = Lab(tmp_path)
        lab.settings.logs_dir.mkdir(parents=True)
        lab.preload = {"LD_PRELOAD": PRELOAD, **env}
        lab.supervisor = lab.open(
            warm=WarmStarts(lab.settings.logs_dir / "imports.log", MODULES, ("tests.fake_server",))
        )
        opened.append(lab)
        return lab

    yield make
    for lab in opened:
        lab.supervisor.close()


def test_restarts_come_from_the_same_zygote_and_closing_ends_it(warm_lab: Callable[..., Lab]) -> None:
    lab = warm_lab()
    first = lab.start_and_wait()
    (zygote,) = {child.pid for child in psutil.Process().children() if "engine.server.zygote" in cmdline(child)}
    assert first.forked and grandparent(first) == zygote
    assert first.command == lab.launched[-1].shell_line()
    lab.supervisor.restart(first.config)
    second = eventually(lambda: s if (s := lab.snapshot()).ready and s.generation > first.generation else None)
    assert second.forked and grandparent(second) == zygote
    lab.supervisor.close()
    assert not alive(zygote)


def test_a_start_that_waited_for_the_imports_is_no_measure_for_the_others(warm_lab: Callable[..., Lab]) -> None:
    lab = warm_lab()
    first = lab.start_and_wait()
    key = history_key(first.config)
    assert lab.store.expected_start(key) == {}
    assert lab.store.expected_start(key + IMPORTING)["import"] > 0
    lab.supervisor.stop(wait=True)
    lab.start_and_wait()
    assert lab.store.expected_start(key)["import"] > 0


def test_a_zygote_that_fails_costs_a_note_in_the_log_and_nothing_else(warm_lab: Callable[..., Lab]) -> None:
    lab = warm_lab(IMPORT_FAILS="1")
    ready = lab.start_and_wait()
    assert ready.log_path is not None and not ready.forked
    note = "[vLLM Lab] Started as a program, not from a process with vLLM imported: importing failed."
    assert Path(ready.log_path).read_text().splitlines()[0] == note


def grandparent(snapshot: ServerSnapshot) -> int:
    """Whose child the guard is."""
    guard = psutil.Process(snapshot.pid).parent()
    assert guard is not None
    return guard.ppid()


def cmdline(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
