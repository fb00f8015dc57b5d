"""The lock file: one holder among processes, freed by the kernel, with a note of who holds it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.config import PROJECT_ROOT
from engine.errors import ConfigError
from engine.locks import FileLock
from engine.server.processes import start_ticks

HOLDER = """
import sys
from pathlib import Path
from engine.locks import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
sys.stdin.read()
lock.release()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "owner.lock"


@contextmanager
def other_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A second process that tries to take the lock; its first line says whether it got it."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(
        command, cwd=PROJECT_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_free_lock_is_taken_and_its_folder_made(path: Path) -> None:
    lock = FileLock(path)
    assert lock.acquire() is True
    lock.release()
    assert path.exists()


def test_a_second_process_can_not_take_it(path: Path) -> None:
    lock = FileLock(path)
    assert lock.acquire()
    with other_process(path) as other:
        assert first_line(other) == "False"
    lock.release()
    with other_process(path) as other:
        assert first_line(other) == "True"


def test_two_locks_of_one_process_exclude_each_other(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    assert first.acquire()
    assert second.acquire() is False
    first.release()
    assert second.acquire() is True
    second.release()


def test_the_kernel_frees_it_when_the_holder_is_killed(path: Path) -> None:
    lock = FileLock(path)
    with other_process(path) as other:
        assert first_line(other) == "True"
        assert lock.acquire() is False
        other.send_signal(signal.SIGKILL)
        other.wait(10)
        assert lock.acquire() is True
    lock.release()


def test_the_holder_is_told_to_others(path: Path) -> None:
    with other_process(path) as other:
        assert first_line(other) == "True"
        assert FileLock(path).holder() == {"pid": other.pid, "ticks": start_ticks(other.pid)}


def test_a_refused_attempt_leaves_the_holders_note(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    first.acquire()
    before = path.read_text()
    assert second.acquire() is False
    assert path.read_text() == before
    first.release()


def test_nobody_is_told_after_release(path: Path) -> None:
    lock = FileLock(path)
    lock.acquire()
    lock.release()
    assert lock.holder() is None


@pytest.mark.parametrize("text", ["", "not json", "[1]", "7"])
def test_a_note_that_says_nothing_is_none(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    assert FileLock(path).holder() is None


def test_a_lock_file_that_was_never_made_has_no_holder(path: Path) -> None:
    assert FileLock(path).holder() is None


def test_a_longer_old_note_does_not_show_through(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"pid": 1, "text": "' + "x" * 500 + '"}')
    with FileLock(path) as lock:
        assert lock.holder() == {"pid": os.getpid(), "ticks": start_ticks(os.getpid())}


def test_only_the_owner_may_read_the_file(path: Path) -> None:
    with FileLock(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_can_not_be_made_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can't be written") as caught:
        FileLock(tmp_path / "file" / "owner.lock").acquire()
    assert "LAB_DATA_DIR" in caught.value.remedy


def test_blocking_waits_until_the_lock_is_free(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    first.acquire()
    taken = threading.Event()

    def wait_for_it() -> None:
        with second:
            taken.set()

    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    assert not taken.wait(0.2)
    first.release()
    assert taken.wait(10)
    waiter.join(10)


def test_releasing_twice_or_without_a_lock_does_nothing(path: Path) -> None:
    lock = FileLock(path)
    lock.release()
    lock.acquire()
    lock.release()
    lock.release()
    other = FileLock(path)
    assert other.acquire()
    lock.release()
    assert FileLock(path).acquire() is False
    other.release()


def test_a_child_process_does_not_inherit_the_lock(path: Path) -> None:
    lock = FileLock(path)
    lock.acquire()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        lock.release()
        again = FileLock(path)
        assert again.acquire() is True
        again.release()
        child.kill()


def test_a_full_disk_costs_the_note_and_not_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    lock = FileLock(path)
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", fail)
        assert lock.acquire() is True
        assert lock.holder() is None
        lock.release()
    assert lock.acquire() is True
    lock.release()
