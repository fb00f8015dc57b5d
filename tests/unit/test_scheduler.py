"""The scheduler's rules, step by step."""

from __future__ import annotations

from engine.kv.allocators import ContiguousMemory, longest
from engine.kv.ledger import Ledger
from engine.kv.paged import PagedMemory
from engine.kv.scheduler import Scheduler
from engine.kv.stay import Grant, Stay
from engine.kv.workloads import Request


class Diary:
    """An observer that writes down (step, what, request)."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.lines: list[tuple[int, str, int]] = []
        self.reasons: list[str] = []

    def _write(self, what: str, request: Request) -> None:
        self.lines.append((self.ledger.step, what, request.index))

    def admitted(self, stay: Stay, grants: list[Grant]) -> None:
        self._write("admit", stay.request)

    def grew(self, stay: Stay, grants: list[Grant]) -> None:
        self._write("grow", stay.request)

    def finished(self, stay: Stay) -> None:
        self._write("finish", stay.request)

    def preempted(self, stay: Stay) -> None:
        self._write("preempt", stay.request)

    def waits(self, stay: Stay, reason: str) -> None:
        self._write("wait", stay.request)
        self.reasons.append(reason)

    def rejected(self, request: Request) -> None:
        self._write("reject", request)

    def step_done(self, step: int) -> None:
        assert step == self.ledger.step


def run(memory: PagedMemory | ContiguousMemory, requests: list[Request], max_num_seqs: int = 16) -> Diary:
    diary = Diary(memory.ledger)
    scheduler = Scheduler(memory, max_num_seqs, diary)
    scheduler.run(requests)
    assert memory.ledger.free + memory.ledger.external == memory.ledger.slots
    assert memory.ledger.growing == 0
    return diary


def test_a_request_stays_as_many_steps_as_it_has_output() -> None:
    diary = run(PagedMemory(16, 4), [Request(0, 2, prompt=3, output=3)])
    assert diary.lines == [(2, "admit", 0), (4, "grow", 0), (5, "finish", 0)]


def test_first_come_first_served_a_small_request_does_not_overtake() -> None:
    memory = PagedMemory(16, 4)
    requests = [Request(0, 0, 9, 2), Request(1, 0, 8, 2), Request(2, 0, 1, 1)]
    diary = run(memory, requests)
    assert diary.lines == [
        (0, "admit", 0),
        (0, "wait", 1),
        (2, "finish", 0),
        (2, "admit", 1),
        (2, "admit", 2),
        (3, "finish", 2),
        (3, "grow", 1),
        (4, "finish", 1),
    ]


def test_the_preempted_return_to_the_front_and_need_room_for_what_they_had_written() -> None:
    """Of four blocks 0 takes the last one, and 1 finds none for its ninth token: it is the latest, so it goes itself."""
    diary = run(PagedMemory(16, 4), [Request(0, 0, 4, 6), Request(1, 0, 8, 3), Request(2, 1, 1, 1)])
    assert diary.lines == [
        (0, "admit", 0),
        (0, "admit", 1),
        (1, "grow", 0),
        (1, "preempt", 1),
        (2, "wait", 1),
        (5, "grow", 0),
        (5, "wait", 1),
        (6, "finish", 0),
        (6, "admit", 1),
        (6, "admit", 2),
        (7, "finish", 2),
        (8, "finish", 1),
    ]


def test_max_num_seqs_counts_samples() -> None:
    diary = run(PagedMemory(400, 4), [Request(0, 0, 4, 2, samples=3), Request(1, 0, 4, 2, samples=2)], max_num_seqs=4)
    assert diary.lines == [
        (0, "admit", 0),
        (0, "wait", 1),
        (1, "grow", 0),
        (1, "wait", 1),
        (2, "finish", 0),
        (2, "admit", 1),
        (3, "grow", 1),
        (4, "finish", 1),
    ]
    assert set(diary.reasons) == {"max_num_seqs allows 4 sequences at once"}


def test_what_never_fits_is_rejected_and_holds_nobody_up() -> None:
    memory = ContiguousMemory(64, 1, 32, longest(32))
    diary = run(memory, [Request(0, 0, 4, 2, samples=3), Request(1, 0, 4, 2)])
    assert diary.lines == [(0, "reject", 0), (0, "admit", 1), (2, "finish", 1)]


def test_the_reason_to_wait_names_the_hole_and_what_is_free() -> None:
    memory = ContiguousMemory(100, 1, 64, longest(64))
    diary = run(memory, [Request(0, 0, 4, 2), Request(1, 0, 4, 1)])
    assert diary.reasons == ["no hole of 64, yet only 4% holds tokens"]
