"""One experiment at a time: how comparisons, load tests and studies begin, are watched, and end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from engine.errors import AlreadyRunning, LabError

POLL_S = 0.2
LAB_FAULT = "This is a fault of the lab itself."
WAIT_OR_CANCEL = "Wait until it is over, or cancel it."


def told(problem: Exception) -> tuple[str, str]:
    """Cause and remedy of whatever went wrong; what is no LabError is a fault of ours."""
    if isinstance(problem, LabError):
        return problem.cause, problem.remedy
    return f"{type(problem).__name__}: {problem}", LAB_FAULT


class Exclusive:
    """Runs one piece of work at a time, on a thread called ``name``; any thread may call any method.

    ``reserved`` and ``answering`` say why the server isn't free, "" when it is. The work looks at ``cancelled``.
    """

    def __init__(self, name: str, reserved: Callable[[], str], answering: Callable[[], str]) -> None:
        self._name, self._reserved, self._answering = name, reserved, answering
        self.lock = threading.Lock()
        self.cancelled = threading.Event()
        self._over = threading.Event()
        self._over.set()

    def start(
        self,
        require_idle: Callable[[], None],
        announce: Callable[[], Callable[[], None]],
        work: Callable[[], None],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin and return; raises AlreadyRunning, or what ``require_idle`` and ``prepare`` raise.

        ``announce`` makes the board say "running" and returns how to take that back. It comes before ``answering`` is
        asked, as a chat asks the other way round: one of the two sees the other.
        """
        with self.lock:
            require_idle()
            if reason := self._reserved():
                raise AlreadyRunning(reason, WAIT_OR_CANCEL)
            self.cancelled.clear()  # before anybody sees it run, so that no cancel is lost
            take_back, last = announce(), self._over
            try:
                if answered := self._answering():
                    raise AlreadyRunning(answered, "Wait until it is over.")
                prepare()
                self._over = over = threading.Event()  # the last work may still be ending: it sets its own
                threading.Thread(target=self._run, args=(work, over), name=self._name, daemon=True).start()
            except BaseException:  # else it would "run" for ever
                self._over = last
                take_back()
                raise

    def wait(self) -> None:
        """Until it is over, if one runs.

        By an event: a ``join()`` that Ctrl-C breaks off takes the thread for ended (seen with Python 3.11).
        """
        self._over.wait()

    def follow(self, message: Callable[[], str], progress: Callable[[str], None]) -> None:
        """Until it is over; ``progress`` is told each new message."""
        last = ""
        while not self._over.wait(POLL_S):
            if (now := message()) != last:
                last = now
                progress(now)

    @staticmethod
    def _run(work: Callable[[], None], over: threading.Event) -> None:
        try:
            work()
        finally:
            over.set()
