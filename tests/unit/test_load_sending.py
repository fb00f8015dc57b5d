"""The sending process against a server that does everything a server can do wrong."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.config import PROJECT_ROOT
from engine.errors import LabError
from engine.load.order import CANCELLED, LevelOrder, LevelOutcome, Prompt, Vocabulary
from engine.load.process import COMMAND, LoadGenerator
from engine.metrics import summarize
from tests.fake_openai import DONE, FakeOpenAI, Script, delta_event, event, text_event, usage_event
from tests.supervised import alive, eventually

TEXT = LevelOrder((Prompt(10, ("why is it so",)),), users=2, conversations=6, chat=True, salt="s", timeout_s=30)
IDS = replace(TEXT, prompts=(Prompt(10, tokens=12),), vocabulary=Vocabulary((1,), tuple(range(100, 160))))

SLACK_S = 0.2


@pytest.fixture(scope="module")
def generator() -> Iterator[LoadGenerator]:
    with LoadGenerator() as made:
        yield made


@pytest.fixture
def fake() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(Script(ttft_s=0.02, gap_s=0.002)) as server:
        yield server


def frames(*events: bytes) -> Script:
    return Script(frames=[(0.01, one) for one in events])


def reasons(outcome: LevelOutcome) -> set[str]:
    return {failure.cause for trace in outcome.traces if (failure := trace.failure()) is not None}


# -- what is sent


def test_a_closed_loop_keeps_its_users_busy_and_no_more(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    outcome = generator.run(fake.endpoint(), TEXT)
    assert [trace.ok for trace in outcome.traces] == [True] * 6
    assert fake.most_active == 2 and {sent.user for sent in outcome.sent} == {0, 1}
    assert outcome.stopped == "" and outcome.cpu_s > 0 and outcome.loop_lag_p99_ms is not None
    for user in (0, 1):
        mine = sorted((one.trace for one in outcome.sent if one.user == user), key=lambda trace: trace.sent_s)
        assert all(before.ended_s <= after.sent_s for before, after in itertools.pairwise(mine))  # type: ignore[operator]


def test_no_pool_holds_anybody_back(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    fake.script = Script(ttft_s=1.0, gap_s=0.0)
    generator.run(fake.endpoint(), replace(TEXT, users=250, conversations=250))
    assert fake.most_active == 250


def test_a_level_by_time_takes_new_requests_until_then_and_waits_for_the_last(
    generator: LoadGenerator, fake: FakeOpenAI
) -> None:
    outcome = generator.run(fake.endpoint(), replace(TEXT, conversations=None, duration_s=0.3))
    assert len(outcome.traces) > 4 and all(trace.ok for trace in outcome.traces)
    assert max(trace.sent_s for trace in outcome.traces) < outcome.began_s + 0.3 + SLACK_S


def test_an_open_loop_keeps_its_times_whatever_the_server_does(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    fake.script = Script(ttft_s=0.5, gap_s=0.0)
    arrivals = (0.0, 0.05, 0.1, 0.15)
    outcome = generator.run(fake.endpoint(), replace(TEXT, users=0, arrivals_s=arrivals, conversations=None))
    intended = sorted(trace.intended_s - outcome.began_s for trace in outcome.traces)  # type: ignore[operator]
    assert intended == pytest.approx(arrivals, abs=1e-5)
    assert all(trace.client_queue_ms is not None and trace.client_queue_ms >= 0 for trace in outcome.traces)
    assert fake.most_active == 4 and {one.user for one in outcome.sent} == {0, 1, 2, 3}


def test_a_place_in_an_open_loop_is_given_again_when_it_is_free(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    fake.script = Script(tokens=1, ttft_s=0.0)
    outcome = generator.run(fake.endpoint(), replace(TEXT, users=0, arrivals_s=(0.0, 0.4, 0.8), conversations=None))
    assert [one.user for one in outcome.sent] == [0, 0, 0]


def test_made_up_prompts_have_exactly_so_many_tokens_and_begin_differently(
    generator: LoadGenerator, fake: FakeOpenAI
) -> None:
    generator.run(fake.endpoint(), IDS)
    prompts = [sent.body["prompt"] for sent in fake.sent]
    assert {len(prompt) for prompt in prompts} == {12} and {prompt[0] for prompt in prompts} == {1}
    assert len({tuple(prompt[:5]) for prompt in prompts}) == 6
    assert all(100 <= token < 160 for prompt in prompts for token in prompt[1:])


def test_without_a_nonce_every_prompt_is_the_same(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    for order in (IDS, TEXT):
        generator.run(fake.endpoint(), replace(order, nonce=False))
    asked = {json.dumps(sent.body.get("prompt") or sent.body["messages"]) for sent in fake.sent}
    assert len(asked) == 2


def test_the_same_salt_asks_the_same_and_another_one_something_else(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    for salt in ("a", "a", "b"):
        generator.run(fake.endpoint(), replace(IDS, users=1, conversations=1, salt=salt))
    first, again, other = (sent.body["prompt"] for sent in fake.sent)
    assert first == again != other


def test_a_chat_asks_on_with_the_answer_it_got(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    fake.script = Script(tokens=2)
    order = replace(TEXT, prompts=(Prompt(2, ("one", "two")),), users=1, conversations=1, nonce=False)
    outcome = generator.run(fake.endpoint(), order)
    assert [one.turn for one in outcome.sent] == [0, 1]
    assert [message["content"] for message in fake.sent[1].body["messages"]] == ["one", "t0 t1 ", "two"]


def test_a_chat_whose_answer_fails_is_over(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    fake.script = Script(end="cut", frames=[(0.0, text_event("a"))])
    order = replace(TEXT, prompts=(Prompt(2, ("one", "two")),), users=1, conversations=1)
    assert len(generator.run(fake.endpoint(), order).traces) == 1


def test_the_key_travels_in_no_argument_and_no_environment(fake: FakeOpenAI) -> None:
    with LoadGenerator() as made:
        made.run(fake.endpoint("secret-key"), replace(TEXT, users=1, conversations=1))
        for name in ("cmdline", "environ"):
            with open(f"/proc/{made.pid}/{name}", "rb") as file:
                assert b"secret-key" not in file.read()
    assert fake.sent[-1].headers["Authorization"] == "Bearer secret-key"


# -- what comes back


@pytest.mark.parametrize(
    ("script", "ttft_after_ms", "tokens"),
    [
        (frames(delta_event({"role": "assistant", "content": ""}), text_event("a", finish="stop"), usage_event(3, 1), DONE), 18, 1),
        (frames(delta_event({"reasoning": "hm"}), text_event("a", finish="stop"), usage_event(3, 2), DONE), 9, 2),
        (frames(text_event("a b c "), text_event("d e"), delta_event({}, "stop"), usage_event(3, 5), DONE), 9, 5),
        (frames(text_event("a"), text_event("end", finish="stop"), usage_event(3, 2), DONE), 9, 2),
        (frames(text_event("a"), text_event("b", finish="stop"), DONE), 9, None),
    ],
    ids=["empty first chunk", "reasoning", "several tokens a chunk", "text in the last chunk", "no usage"],
)  # fmt: skip
def test_unusual_answers_are_counted_right(
    generator: LoadGenerator, fake: FakeOpenAI, script: Script, ttft_after_ms: float, tokens: int | None
) -> None:
    fake.script = script
    outcome = generator.run(fake.endpoint(), TEXT)
    assert all(trace.ok and trace.output_tokens == tokens for trace in outcome.traces), reasons(outcome)
    assert all(trace.ttft_ms is not None and trace.ttft_ms > ttft_after_ms for trace in outcome.traces)
    summary = summarize(outcome.traces)
    assert summary.output_tokens == (None if tokens is None else 6 * tokens)
    assert (summary.throughput_tok_s is None) == (tokens is None)


@pytest.mark.parametrize(
    "script",
    [
        frames(b"data: {no json\n\n", DONE),
        frames(text_event("a"), event({"error": {"message": "the engine died"}}), DONE),
        frames(text_event("a"), usage_event(3, 1), DONE),
        Script(frames=[(0.0, text_event("a"))], end="cut"),
        Script(status=503, body=b"overloaded", content_type="text/plain"),
        frames(text_event("a", finish="abort"), usage_event(3, 1), DONE),
    ],
    ids=["malformed", "error event", "no finish reason", "broken", "refused", "aborted"],
)
def test_what_is_no_whole_answer_fails_with_a_reason(
    generator: LoadGenerator, fake: FakeOpenAI, script: Script
) -> None:
    fake.script = script
    outcome = generator.run(fake.endpoint(), TEXT)
    assert len(outcome.traces) == 6 and not any(trace.ok for trace in outcome.traces)
    assert all(reasons(outcome)) and outcome.stopped == ""


def test_every_third_request_may_fail(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    numbers = itertools.count(1)
    refusal = Script(status=500, body=b'{"error": {"message": "boom"}}', content_type="application/json")
    fake.script_for = lambda _: refusal if next(numbers) % 3 == 0 else Script(ttft_s=0.0, gap_s=0.0)
    outcome = generator.run(fake.endpoint(), replace(TEXT, conversations=60))
    assert sum(trace.ok for trace in outcome.traces) == 40 and outcome.stopped == ""
    assert reasons(outcome) == {"The server answered HTTP 500: boom"}


def test_a_request_that_stalls_is_given_up_and_the_others_go_on(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    numbers = itertools.count()
    stalled = Script(frames=[(0.0, text_event("a"))], end="hang")
    fake.script_for = lambda _: stalled if next(numbers) == 1 else Script(ttft_s=0.0, gap_s=0.0)
    outcome = generator.run(fake.endpoint(), replace(TEXT, timeout_s=1.0))
    assert [trace.ok for trace in outcome.traces].count(True) == 5
    assert any("given up" in reason for reason in reasons(outcome))


def test_a_server_that_dies_half_way_ends_the_level_and_what_was_answered_stays(generator: LoadGenerator) -> None:
    with FakeOpenAI(Script(tokens=5, ttft_s=0.01, gap_s=0.01)) as dying:
        threading.Timer(0.5, dying.close).start()
        outcome = generator.run(dying.endpoint(), replace(TEXT, users=4, conversations=None, duration_s=60))
    assert outcome.stopped.startswith("20 requests failed one after another: No server answers")
    assert sum(trace.ok for trace in outcome.traces) > 4


def test_a_server_that_was_never_there_ends_the_level_at_once(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    endpoint = fake.endpoint()
    fake.close()
    outcome = generator.run(endpoint, replace(TEXT, users=100, conversations=1000))
    assert outcome.stopped and len(outcome.traces) < 400


# -- while it runs


def test_progress_tells_every_change_once_and_in_order(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    fake.script = Script(ttft_s=0.3, gap_s=0.03)
    told: list[dict[str, Any]] = []
    generator.run(fake.endpoint(), TEXT, told.append)
    changes = [change for one in told for change in one["changes"]]
    for number in range(6):
        mine = [(state, at_s) for request, _, state, at_s in changes if request == number]
        assert [state for state, _ in mine] == ["sent", "decode", "done"]
        assert [at_s for _, at_s in mine] == sorted(at_s for _, at_s in mine)
    assert (told[-1]["done"], told[-1]["failed"], told[-1]["running"], told[-1]["chunks"]) == (6, 0, 0, 60)
    assert any(one["running"] == 2 for one in told)


def test_the_servers_own_queue_time_is_told(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    usage = usage_event(3, 1, metrics={"queue_time_ms": 4.0, "time_to_first_token_ms": 5.0})
    fake.script = frames(text_event("a", finish="stop"), usage, DONE)
    told: list[dict[str, Any]] = []
    outcome = generator.run(fake.endpoint(), replace(TEXT, users=1, conversations=1), told.append)
    times = {state: at_s for one in told for _, _, state, at_s in one["changes"]}
    assert times["prefill"] - times["sent"] == pytest.approx(0.004, abs=1e-3)
    assert outcome.traces[0].server is not None and outcome.traces[0].server.queue_ms == 4.0


def test_cancelling_keeps_what_was_answered_and_marks_the_rest(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    numbers = itertools.count()
    fake.script_for = lambda _: Script(tokens=2) if next(numbers) < 2 else Script(ttft_s=60.0)
    done = threading.Event()
    outcome = generator.run(
        fake.endpoint(), TEXT, lambda one: done.set() if one["done"] == 2 else None, cancelled=done.is_set
    )
    assert outcome.stopped == CANCELLED
    assert [trace.ok for trace in outcome.traces].count(True) == 2
    assert {trace.error for trace in outcome.traces if not trace.ok} == {CANCELLED}


def test_cancelling_does_not_wait_for_the_next_arrival(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    order = replace(TEXT, users=0, conversations=None, arrivals_s=(0.0, 3600.0))
    done = threading.Event()
    outcome = generator.run(
        fake.endpoint(), order, lambda one: done.set() if one["done"] == 1 else None, cancelled=done.is_set
    )
    assert outcome.stopped == CANCELLED and [trace.ok for trace in outcome.traces] == [True]


def test_a_server_that_is_gone_ends_an_open_loop_too(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    endpoint = fake.endpoint()
    fake.close()
    order = replace(TEXT, users=0, conversations=None, arrivals_s=(*[0.0] * 25, 3600.0))
    outcome = generator.run(endpoint, order)
    assert "failed one after another" in outcome.stopped and len(outcome.traces) <= 25


def test_a_cancelled_level_leaves_the_process_ready_for_the_next(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    fake.script = Script(ttft_s=60.0)
    generator.run(fake.endpoint(), TEXT, cancelled=lambda: True)
    fake.script = Script(tokens=2)
    assert all(trace.ok for trace in generator.run(fake.endpoint(), TEXT).traces)


# -- the process


def test_it_ends_with_its_input_in_the_middle_of_a_level(fake: FakeOpenAI) -> None:
    fake.script = Script(ttft_s=60.0)
    order = {"do": "level", "endpoint": _plain(fake), "order": TEXT.to_dict()}
    process = subprocess.Popen(COMMAND, cwd=PROJECT_ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.flush()
    eventually(lambda: fake.active == 2)
    process.stdin.close()
    assert process.wait(10) == 0
    eventually(lambda: fake.active == 0)


def test_ctrl_c_is_left_to_the_app(fake: FakeOpenAI) -> None:
    with LoadGenerator() as made:
        made.run(fake.endpoint(), replace(TEXT, users=1, conversations=1))
        os.kill(made.pid, signal.SIGINT)
        assert all(trace.ok for trace in made.run(fake.endpoint(), TEXT).traces)
        pid = made.pid
    assert not alive(pid)


def test_a_process_that_is_killed_is_an_error_and_no_hanging(fake: FakeOpenAI) -> None:
    fake.script = Script(ttft_s=60.0)
    with LoadGenerator() as made:
        threading.Timer(0.5, made._process.kill).start()
        with pytest.raises(LabError, match="ended"):
            made.run(fake.endpoint(), TEXT)
        with pytest.raises(LabError, match="ended"):
            made.run(fake.endpoint(), TEXT)


def test_a_process_that_does_not_stop_is_given_up(monkeypatch: pytest.MonkeyPatch, fake: FakeOpenAI) -> None:
    monkeypatch.setattr("engine.load.process.CANCEL_S", 0.2)
    deaf = (sys.executable, "-c", "import time; time.sleep(60)")
    with LoadGenerator(deaf) as made, pytest.raises(LabError, match="didn't stop"):
        made.run(fake.endpoint(), TEXT, cancelled=lambda: True)
    assert not alive(made.pid)


def test_a_fault_in_the_process_is_told(generator: LoadGenerator, fake: FakeOpenAI) -> None:
    with pytest.raises(LabError, match="sending process failed"):
        generator.run(fake.endpoint(), replace(TEXT, prompts=(Prompt(0, ("max_tokens 0",)),)))
    assert all(trace.ok for trace in generator.run(fake.endpoint(), TEXT).traces)


def _plain(fake: FakeOpenAI) -> dict[str, Any]:
    endpoint = fake.endpoint()
    return {"base_url": endpoint.base_url, "model": endpoint.model, "api_key": endpoint.api_key}
