"""The phases of a start, over logs of real vLLM starts with the times in them as the clock."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.server.startup import StartupTracker
from engine.server.state import PHASE_LABELS, Phase

STARTS = Path(__file__).parent.parent / "fixtures" / "starts"
TIME = re.compile(r" \d\d-\d\d (\d\d):(\d\d):(\d\d) \[")
ORDER = list(Phase)


class Clock:
    """Seconds of the day, moved on by the times in a log."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def read(self, line: str) -> None:
        if found := TIME.search(line):
            hours, minutes, seconds = map(int, found.groups())
            self.now = 3600.0 * hours + 60.0 * minutes + seconds


def lines_of(name: str) -> list[str]:
    """As the log follower gives them: progress bars keep their carriage returns."""
    return (STARTS / name).read_bytes().decode().removesuffix("\n").split("\n")


def follow(name: str) -> tuple[StartupTracker, list[Phase]]:
    """Read a whole log as the supervisor does; returns the tracker and every phase in the order seen."""
    clock, lines = Clock(), lines_of(name)
    clock.read(next(line for line in lines if TIME.search(line)))
    tracker = StartupTracker(None, clock)
    tracker.enter(Phase.IMPORT)
    seen = [tracker.phase]
    for line in lines:
        clock.read(line)
        tracker.read(line)
        if tracker.phase != seen[-1]:
            seen.append(tracker.phase)
    return tracker, seen


@pytest.mark.parametrize("name", ["cpu_eager.log", "gpu_graphs.log", "gpu_eager.log"])
def test_a_real_start_goes_through_every_phase_in_order(name: str) -> None:
    tracker, seen = follow(name)
    assert seen == ORDER[1:]
    assert tracker.listening
    assert list(tracker.durations()) == [phase.value for phase in ORDER]


@pytest.mark.parametrize(
    ("name", "durations"),
    [
        ("cpu_eager.log", {"import": 14, "weights": 0, "kv_cache": 1, "warm_up": 1}),
        ("gpu_graphs.log", {"import": 21, "weights": 1, "kv_cache": 26, "warm_up": 24}),
        ("gpu_eager.log", {"import": 34, "weights": 0, "kv_cache": 5, "warm_up": 14}),
    ],
)
def test_the_durations_are_those_of_the_log(name: str, durations: dict[str, int]) -> None:
    tracker, _ = follow(name)
    tracker.finish()
    measured = tracker.durations()
    assert {phase: measured[phase] for phase in durations} == durations
    assert sum(measured.values()) == tracker.elapsed_s


@pytest.mark.parametrize(
    ("name", "tokens", "concurrency"),
    [("cpu_eager.log", 93_184, 91.0), ("gpu_graphs.log", 5_956_560, 2908.48), ("gpu_eager.log", 5_956_560, 2908.48)],
)
def test_the_capacity_is_read_from_the_log(name: str, tokens: int, concurrency: float) -> None:
    tracker, _ = follow(name)
    assert (tracker.capacity.tokens, tracker.capacity.max_concurrency) == (tokens, concurrency)


def test_nothing_is_known_of_the_capacity_before_the_log_tells() -> None:
    tracker = StartupTracker(None)
    tracker.read("INFO 12-01 03:01:49 [model.py:733] Resolved architecture: LlamaForCausalLM")
    assert tracker.capacity.tokens is None and tracker.capacity.num_blocks is None
    tracker.read("# CPU blocks: 728")
    assert tracker.capacity.num_blocks == 728
    assert tracker.capacity.tokens is None


@pytest.mark.parametrize("name", ["cpu_eager.log", "gpu_graphs.log"])
def test_it_is_not_listening_until_the_last_line(name: str) -> None:
    tracker = StartupTracker(None)
    *before, last = lines_of(name)
    for line in before:
        tracker.read(line)
    assert not tracker.listening
    tracker.read(last)
    assert tracker.listening


def test_phases_only_move_forward() -> None:
    clock = Clock()
    tracker = StartupTracker(None, clock)
    tracker.read("GPU KV cache size: 100 tokens")
    clock.now = 5.0
    tracker.read("Starting to load model x")
    tracker.enter(Phase.IMPORT)
    tracker.enter(Phase.WARM_UP)
    clock.now = 6.0
    assert tracker.phase == Phase.WARM_UP
    assert tracker.durations() == {"model": 0.0, "warm_up": 6.0}


def test_a_phase_that_the_log_never_showed_has_no_duration_but_counts_as_done() -> None:
    tracker = StartupTracker(None, Clock())
    tracker.enter(Phase.KV_CACHE)
    progress = {item.phase: item for item in tracker.progress()}
    assert progress[Phase.WEIGHTS].elapsed_s is None
    assert progress[Phase.WEIGHTS].done and not progress[Phase.KV_CACHE].done
    assert progress[Phase.WARM_UP].elapsed_s is None and not progress[Phase.WARM_UP].done


def test_expected_times_stand_beside_the_elapsed_ones() -> None:
    clock = Clock()
    tracker = StartupTracker({"import": 20.0, "weights": 2.0}, clock)
    tracker.enter(Phase.IMPORT)
    clock.now = 3.0
    progress = tracker.progress()
    assert [item.phase for item in progress] == ORDER
    assert [item.expected_s for item in progress] == [None, 20.0, 2.0, None, None, None]
    assert progress[1].elapsed_s == 3.0 and progress[1].done is False
    assert tracker.expected_s == 22.0


@pytest.mark.parametrize("history", [None, {}])
def test_without_history_nothing_is_expected(history: dict[str, float] | None) -> None:
    tracker = StartupTracker(history)
    assert tracker.expected_s is None
    assert all(item.expected_s is None for item in tracker.progress())


def test_times_stand_still_after_the_end() -> None:
    clock = Clock()
    tracker = StartupTracker(None, clock)
    tracker.enter(Phase.READY)
    clock.now = 4.0
    tracker.finish()
    clock.now = 400.0
    tracker.finish()
    assert tracker.elapsed_s == 4.0
    assert tracker.durations()["ready"] == 4.0
    assert all(item.done for item in tracker.progress())


def test_a_start_that_failed_stays_at_its_phase() -> None:
    tracker = StartupTracker(None, Clock())
    tracker.enter(Phase.WEIGHTS)
    tracker.finish()
    assert [item.phase for item in tracker.progress() if item.done] == [Phase.MODEL, Phase.IMPORT]


def test_every_phase_has_a_label() -> None:
    labels = [item.label for item in StartupTracker(None).progress()]
    assert labels == list(PHASE_LABELS.values())
    assert len(set(labels)) == len(ORDER)
