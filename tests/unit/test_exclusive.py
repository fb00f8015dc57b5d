"""One experiment at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from engine.errors import AlreadyRunning, ConfigError, LabError
from engine.exclusive import LAB_FAULT, Exclusive, told

WORDS = {"reserved": "", "answering": ""}


class Announced:
    def __init__(self) -> None:
        self.said = False

    def __call__(self) -> Callable[[], None]:
        self.said = True
        return self.take_back

    def take_back(self) -> None:
        self.said = False


@pytest.fixture
def words() -> dict[str, str]:
    return dict(WORDS)


@pytest.fixture
def work(words: dict[str, str]) -> Exclusive:
    return Exclusive("test-work", lambda: words["reserved"], lambda: words["answering"])


def idle() -> None:
    pass


@pytest.mark.parametrize("why", WORDS)
def test_a_server_that_is_not_free_is_refused_and_nothing_is_announced(
    work: Exclusive, words: dict[str, str], why: str
) -> None:
    words[why] = "Somebody else has it."
    announced, ran = Announced(), threading.Event()
    with pytest.raises(AlreadyRunning, match="Somebody else"):
        work.start(idle, announced, ran.set)
    work.wait()
    assert not announced.said and not ran.is_set()


def test_what_can_not_be_prepared_is_taken_back(work: Exclusive) -> None:
    def refuse() -> None:
        raise ConfigError("It can't be.")

    announced, ran = Announced(), threading.Event()
    with pytest.raises(ConfigError):
        work.start(idle, announced, ran.set, refuse)
    assert not announced.said and not ran.is_set()


def test_work_whose_thread_can_not_start_is_taken_back(work: Exclusive, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    announced = Announced()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError):
            work.start(idle, announced, idle)
    assert not announced.said
    work.wait()


def test_a_cancel_as_soon_as_it_is_announced_is_not_lost(work: Exclusive) -> None:
    seen: list[bool] = []
    work.cancelled.set()  # of the work before

    def announce() -> Callable[[], None]:
        seen.append(work.cancelled.is_set())
        work.cancelled.set()
        return idle

    work.start(idle, announce, lambda: seen.append(work.cancelled.is_set()))
    work.wait()
    assert seen == [False, True]


def test_work_that_raises_is_over_too(work: Exclusive) -> None:
    threading.excepthook, kept = lambda _: None, threading.excepthook
    try:
        work.start(idle, Announced(), lambda: 1 / 0 and None)
        work.wait()
    finally:
        threading.excepthook = kept


def test_messages_are_followed_to_the_end(work: Exclusive) -> None:
    told_messages: list[str] = []
    go_on = threading.Event()

    def hear(message: str) -> None:
        told_messages.append(message)
        go_on.set()

    work.start(idle, Announced(), lambda: go_on.wait(20) and None)
    work.follow(lambda: "at work", hear)
    assert told_messages == ["at work"]


def test_a_fault_of_ours_says_so() -> None:
    assert told(LabError("Cause.", "Remedy.")) == ("Cause.", "Remedy.")
    assert told(ValueError("odd")) == ("ValueError: odd", LAB_FAULT)
