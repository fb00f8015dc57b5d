"""Chat: what is refused before sending, what is kept whatever happens, and what is sent."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from engine.chat import ChatOptions, ChatRegistry, ChatSession, Turn, TurnStatus
from engine.config import Endpoint
from engine.errors import AlreadyRunning, ConfigError, PromptTooLong, RequestRejected, ServerNotReady
from tests.fake_openai import DONE, FakeOpenAI, Script, delta_event, event, text_event, usage_event

WAIT_S = 20.0


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        yield fake


@pytest.fixture
def fake(server: FakeOpenAI) -> FakeOpenAI:
    server.script = Script()
    server.sent.clear()
    server.has_tokenize = True
    server.tokenize_error = None
    server.max_model_len = 2048
    return server


@pytest.fixture
def chat() -> Iterator[ChatSession]:
    session = ChatSession()
    yield session
    session.stop()
    assert session.wait(WAIT_S)


def say(chat: ChatSession, fake: FakeOpenAI, text: str = "hello", options: ChatOptions | None = None) -> Turn:
    chat.send(fake.endpoint(), text, options)
    assert chat.wait(WAIT_S)
    return chat.snapshot().turns[-1]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def test_an_answer_with_its_numbers(chat: ChatSession, fake: FakeOpenAI) -> None:
    fake.script = Script(tokens=5, ttft_s=0.1, gap_s=0.02)
    turn = say(chat, fake)
    assert (turn.role, turn.text, turn.status, turn.error) == ("assistant", "t0 t1 t2 t3 t4 ", TurnStatus.DONE, None)
    assert turn.trace is not None and turn.trace.ok
    assert (turn.tokens_so_far, turn.context_used, len(turn.gaps_ms)) == (5, 12, 4)
    assert turn.ttft_ms is not None and turn.elapsed_s is not None
    assert 95 < turn.ttft_ms < turn.elapsed_s * 1000
    snapshot = chat.snapshot()
    assert [t.role for t in snapshot.turns] == ["user", "assistant"]
    assert not snapshot.streaming and snapshot.error is None


def test_timings_are_those_of_the_fake(chat: ChatSession, fake: FakeOpenAI) -> None:
    """The SDK costs more per token than the light client, so only a coarse check; agreement is measured apart."""
    fake.script = Script(tokens=10, ttft_s=0.15, gap_s=0.03)
    say(chat, fake)  # the SDK is imported
    trace = say(chat, fake).trace
    assert trace is not None
    assert trace.ttft_ms == pytest.approx(150, abs=60)
    assert trace.tpot_ms == pytest.approx(30, abs=5)


def test_text_can_be_read_while_it_streams_and_stop_keeps_it(chat: ChatSession, fake: FakeOpenAI) -> None:
    usage = {"usage": {"prompt_tokens": 6, "completion_tokens": 1}}
    fake.script = Script(frames=[(0.0, text_event("Once", **usage))], end="hang")
    chat.send(fake.endpoint(), "tell")
    until(lambda: chat.snapshot().turns[-1].text == "Once")
    live = chat.snapshot()
    turn = live.turns[-1]
    assert live.streaming and turn.status == TurnStatus.STREAMING
    assert (turn.tokens_so_far, turn.context_used) == (1, 7)
    assert turn.ttft_ms is not None and turn.elapsed_s is not None
    chat.stop()
    assert chat.wait(WAIT_S)
    turn = chat.snapshot().turns[-1]
    assert (turn.text, turn.status, turn.error, turn.tokens_so_far) == ("Once", TurnStatus.STOPPED, None, 1)


def test_stop_before_the_first_word(chat: ChatSession, fake: FakeOpenAI) -> None:
    fake.script = Script(frames=[], end="hang")
    chat.send(fake.endpoint(), "tell")
    chat.stop()
    assert chat.wait(WAIT_S)
    assert chat.snapshot().turns[-1].status == TurnStatus.STOPPED
    fake.script = Script()
    assert say(chat, fake).status == TurnStatus.DONE


def test_stop_when_nothing_runs(chat: ChatSession, fake: FakeOpenAI) -> None:
    chat.stop()
    assert say(chat, fake).status == TurnStatus.DONE


ERROR = event({"error": {"message": "EngineCore encountered an issue.", "code": 500}})


@pytest.mark.parametrize(
    ("frames", "end"),
    [
        ([text_event("par"), text_event("tial")], "cut"),
        ([text_event("par"), text_event("tial"), ERROR, DONE], "close"),
        ([text_event("par"), text_event("tial"), usage_event(3, 2), DONE], "close"),
        ([text_event("par"), text_event("tial", finish="abort"), usage_event(3, 2), DONE], "close"),
        ([text_event("par"), text_event("tial"), b"data: {not json\n\n"], "close"),
    ],
    ids=["cut", "error event", "no finish reason", "abort", "malformed"],
)
def test_a_server_that_dies_leaves_the_partial_answer(
    chat: ChatSession, fake: FakeOpenAI, frames: list[bytes], end: str
) -> None:
    fake.script = Script(frames=[(0.0, frame) for frame in frames], end=end)
    turn = say(chat, fake)
    assert (turn.text, turn.status) == ("partial", TurnStatus.INTERRUPTED)
    assert turn.trace is not None and turn.trace.interrupted and not turn.trace.rejected
    assert turn.error and chat.snapshot().error == turn.error


def test_the_history_that_is_sent(chat: ChatSession, fake: FakeOpenAI) -> None:
    say(chat, fake, "one", ChatOptions(system="Be kind."))
    fake.script = Script(status=500, body=b"broken")
    assert say(chat, fake, "lost").status == TurnStatus.FAILED
    fake.script = Script(frames=[(0.0, text_event("half"))], end="cut")
    say(chat, fake, "two")
    fake.script = Script()
    say(chat, fake, "three", ChatOptions(system="Be kind.", temperature=0.2, top_p=0.5, max_tokens=9))
    body = fake.sent[-1].body
    assert [(m["role"], m["content"].strip()) for m in body["messages"]] == [
        ("system", "Be kind."),
        ("user", "one"),
        ("assistant", " ".join(f"t{i}" for i in range(10))),
        ("user", "two"),
        ("assistant", "half"),
        ("user", "three"),
    ]
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.2, 0.5, 9)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert fake.sent[-1].headers["Authorization"] == "Bearer key"
    assert len(chat.snapshot().turns) == 8


def test_reasoning_is_shown_apart_and_not_sent_back(chat: ChatSession, fake: FakeOpenAI) -> None:
    frames = [delta_event({"reasoning": "hm"}), text_event("yes", finish="stop"), usage_event(3, 2), DONE]
    fake.script = Script(frames=[(0.0, frame) for frame in frames])
    turn = say(chat, fake)
    assert (turn.text, turn.reasoning) == ("yes", "hm")
    assert turn.trace is not None and turn.trace.chunk_texts == ("hm", "yes")
    fake.script = Script()
    say(chat, fake)
    assert "hm" not in json.dumps(fake.sent[-1].body)


def test_cached_tokens_and_server_timings(chat: ChatSession, fake: FakeOpenAI) -> None:
    metrics = {"time_to_first_token_ms": 12.5, "queue_time_ms": 0.5, "mean_itl_ms": 3}
    frames = [text_event("a", finish="stop"), usage_event(9, 1, cached=8, metrics=metrics), DONE]
    fake.script = Script(frames=[(0.0, frame) for frame in frames])
    trace = say(chat, fake).trace
    assert trace is not None and trace.cached_tokens == 8
    assert trace.server is not None and (trace.server.ttft_ms, trace.server.queue_ms) == (12.5, 0.5)


# --- refused before sending ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_message(chat: ChatSession, fake: FakeOpenAI, text: str) -> None:
    with pytest.raises(ConfigError, match="empty"):
        chat.send(fake.endpoint(), text)
    assert chat.snapshot().turns == () and not fake.sent


def test_too_long_says_how_long(chat: ChatSession, fake: FakeOpenAI) -> None:
    fake.max_model_len = 64
    with pytest.raises(PromptTooLong) as caught:
        chat.send(fake.endpoint(), "word " * 40, ChatOptions(max_tokens=30))
    assert "44 tokens" in caught.value.cause and "64" in caught.value.cause
    assert "max_tokens to 20" in caught.value.remedy
    assert chat.snapshot().turns == () and not fake.sent
    assert say(chat, fake, "word " * 40, ChatOptions(max_tokens=20)).status == TurnStatus.DONE


def test_a_prompt_longer_than_the_context(chat: ChatSession, fake: FakeOpenAI) -> None:
    fake.max_model_len = 64
    with pytest.raises(PromptTooLong) as caught:
        chat.send(fake.endpoint(), "word " * 100, ChatOptions(max_tokens=1))
    assert "max_tokens to" not in caught.value.remedy


def test_huge_max_tokens(chat: ChatSession, fake: FakeOpenAI) -> None:
    with pytest.raises(ConfigError, match=r"max_tokens \(5000\).*at most 2043"):
        chat.send(fake.endpoint(), "hello", ChatOptions(max_tokens=5000))
    assert not fake.sent


def test_history_counts(chat: ChatSession, fake: FakeOpenAI) -> None:
    fake.max_model_len = 64
    options = ChatOptions(max_tokens=20)
    say(chat, fake, "word " * 20, options)
    with pytest.raises(PromptTooLong):
        chat.send(fake.endpoint(), "word " * 20, options)
    chat.clear()
    assert say(chat, fake, "word " * 20, options).status == TurnStatus.DONE


@pytest.mark.parametrize(
    "values",
    [{"max_tokens": 0}, {"max_tokens": 10**9}, {"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}],
    ids=str,
)
def test_settings_that_cannot_be(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        ChatOptions(**values)  # type: ignore[arg-type]


def test_one_answer_at_a_time(chat: ChatSession, fake: FakeOpenAI) -> None:
    fake.script = Script(frames=[], end="hang")
    chat.send(fake.endpoint(), "first")
    with pytest.raises(AlreadyRunning):
        chat.send(fake.endpoint(), "second")
    assert [turn.text for turn in chat.snapshot().turns] == ["first", ""]


def test_two_people_pressing_send_at_once(chat: ChatSession, fake: FakeOpenAI) -> None:
    fake.script = Script(frames=[], end="hang")
    outcomes: list[str] = []
    together = threading.Barrier(8)

    def press() -> None:
        together.wait()
        try:
            chat.send(fake.endpoint(), "hi")
            outcomes.append("sent")
        except AlreadyRunning:
            outcomes.append("refused")

    threads = [threading.Thread(target=press) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 7 + ["sent"]


def test_nobody_listens(chat: ChatSession) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with pytest.raises(ServerNotReady):
        chat.send(Endpoint(f"http://127.0.0.1:{port}/v1", "m"), "hi")
    assert chat.snapshot() == ChatSession().snapshot()


TEMPLATE = json.dumps(
    {"error": {"message": "As of transformers v4.44, default chat template is no longer allowed, so you must …"}}
).encode()


def test_a_base_model_is_refused_with_a_way_out(chat: ChatSession, fake: FakeOpenAI) -> None:
    fake.tokenize_error = (400, TEMPLATE)
    with pytest.raises(RequestRejected, match=r"no chat template.*/v1/completions"):
        chat.send(fake.endpoint(), "hi")
    assert not fake.sent


def test_a_base_model_without_tokenize(chat: ChatSession, fake: FakeOpenAI) -> None:
    fake.has_tokenize = False
    fake.script = Script(status=400, body=TEMPLATE)
    turn = say(chat, fake)
    assert turn.status == TurnStatus.FAILED and "no chat template" in str(turn.error)


def test_a_server_that_cannot_count(chat: ChatSession, fake: FakeOpenAI) -> None:
    fake.has_tokenize = False
    fake.max_model_len = None
    turn = say(chat, fake, "hi", ChatOptions(max_tokens=5000))
    assert turn.status == TurnStatus.DONE
    assert fake.sent[-1].body["stream_options"] == {"include_usage": True}  # no vLLM extension


@pytest.mark.parametrize(
    ("script", "part"),
    [
        (Script(status=400, body=b'{"error": {"message": "bad top_p"}}'), "bad top_p"),
        (Script(status=401, body=b'{"error": "Unauthorized"}'), "API key"),
        (Script(status=503, body=b""), "HTTP 503"),
        (Script(status=307, body=b"", headers={"Location": "http://elsewhere.test/"}), "HTTP 307"),
        (Script(frames=[(0.0, ERROR)]), "EngineCore"),
        (Script(frames=[], end="cut"), "broke"),
    ],
    ids=["400", "401", "503", "redirect", "error event", "cut"],
)
def test_failures_before_any_text(chat: ChatSession, fake: FakeOpenAI, script: Script, part: str) -> None:
    fake.script = script
    turn = say(chat, fake)
    assert turn.status == TurnStatus.FAILED and part in str(turn.error)
    assert len(fake.sent) == 1  # nothing is retried
    fake.script = Script()
    assert say(chat, fake).status == TurnStatus.DONE


# --- sessions --------------------------------------------------------------------------------------------------------


def test_clear_stops_the_answer(chat: ChatSession, fake: FakeOpenAI) -> None:
    fake.script = Script(frames=[(0.0, text_event("Once"))], end="hang")
    chat.send(fake.endpoint(), "tell")
    chat.clear()
    snapshot = chat.snapshot()
    assert snapshot.turns == () and not snapshot.streaming


def test_the_registry_keeps_a_conversation_and_drops_the_oldest(fake: FakeOpenAI) -> None:
    registry = ChatRegistry(max_sessions=2)
    first = registry.get("a")
    say(first, fake)
    second = registry.get("b")
    assert registry.get("a") is first
    registry.get("c")
    assert registry.get("a") is first
    assert registry.get("b") is not second


def test_closing_the_registry_stops_answers(fake: FakeOpenAI) -> None:
    registry = ChatRegistry()
    chat = registry.get("a")
    fake.script = Script(frames=[(0.0, text_event("Once"))], end="hang")
    chat.send(fake.endpoint(), "tell")
    registry.close()
    assert chat.snapshot().turns[-1].status == TurnStatus.STOPPED


def test_a_turn_can_be_refused_before_it_begins() -> None:
    def refuse() -> None:
        raise AlreadyRunning("A comparison is being measured.", "Wait.")

    registry = ChatRegistry(before_turn=refuse)
    with FakeOpenAI() as fake, pytest.raises(AlreadyRunning, match="measured"):
        registry.get("a").send(fake.endpoint(), "hi")
    assert fake.sent == [] and registry.get("a").snapshot().turns == ()
    assert not registry.streaming()


def test_the_registry_knows_whether_anybody_is_being_answered() -> None:
    registry = ChatRegistry()
    with FakeOpenAI(Script(tokens=3, end="hang")) as fake:
        registry.get("a").send(fake.endpoint(), "hi")
        assert registry.streaming()
        registry.close()
        assert not registry.streaming()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}], "Hello"),
        (7, ""),
        ({"text": "x"}, ""),
        ([1, {"text": 2}], ""),
    ],
)
def test_content_of_another_shape_wedges_nothing(content: object, text: str) -> None:
    frames = [(0.0, delta_event({"content": content})), (0.0, delta_event({"content": "!"}, finish="stop"))]
    registry = ChatRegistry()
    with FakeOpenAI(Script(frames=[*frames, (0.0, usage_event(3, 2)), (0.0, DONE)])) as fake:
        session = registry.get("a")
        session.send(fake.endpoint(), "hi")
        assert session.wait(30)
    answer = session.snapshot().turns[-1]
    assert answer.text == text + "!" and not registry.streaming()


def test_bytes_that_are_no_text_are_sent_as_replacement_characters(chat: ChatSession, fake: FakeOpenAI) -> None:
    turn = say(chat, fake, "a\udcff", ChatOptions(system="b\udcfe"))  # as a terminal's \xff comes from sys.argv
    assert turn.status == TurnStatus.DONE
    assert [message["content"] for message in fake.sent[-1].body["messages"]] == ["b\ufffd", "a\ufffd"]
    assert chat.snapshot().turns[0].text == "a\ufffd"


def test_a_character_cut_in_two_is_whole_and_half_of_one_can_be_shown() -> None:
    pieces = ["a ", "\ud83d", "\ude00", " b", "\ud83d"]
    frames = [(0.0, delta_event({"content": piece})) for piece in pieces]
    frames += [(0.0, delta_event({}, finish="stop")), (0.0, usage_event(3, 5)), (0.0, DONE)]
    session = ChatSession()
    with FakeOpenAI(Script(frames=frames)) as fake:
        session.send(fake.endpoint(), "hi")
        assert session.wait(30)
    answer = session.snapshot().turns[-1]
    assert answer.text == "a \U0001f600 b\ufffd"
    assert answer.trace is not None and answer.trace.text == answer.text
