"""Conversations as saved runs: every ending is kept, with its numbers, and a store that fails costs no answer."""

from __future__ import annotations

import csv
import io
import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import cli
from engine.chat import ChatArchive, ChatOptions, ChatRegistry, ChatSession, TurnStatus, turns_to_csv
from engine.config import Endpoint, ServerConfig, Settings
from engine.errors import DiskFull, LabError
from engine.server.state import ServerSnapshot, ServerState
from engine.services import open_beside
from engine.store import Run, RunStore, run_to_json, runs_to_csv
from tests.fake_openai import DONE, FakeOpenAI, Script, event, text_event, usage_event
from tests.ui import fakes

WAIT_S = 20.0
OWN_NUMBERS = ("ttft_ms", "tpot_ms", "e2e_ms", "itl_p50_ms", "itl_p95_ms", "itl_max_ms", "decode_speed_tok_s")


@pytest.fixture
def fake() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as server:
        yield server


@pytest.fixture
def own_signals() -> Iterator[None]:
    """The command line takes signals for itself; the test run wants them back."""
    taken = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in taken]
    yield
    for number, handler in zip(taken, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs.db")


@pytest.fixture
def chat(store: RunStore, tmp_path: Path) -> Iterator[ChatSession]:
    session = ChatSession(archive=archive(store, tmp_path))
    yield session
    session.stop()
    assert session.wait(WAIT_S)


def archive(store: RunStore, folder: Path, server: ServerSnapshot | None = None) -> ChatArchive:
    return ChatArchive(Settings(data_dir=folder), store, lambda: server or ServerSnapshot())


def say(chat: ChatSession, fake: FakeOpenAI, text: str = "hello", options: ChatOptions | None = None) -> None:
    chat.send(fake.endpoint(), text, options)
    assert chat.wait(WAIT_S)


def only_run(store: RunStore) -> Run:
    (run,) = store.list()
    return run


def test_a_conversation_is_one_run_that_grows(chat: ChatSession, fake: FakeOpenAI, store: RunStore) -> None:
    say(chat, fake, "one", ChatOptions(system="Be kind.", max_tokens=9))
    first = only_run(store)
    fake.script = Script(tokens=5, cached=4)
    say(chat, fake, "two", ChatOptions(temperature=0.0))
    run = only_run(store)
    assert (run.id, run.kind, run.status, run.created_at) == (first.id, "chat", "done", first.created_at)
    assert run.title.startswith("Chat: 2 answers, TTFT ")
    assert (run.results["answers"], run.results["answers_finished"]) == (2, 2)
    one, two = run.results["turns"]
    assert (one["number"], one["user"], one["assistant"], one["status"]) == (
        1,
        "one",
        "".join(f"t{i} " for i in range(10)),
        "done",
    )
    assert one["options"] == {"system": "Be kind.", "temperature": 0.7, "top_p": 1.0, "max_tokens": 9}
    assert two["options"]["temperature"] == 0.0 and run.config["options"] == two["options"]
    assert (two["prompt_tokens"], two["output_tokens"], two["cached_tokens"]) == (7, 5, 4)
    assert one["cached_tokens"] is None and one["server_ttft_ms"] is None
    assert chat.snapshot().saved.run_id == run.id


def test_the_saved_numbers_are_those_on_screen(chat: ChatSession, fake: FakeOpenAI, store: RunStore) -> None:
    metrics = {"time_to_first_token_ms": 12.5, "queue_time_ms": 0.5, "mean_itl_ms": 3}
    frames = [text_event("a"), text_event("b", finish="stop"), usage_event(9, 2, cached=8, metrics=metrics), DONE]
    fake.script = Script(frames=[(0.01, frame) for frame in frames])
    say(chat, fake)
    (turn,), trace = only_run(store).results["turns"], chat.snapshot().turns[-1].trace
    assert trace is not None
    assert [turn[name] for name in ("ttft_ms", "tpot_ms", "e2e_ms", "decode_speed_tok_s")] == [
        trace.ttft_ms,
        trace.tpot_ms,
        trace.e2e_ms,
        trace.decode_speed_tok_s,
    ]
    assert [turn[f"itl_{name}_ms"] for name in ("p50", "p95", "max")] == [trace.itl_ms[0]] * 3
    assert [turn[name] for name in ("server_ttft_ms", "server_queue_ms", "server_mean_itl_ms")] == [12.5, 0.5, 3.0]
    assert turn["finish_reason"] == "stop"


def test_medians_are_over_finished_answers_and_the_others_are_counted(
    chat: ChatSession, fake: FakeOpenAI, store: RunStore
) -> None:
    say(chat, fake)
    fake.script = Script(frames=[(0.3, text_event("half"))], end="cut")
    say(chat, fake)
    results = only_run(store).results
    assert results["ttft_median_ms"] == results["turns"][0]["ttft_ms"]
    assert results["turns"][1]["ttft_ms"] > 290
    assert (results["answers"], results["answers_finished"]) == (2, 1)
    assert only_run(store).title.startswith("Chat: 1 of 2 answers, TTFT ")


ERROR = event({"error": {"message": "EngineCore encountered an issue.", "code": 500}})


@pytest.mark.parametrize(
    ("script", "status", "text", "error"),
    [
        (Script(frames=[(0.0, text_event("par")), (0.0, ERROR)]), "interrupted", "par", "EngineCore"),
        (Script(status=400, body=b'{"error": {"message": "bad top_p"}}'), "failed", "", "bad top_p"),
    ],
)
def test_an_answer_that_fails_is_saved_with_its_reason(
    chat: ChatSession, fake: FakeOpenAI, store: RunStore, script: Script, status: str, text: str, error: str
) -> None:
    fake.script = script
    say(chat, fake)
    run = only_run(store)
    (turn,) = run.results["turns"]
    assert (run.status, turn["status"], turn["assistant"]) == (status, status, text)
    assert error in turn["error"]
    assert run.title == "Chat: 0 of 1 answer"
    assert run.results["ttft_median_ms"] is None


def test_a_turn_without_an_answer_has_no_numbers(chat: ChatSession, fake: FakeOpenAI, store: RunStore) -> None:
    fake.script = Script(status=503, body=b"")
    say(chat, fake)
    (turn,) = only_run(store).results["turns"]
    assert {turn[name] for name in OWN_NUMBERS} == {None}


@pytest.mark.parametrize("end", ["stop", "new chat", "close"])
def test_a_stopped_answer_is_saved_with_what_had_arrived(
    fake: FakeOpenAI, store: RunStore, tmp_path: Path, end: str
) -> None:
    registry = ChatRegistry(archive=archive(store, tmp_path))
    chat = registry.get("a")
    fake.script = Script(frames=[(0.0, text_event("Once"))], end="hang")
    chat.send(fake.endpoint(), "tell")
    while chat.snapshot().turns[-1].text != "Once":
        threading.Event().wait(0.01)
    {"stop": chat.stop, "new chat": chat.clear, "close": registry.close}[end]()
    assert chat.wait(WAIT_S)
    (turn,) = only_run(store).results["turns"]
    assert (turn["status"], turn["assistant"], turn["error"]) == ("stopped", "Once", None)


def test_a_message_that_is_refused_before_it_is_sent_makes_no_run(
    chat: ChatSession, fake: FakeOpenAI, store: RunStore
) -> None:
    fake.max_model_len = 64
    with pytest.raises(LabError):
        chat.send(fake.endpoint(), "word " * 100)
    assert store.list() == [] and chat.snapshot().saved.run_id is None


def test_a_new_chat_is_a_new_run(chat: ChatSession, fake: FakeOpenAI, store: RunStore) -> None:
    say(chat, fake, "one")
    chat.clear()
    assert chat.snapshot().saved.run_id is None
    say(chat, fake, "two")
    assert [[turn["user"] for turn in run.results["turns"]] for run in store.list()] == [["two"], ["one"]]


def test_two_conversations_are_two_runs(fake: FakeOpenAI, store: RunStore, tmp_path: Path) -> None:
    registry = ChatRegistry(archive=archive(store, tmp_path))
    for name in ("a", "b", "a"):
        say(registry.get(name), fake, name)
    assert sorted(len(run.results["turns"]) for run in store.list()) == [1, 2]


def test_what_was_deleted_stays_deleted_and_later_turns_make_a_run_of_their_own(
    chat: ChatSession, fake: FakeOpenAI, store: RunStore
) -> None:
    say(chat, fake, "one")
    say(chat, fake, "two")
    deleted = only_run(store).id
    store.delete(deleted)
    say(chat, fake, "three")
    say(chat, fake, "four")
    run = only_run(store)
    assert run.id != deleted
    assert [(turn["number"], turn["user"]) for turn in run.results["turns"]] == [(3, "three"), (4, "four")]
    assert len(chat.snapshot().turns) == 8


class FailingStore(RunStore):
    """Fails as long as ``failure`` is set."""

    failure: Exception | None = None

    def add(self, run: Run) -> None:
        if self.failure is not None:
            raise self.failure
        super().add(run)


@pytest.mark.parametrize(
    ("failure", "cause"), [(DiskFull("No room on the disk.", "Free some space."), "No room"), (OSError("odd"), "odd")]
)
def test_a_store_that_fails_costs_no_answer_and_the_next_turn_saves_all(
    fake: FakeOpenAI, tmp_path: Path, failure: Exception, cause: str
) -> None:
    store = FailingStore(tmp_path / "runs.db")
    chat = ChatSession(archive=archive(store, tmp_path))
    store.failure = failure
    say(chat, fake, "one")
    snapshot = chat.snapshot()
    assert snapshot.turns[-1].status == TurnStatus.DONE and not snapshot.streaming
    assert snapshot.saved.error is not None and cause in snapshot.saved.error.cause
    assert snapshot.saved.run_id is None and not snapshot.saved.pending
    store.failure = None
    say(chat, fake, "two")
    assert chat.snapshot().saved.error is None
    assert [turn["user"] for turn in only_run(store).results["turns"]] == ["one", "two"]


class SlowStore(RunStore):
    """Writes when it is let."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked, self.may_write = threading.Event(), threading.Event()

    def add(self, run: Run) -> None:
        self.asked.set()
        assert self.may_write.wait(WAIT_S)
        super().add(run)


def test_the_next_answer_does_not_wait_for_the_store(fake: FakeOpenAI, tmp_path: Path) -> None:
    store = SlowStore(tmp_path / "runs.db")
    chat = ChatSession(archive=archive(store, tmp_path))
    chat.send(fake.endpoint(), "one")
    assert store.asked.wait(WAIT_S)
    assert chat.snapshot().saved.pending and not chat.busy
    chat.send(fake.endpoint(), "two")
    while len(chat.snapshot().turns) < 4 or chat.busy:
        threading.Event().wait(0.01)
    assert chat.snapshot().turns[-1].status == TurnStatus.DONE
    assert store.list() == []
    store.may_write.set()
    assert chat.wait(WAIT_S)
    assert [turn["user"] for turn in only_run(store).results["turns"]] == ["one", "two"]
    assert not chat.snapshot().saved.pending


# --- what answered ---------------------------------------------------------------------------------------------------


def test_a_server_of_ours_is_saved_with_weights_settings_and_command(
    fake: FakeOpenAI, store: RunStore, tmp_path: Path
) -> None:
    ours = replace(fakes.READY, endpoint=fake.endpoint(), pid=None, config=ServerConfig(max_num_seqs=7))
    chat = ChatSession(archive=archive(store, tmp_path, ours))
    say(chat, fake)
    run = only_run(store)
    assert run.command == fakes.COMMAND
    assert run.model == fakes.SOURCE.to_dict()
    assert run.config["server"]["max_num_seqs"] == 7
    assert run.results["turns"][0]["weights"] == fakes.SOURCE.detail
    assert run.environment["packages"] and run.environment["summary"]


def test_of_somebody_elses_server_only_the_address_is_known(
    chat: ChatSession, fake: FakeOpenAI, store: RunStore
) -> None:
    say(chat, fake)
    run = only_run(store)
    endpoint = fake.endpoint()
    assert run.config["endpoint"] == {
        "base_url": endpoint.base_url,
        "model": endpoint.model,
        "max_model_len": endpoint.max_model_len,
    }
    assert (run.command, run.config["server"]) == ("", None)
    assert run.model == {"model_id": fake.endpoint().model}


def test_the_key_is_saved_nowhere(fake: FakeOpenAI, store: RunStore, tmp_path: Path) -> None:
    endpoint = replace(fake.endpoint(), api_key="secret-key")
    ready = ServerSnapshot(ServerState.READY, endpoint=endpoint, config=ServerConfig())
    chat = ChatSession(archive=archive(store, tmp_path, ready))
    chat.send(endpoint, "hi")
    assert chat.wait(WAIT_S)
    assert "secret-key" not in run_to_json(only_run(store))


def test_a_conversation_with_two_servers_names_both(fake: FakeOpenAI, store: RunStore, tmp_path: Path) -> None:
    current = replace(fakes.READY, endpoint=fake.endpoint(), pid=None, command="first command")
    chat = ChatSession(archive=ChatArchive(Settings(data_dir=tmp_path), store, lambda: current))
    say(chat, fake)
    other = Endpoint(fake.base_url, "other/model")
    current = replace(current, endpoint=other, command="second command")
    chat.send(other, "again")
    assert chat.wait(WAIT_S)
    run = only_run(store)
    assert run.command == "first command\nsecond command"
    assert [turn["model"] for turn in run.results["turns"]] == [fake.endpoint().model, "other/model"]


# --- out of the lab --------------------------------------------------------------------------------------------------


def test_csv_has_one_line_a_turn_and_no_formula(chat: ChatSession, fake: FakeOpenAI, store: RunStore) -> None:
    say(chat, fake, "=1+1")
    say(chat, fake, 'a "quoted",\nsecond line')
    run = only_run(store)
    rows = list(csv.DictReader(io.StringIO(turns_to_csv(run))))
    assert [row["results.user"] for row in rows] == ["'=1+1", 'a "quoted",\nsecond line']
    assert [row["id"] for row in rows] == [run.id] * 2
    assert float(rows[0]["results.ttft_ms"]) == run.results["turns"][0]["ttft_ms"]
    assert rows[0]["results.options.max_tokens"] == "256"


def test_a_csv_of_all_runs_has_one_line_a_conversation(chat: ChatSession, fake: FakeOpenAI, store: RunStore) -> None:
    say(chat, fake)
    say(chat, fake)
    (row,) = csv.DictReader(io.StringIO(runs_to_csv(store.list())))
    assert row["results.answers"] == "2"
    assert [turn["number"] for turn in json.loads(row["results.turns"])] == [1, 2]


@pytest.mark.parametrize("results", [{}, {"turns": None}, {"turns": "text"}, {"turns": [1, None]}, [], None], ids=str)
def test_csv_of_a_run_without_turns_is_one_line(results: Any) -> None:
    run = Run("x", "chat", "Chat", "done", "2026-12-01T06:40:00+00:00", results=results)
    assert len(list(csv.DictReader(io.StringIO(turns_to_csv(run))))) == 1


@pytest.mark.usefixtures("own_signals")
def test_the_command_line_saves_its_turn(fake: FakeOpenAI, data_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chat", "hello", "--base-url", fake.base_url, "--api-key", "key", "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    run = RunStore(Settings.from_env().database).get(answer["run_id"])
    assert run is not None and run.results["turns"][0]["ttft_ms"] == answer["ttft_ms"]


def test_the_services_save_chats(fake: FakeOpenAI, data_dir: Path) -> None:
    services, _ = open_beside(Settings.from_env())
    try:
        say(services.chats.get("a"), fake)
        assert services.store.summaries(kind="chat")[0].title.startswith("Chat: 1 answer, TTFT ")
    finally:
        services.close()
