"""The load test as a service: started, watched, cancelled, saved; and what it and the others exclude."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.chat import ChatSession
from engine.compare import CompareRunner
from engine.config import CompareConfig, LoadTestConfig
from engine.errors import AlreadyRunning, ConfigError, StoreError
from engine.load.board import LoadBoard
from engine.load.measure import (
    CACHED_NOTE,
    MOST_WARM_UPS,
    NO_NONCE_NOTE,
    NOT_FORCED_NOTE,
    OPEN_LOOP_WARM_UPS,
    WARM_UP_TOKENS,
    _Task,
    _warm_up_order,
    measure,
)
from engine.load.order import LevelOrder, Prompt
from engine.load.profiles import levels_of
from engine.load.results import LevelResult, LoadResults, LoadSnapshot, LoadState, RequestState
from engine.load.runner import LoadTestRunner, title_of
from engine.server.state import ServerState
from tests.fake_openai import FakeOpenAI, Script
from tests.supervised import Lab, eventually

CONFIG = LoadTestConfig(users=(1, 2), requests=4, max_tokens=10)  # the fake server's answers have 10 tokens
VLLM_METRICS = "vllm:num_requests_running 0\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n"
QUICK = Script(ttft_s=0.01, gap_s=0.002)
FIRST_OF_A_LEVEL = 1 + 1  # the tried request and one user's warm-up come before


@pytest.fixture
def fake() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(QUICK) as server:
        server.metrics_text = VLLM_METRICS
        yield server


@pytest.fixture
def runner(lab: Lab) -> Iterator[LoadTestRunner]:
    made = LoadTestRunner(lab.settings, lab.supervisor, lab.store)
    yield made
    made.close()


@pytest.fixture
def attached(lab: Lab, fake: FakeOpenAI) -> FakeOpenAI:
    lab.supervisor.attach(fake.base_url, "key")
    fake.sent.clear()
    return fake


def finished(runner: LoadTestRunner) -> LoadSnapshot:
    runner.wait()
    return runner.snapshot()


# -- what is measured


def test_every_level_is_measured_and_saved_with_all_it_takes_to_repeat_it(
    lab: Lab, runner: LoadTestRunner, attached: FakeOpenAI
) -> None:
    runner.start(CONFIG)
    done = finished(runner)
    assert (done.state, done.error, done.progress) == (LoadState.DONE, None, 1.0)
    assert [(level.label, level.requests_ok, level.output_tokens) for level in done.levels] == [
        ("1 user", 4, 40),
        ("2 users", 4, 40),
    ]
    run = lab.store.get(done.run_id or "")
    assert run is not None and (run.kind, run.status) == ("load", "done")
    assert run.title.startswith("1, 2 users: up to ") and run.duration_s and run.environment["packages"]
    assert LoadTestConfig.from_dict(run.config) == CONFIG
    assert LoadResults.from_dict(run.results) == done.results
    assert lab.snapshot().reserved == ""


def test_warm_ups_are_sent_and_not_counted(runner: LoadTestRunner, attached: FakeOpenAI) -> None:
    runner.start(CONFIG)
    finished(runner)
    lengths = [sent.body["max_tokens"] for sent in attached.sent]
    assert lengths == [8, 8, *[10] * 4, 8, 8, *[10] * 4]  # one tried, then a wave before each level
    attached.sent.clear()
    runner.start(replace(CONFIG, warm_up=False))
    finished(runner)
    assert [sent.body["max_tokens"] for sent in attached.sent] == [8, *[10] * 8]


@pytest.mark.parametrize(
    ("config", "sent"),
    [
        (LoadTestConfig(users=(3,)), 3),
        (LoadTestConfig(users=(1_000,)), 1_000),
        (LoadTestConfig(users=(10_000,)), MOST_WARM_UPS),
        (LoadTestConfig(profile="burst", users=(40,)), 40),
        (LoadTestConfig(profile="constant", rates=(5.0,), duration_s=10), OPEN_LOOP_WARM_UPS),
        (LoadTestConfig(profile="constant", rates=(1.0,), duration_s=3), 3),
    ],
)
def test_a_warm_up_is_a_wave_as_wide_as_its_level(config: LoadTestConfig, sent: int) -> None:
    one = levels_of(config)[0]
    order = LevelOrder((Prompt(50, tokens=8),), users=one.users or 0, conversations=one.requests)
    order = replace(order, arrivals_s=one.arrivals_s, salt="salt")
    warm = _warm_up_order(_Task(0, one, order))
    assert (warm.users, warm.conversations, warm.arrivals_s, warm.duration_s) == (sent, sent, None, None)
    assert warm.prompts == (Prompt(WARM_UP_TOKENS, tokens=8),) and warm.salt != order.salt


def test_a_server_is_started_where_none_runs_and_stopped_again(lab: Lab, runner: LoadTestRunner) -> None:
    runner.start(replace(CONFIG, users=(1,)))
    done = finished(runner)
    assert done.state == LoadState.DONE and done.levels[0].requests_ok == 4
    assert lab.snapshot().state == ServerState.STOPPED
    run = lab.store.get(done.run_id or "")
    assert run is not None and run.config["server"]["model"] and run.command and run.model["origin"] == "local"


def test_lengths_are_forced_where_the_engine_can(lab: Lab, runner: LoadTestRunner, attached: FakeOpenAI) -> None:
    runner.start(CONFIG)
    done = finished(runner)
    assert all(sent.body["ignore_eos"] for sent in attached.sent)
    assert done.levels[0].lengths_forced and done.results.notes == ()
    run = lab.store.get(done.run_id or "")
    assert run is not None and run.environment["engine"] == "vLLM"
    attached.metrics_text = ""
    lab.supervisor.detach()
    lab.supervisor.attach(attached.base_url, "key")
    attached.sent.clear()
    runner.start(CONFIG)
    done = finished(runner)
    run = lab.store.get(done.run_id or "")
    assert run is not None and run.environment["engine"] == "Unknown engine"
    assert not any("ignore_eos" in sent.body for sent in attached.sent)
    assert done.levels[0].lengths_forced is False and NOT_FORCED_NOTE in done.results.notes


def test_what_the_prefix_cache_may_answer_is_said(runner: LoadTestRunner, attached: FakeOpenAI) -> None:
    for settings, note in (({"same_prompt": True}, CACHED_NOTE), ({"nonce": False}, NO_NONCE_NOTE)):
        runner.start(replace(CONFIG, users=(1,), **settings))
        assert finished(runner).results.notes == (note,)


@pytest.mark.parametrize(
    ("settings", "requests"),
    [
        ({"profile": "poisson", "rates": (20.0,), "requests": 5}, 5),
        ({"profile": "constant", "rates": (20.0,), "requests": 5}, 5),
        ({"profile": "burst", "users": (6,), "requests": None}, 6),
        ({"prompts": "chat", "turns": 2, "users": (2,), "requests": 4}, 4),
        ({"prompts": "mixed", "users": (1,), "requests": 2}, 2),
    ],
    ids=["poisson", "constant", "burst", "chat", "mixed"],
)
def test_every_profile_and_kind_of_prompt_is_measured(
    fake: FakeOpenAI, settings: dict[str, Any], requests: int
) -> None:
    found = measure(fake.endpoint(), replace(CONFIG, **settings)).levels
    assert [(level.requests, level.requests_ok) for level in found] == [(requests, requests)]
    assert (found[0].client_queue_ms is not None) == (found[0].users is None or settings.get("profile") == "burst")


def test_every_user_has_a_chat_however_few_requests_were_asked_for(fake: FakeOpenAI) -> None:
    config = replace(CONFIG, prompts="chat", turns=3, users=(4,), requests=6)
    assert measure(fake.endpoint(), config).levels[0].requests_ok == 4 * 3


def test_a_ramp_stops_where_more_users_only_wait_longer(fake: FakeOpenAI) -> None:
    fake.script_for = lambda _: Script(ttft_s=0.03 * fake.active, gap_s=0.0)  # all share one worker
    fake.metrics_text = VLLM_METRICS
    found = measure(fake.endpoint(), replace(CONFIG, profile="ramp", users=(1, 64), requests=12))
    assert found.saturated and 2 <= len(found.levels) < 7


def test_a_ramp_that_does_not_saturate_goes_to_its_end(fake: FakeOpenAI) -> None:
    fake.script = Script(ttft_s=0.1, gap_s=0.0)
    found = measure(fake.endpoint(), replace(CONFIG, profile="ramp", users=(1, 4), requests=8))
    assert not found.saturated and [level.users for level in found.levels] == [1, 2, 4]


def test_more_users_than_open_files_are_refused_before_anything_is_sent(
    fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.load.measure.resource.getrlimit", lambda _: (256, 1024))
    with pytest.raises(ConfigError, match="1,024"):
        measure(fake.endpoint(), replace(CONFIG, users=(1, 5000)))
    assert fake.sent == []


def test_the_time_left_counts_levels_by_their_arrivals_their_seconds_or_the_pace_so_far() -> None:
    for config, expected in (
        (LoadTestConfig(profile="constant", rates=(1.0, 2.0), duration_s=10), 9.5),
        (LoadTestConfig(users=(1, 2), duration_s=10), 10),
        (LoadTestConfig(users=(1, 4), requests=20), 20 * 0.5 / 2),  # between no gain and a fourfold one
    ):
        board, levels = LoadBoard(config), levels_of(config)
        board.plan(levels)
        board.begin(0, levels[0], warming_up=False)
        assert board.snapshot().left_s is None
        done = (levels[0].requests or 20) // 2
        event = {"at_s": 5.0, "chunks": 0, "running": 1, "done": done, "failed": 0, "changes": []}
        board.progress(event, None)
        seen = board.snapshot()
        assert seen.progress == pytest.approx(0.25)
        assert seen.left_s == pytest.approx(5.0 + expected)


# -- while it runs


def test_a_running_level_is_seen_with_its_lanes_its_speed_and_the_time_left(
    runner: LoadTestRunner, attached: FakeOpenAI
) -> None:
    attached.script = Script(ttft_s=0.4, gap_s=0.05)
    runner.start(replace(CONFIG, users=(2,), requests=8))
    seen = eventually(lambda: (now := runner.snapshot()).requests_done >= 2 and not now.warming_up and now)
    assert seen.running and seen.labels == ("2 users",) and (seen.level, seen.requests_planned) == (0, 8)
    assert 0 < seen.progress < 1 and seen.left_s and seen.elapsed_s and seen.level_s
    assert [lane.user for lane in seen.lanes] == [0, 1]
    first = seen.lanes[0].requests[0]
    assert first.state == RequestState.DONE and first.first_token_s and first.end_s
    assert first.start_s < first.first_token_s < first.end_s
    assert seen.live and max(point.tokens_s for point in seen.live) > 0
    done = finished(runner)
    states = {request.state for lane in done.lanes for request in lane.requests}
    assert states == {RequestState.DONE} and sum(len(lane.requests) for lane in done.lanes) == 8


def test_requests_that_the_server_says_wait_are_the_newest_ones() -> None:
    board = LoadBoard(CONFIG)
    board.begin(0, levels_of(CONFIG)[1], warming_up=False)
    changes = [[0, 0, "sent", 0.0], [1, 1, "sent", 0.1], [2, 2, "sent", 0.2], [0, 0, "decode", 0.3]]
    board.progress({"at_s": 0.6, "chunks": 3, "running": 3, "done": 0, "failed": 0, "changes": changes}, 1)
    seen = board.snapshot()
    states = [lane.requests[0].state for lane in seen.lanes]
    assert states == [RequestState.DECODE, RequestState.PREFILL, RequestState.QUEUED]
    assert (seen.live[0].running, seen.live[0].queued, seen.live[0].tokens_s) == (2, 1, pytest.approx(5))


def test_only_two_hundred_lanes_and_their_newest_requests_are_kept() -> None:
    board = LoadBoard(CONFIG)
    board.begin(0, levels_of(CONFIG)[1], warming_up=False)
    sent = [[number, number % 300, "sent", 0.0] for number in range(300 * 50)]
    ended = [[number, number % 300, "failed", 1.0] for number in range(300 * 50)]
    board.progress({"at_s": 1.0, "chunks": 0, "running": 0, "done": 0, "failed": 1, "changes": sent + ended}, None)
    lanes = board.snapshot().lanes
    assert len(lanes) == 200 and {len(lane.requests) for lane in lanes} == {40}
    assert lanes[0].requests[-1].request == 49 * 300 and lanes[0].requests[-1].state == RequestState.FAILED


# -- how it ends early


def test_cancelling_keeps_what_was_measured_and_marks_it(
    lab: Lab, runner: LoadTestRunner, attached: FakeOpenAI
) -> None:
    numbers = itertools.count()
    attached.script_for = lambda _: QUICK if next(numbers) < FIRST_OF_A_LEVEL + 4 + 2 + 2 else Script(ttft_s=60)
    runner.start(CONFIG)
    eventually(lambda: runner.snapshot().level == 1 and runner.snapshot().requests_done == 2)
    runner.cancel()
    done = finished(runner)
    assert (done.state, done.error) == (LoadState.CANCELLED, None)
    assert [level.requests_ok for level in done.levels] == [4, 2]
    assert (done.levels[0].partial, done.levels[1].requests_cancelled) == ("", 2) and done.levels[1].partial
    run = lab.store.get(done.run_id or "")
    assert run is not None and run.status == "cancelled"
    runner.start(replace(CONFIG, users=(1,)))
    runner.cancel()
    assert finished(runner).state == LoadState.CANCELLED


def test_cancelling_while_a_server_starts_ends_that_too(lab: Lab, runner: LoadTestRunner) -> None:
    lab.words = ["--at", "import", "--do", "hang"]
    runner.start(CONFIG)
    eventually(lambda: lab.snapshot().state == ServerState.STARTING)
    runner.cancel()
    done = finished(runner)
    assert (done.state, done.run_id) == (LoadState.CANCELLED, None) and lab.snapshot().state == ServerState.STOPPED


def test_a_server_that_dies_half_way_is_a_failure_with_what_was_measured(
    lab: Lab, runner: LoadTestRunner, attached: FakeOpenAI
) -> None:
    runner.start(replace(CONFIG, requests=200, users=(1, 2)))
    eventually(lambda: runner.snapshot().level == 1 and runner.snapshot().requests_done > 2)
    attached.close()
    done = finished(runner)
    assert done.state == LoadState.FAILED and "failed one after another" in (done.error or "") and done.remedy
    assert done.levels[0].requests_ok == 200 and done.levels[1].requests_failed and done.levels[1].partial
    run = lab.store.get(done.run_id or "")
    assert run is not None and run.status == "failed" and run.results["error"] == done.error


def test_the_labs_own_server_that_dies_says_why(lab: Lab, runner: LoadTestRunner) -> None:
    lab.start_and_wait()
    runner.start(replace(CONFIG, users=(2,), requests=None, duration_s=60))
    eventually(lambda: runner.snapshot().requests_done > 2)
    os.kill(lab.snapshot().pid or 0, signal.SIGKILL)
    done = finished(runner)
    assert done.state == LoadState.FAILED and done.levels[0].requests_ok > 2
    assert lab.snapshot().diagnosis is not None and done.error == lab.snapshot().diagnosis.cause


def test_what_no_request_can_do_is_said_at_once(lab: Lab, runner: LoadTestRunner, attached: FakeOpenAI) -> None:
    attached.script = Script(status=404, body=b'{"error": {"message": "no such model"}}', content_type="text/plain")
    runner.start(CONFIG)
    done = finished(runner)
    assert done.state == LoadState.FAILED and "no such model" in (done.error or "") and len(attached.sent) == 1
    assert done.run_id is None and lab.store.list("load") == []


def test_a_full_disk_at_the_end_loses_no_numbers(
    runner: LoadTestRunner, attached: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, lab: Lab
) -> None:
    def full(_: object) -> None:
        raise StoreError("The disk is full.", "Make room.")

    monkeypatch.setattr(lab.store, "add", full)
    runner.start(replace(CONFIG, users=(1,)))
    done = finished(runner)
    assert (done.error, done.run_id, done.levels[0].requests_ok) == ("The disk is full.", None, 4)


# -- one at a time


def test_a_second_load_test_and_a_comparison_are_refused_meanwhile(
    lab: Lab, runner: LoadTestRunner, attached: FakeOpenAI
) -> None:
    attached.script = Script(ttft_s=60)
    runner.start(CONFIG)
    eventually(lambda: lab.snapshot().reserved)
    with pytest.raises(AlreadyRunning):
        runner.start(CONFIG)
    with pytest.raises(AlreadyRunning, match="load test"):
        CompareRunner(lab.settings, lab.supervisor, lab.store).start(CompareConfig(engines=("vllm",)))
    with pytest.raises(AlreadyRunning, match="load test"):
        lab.supervisor.detach()
    session = ChatSession(before_turn=runner.require_idle)
    with pytest.raises(AlreadyRunning, match="load test"):
        session.send(attached.endpoint(), "Hello")


def test_it_is_refused_while_something_else_has_the_server_or_a_chat_streams(lab: Lab, attached: FakeOpenAI) -> None:
    chatting = threading.Event()
    runner = LoadTestRunner(
        lab.settings, lab.supervisor, lab.store, lambda: "A chat answer." if chatting.is_set() else ""
    )
    with lab.supervisor.reserved("A comparison is being measured."), pytest.raises(AlreadyRunning, match="comparison"):
        runner.start(CONFIG)
    chatting.set()
    with pytest.raises(AlreadyRunning, match="chat answer"):
        runner.start(CONFIG)
    assert runner.snapshot().state == LoadState.IDLE
    chatting.clear()
    runner.start(replace(CONFIG, users=(1,)))
    assert finished(runner).state == LoadState.DONE


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (CONFIG, "1, 2 users: up to 100 tok/s"),
        (LoadTestConfig(profile="poisson", rates=(0.5, 2.0)), "0.5, 2 requests/s: up to 100 tok/s"),
        (LoadTestConfig(users=tuple(range(1, 9))), "1 user to 8 users: up to 100 tok/s"),
    ],
)
def test_a_run_is_named_after_its_levels(config: LoadTestConfig, words: str) -> None:
    levels = [
        LevelResult(level.label, level.users, level.rate_req_s, throughput_tok_s=100.0) for level in levels_of(config)
    ]
    assert title_of(config, LoadResults(tuple(levels))) == words
