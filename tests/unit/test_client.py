"""The light client against a fake server: known timings, and everything that can go wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import pytest

from engine.client import (
    MAX_RESPONSE_BYTES,
    CompletionRequest,
    new_session,
    run_concurrently,
    stream,
)
from engine.config import Endpoint
from engine.endpoint_api import ServedModel, list_models, probe_one_token, tokenize
from engine.errors import ConfigError, LabError, RequestRejected, ServerNotReady
from engine.metrics import RequestTrace, ServerTimings
from tests.fake_openai import DONE, FakeOpenAI, Frame, Script, delta_event, event, text_event, usage_event

CHAT = CompletionRequest(messages=[{"role": "user", "content": "hi"}], max_tokens=10)
PLAIN = CompletionRequest(prompt="hi", max_tokens=10)
TOLERANCE_MS = 5


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        yield fake


@pytest.fixture
def fake(server: FakeOpenAI) -> FakeOpenAI:
    server.script = Script()
    server.script_for = None
    server.sent.clear()
    return server


def ask(fake: FakeOpenAI, request: CompletionRequest = CHAT, **limits: float) -> RequestTrace:
    return run_concurrently(fake.endpoint(), [request], **limits)[0]  # type: ignore[arg-type]


def answer(fake: FakeOpenAI, *frames: bytes, end: str = "close", request: CompletionRequest = CHAT) -> RequestTrace:
    fake.script = Script(frames=[(0.0, data) for data in frames], end=end)
    return ask(fake, request, timeout_s=10)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# --- timings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [CHAT, PLAIN], ids=["chat", "completions"])
def test_ttft_and_tpot_are_recovered(fake: FakeOpenAI, request_: CompletionRequest) -> None:
    fake.script = Script(tokens=12, ttft_s=0.1, gap_s=0.02)
    errors_ttft, errors_tpot = [], []
    for _ in range(5):
        trace = ask(fake, request_)
        sent = fake.sent[-1]
        texts_s = sent.writes_s[-14:-2]  # after the role; before usage and the end mark
        errors_ttft.append(abs(trace.ttft_ms - (texts_s[0] - sent.received_s) * 1000))  # type: ignore[operator]
        errors_tpot.append(abs(trace.tpot_ms - (texts_s[-1] - texts_s[0]) * 1000 / 11))  # type: ignore[operator]
        assert trace.ok and trace.output_tokens == 12 and len(trace.itl_ms) == 11
    assert median(errors_ttft) < TOLERANCE_MS
    assert median(errors_tpot) < TOLERANCE_MS


def test_the_nominal_timings_are_seen(fake: FakeOpenAI) -> None:
    fake.script = Script(tokens=10, ttft_s=0.15, gap_s=0.03)
    traces = [ask(fake) for _ in range(5)]
    assert median(trace.ttft_ms or 0 for trace in traces) == pytest.approx(150, abs=TOLERANCE_MS)
    assert median(trace.tpot_ms or 0 for trace in traces) == pytest.approx(30, abs=TOLERANCE_MS)


def test_a_role_only_chunk_is_not_the_first_token(fake: FakeOpenAI) -> None:
    role = delta_event({"role": "assistant", "content": ""})
    fake.script = Script(
        frames=[(0.0, role), (0.2, text_event("a", finish="stop")), (0.0, usage_event(3, 1)), (0.0, DONE)]
    )
    trace = ask(fake)
    assert trace.ok
    assert trace.ttft_ms is not None and trace.ttft_ms >= 195


def test_e2e_ends_with_text_and_not_with_the_usage_chunk(fake: FakeOpenAI) -> None:
    frames: list[Frame] = [
        (0.0, text_event("a")),
        (0.3, delta_event({}, "stop")),
        (0.3, usage_event(3, 1)),
        (0.0, DONE),
    ]
    fake.script = Script(frames=frames)
    trace = ask(fake)
    assert trace.ok
    assert trace.e2e_ms is not None and trace.ended_s is not None
    assert trace.e2e_ms < 300
    assert (trace.ended_s - trace.sent_s) * 1000 > 590


def test_times_run_forward_and_text_is_passed_on_live(fake: FakeOpenAI) -> None:
    seen: list[tuple[int, str, float]] = []
    traces = run_concurrently(fake.endpoint(), [CHAT, PLAIN], on_text=lambda i, text, t: seen.append((i, text, t)))
    for index, trace in enumerate(traces):
        mine = [(text, t) for i, text, t in seen if i == index]
        assert mine == list(zip(trace.chunk_texts, trace.chunk_times_s, strict=True))
        assert trace.sent_s < trace.chunk_times_s[0]
        assert list(trace.chunk_times_s) == sorted(trace.chunk_times_s)


# --- what counts as text and as tokens -------------------------------------------------------------------------------


def test_tokens_come_from_usage_and_not_from_chunks(fake: FakeOpenAI) -> None:
    trace = answer(fake, text_event("a b c"), text_event(" d", finish="stop"), usage_event(3, 9, cached=2), DONE)
    assert trace.ok
    assert (trace.prompt_tokens, trace.output_tokens, trace.cached_tokens) == (3, 9, 2)
    assert trace.text == "a b c d"


def test_without_usage_tokens_are_unknown(fake: FakeOpenAI) -> None:
    trace = answer(fake, text_event("a"), text_event("b", finish="stop"), DONE)
    assert trace.ok
    assert (trace.prompt_tokens, trace.output_tokens, trace.cached_tokens, trace.tpot_ms) == (None,) * 4


@pytest.mark.parametrize("value", [-1, "7", True, 1.5, {}], ids=str)
def test_nonsense_counts_are_unknown(fake: FakeOpenAI, value: object) -> None:
    trace = answer(
        fake, text_event("a", finish="stop"), event({"choices": [], "usage": {"completion_tokens": value}}), DONE
    )
    assert trace.ok and trace.output_tokens is None


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "x"},
        {"reasoning_content": "x"},
        {"content": None, "reasoning": "x"},
        {"content": "", "reasoning": "x"},
        {"role": "assistant", "content": "x"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]},
        {"tool_calls": [{"index": 0, "function": {"name": "x", "arguments": ""}}]},
    ],
    ids=json.dumps,
)
def test_reasoning_and_tool_text_count(fake: FakeOpenAI, delta: dict[str, object]) -> None:
    trace = answer(fake, delta_event(delta), delta_event({}, "stop"), usage_event(3, 1), DONE)
    assert trace.ok
    assert trace.chunk_texts == ("x",)


@pytest.mark.parametrize(
    "delta",
    [{}, {"content": ""}, {"content": None}, {"tool_calls": []}, {"tool_calls": [None]}, {"content": 3}],
    ids=json.dumps,
)
def test_empty_deltas_do_not_count(fake: FakeOpenAI, delta: dict[str, object]) -> None:
    trace = answer(fake, delta_event(delta), text_event("x"), delta_event(delta, "stop"), usage_event(3, 1), DONE)
    assert trace.ok
    assert trace.chunk_texts == ("x",)


def test_the_finish_chunk_may_carry_text(fake: FakeOpenAI) -> None:
    trace = answer(fake, text_event("a"), text_event("b", finish="length"), usage_event(3, 2), DONE)
    assert (trace.ok, trace.text, trace.finish_reason) == (True, "ab", "length")


def test_null_choices_and_unknown_events_are_passed_over(fake: FakeOpenAI) -> None:
    odd = [
        event({"choices": None}),
        event({"choices": [None]}),
        event({"choices": "x"}),
        b": ping\n\n",
        b"event: x\n\n",
    ]
    trace = answer(fake, *odd, text_event("a", finish="stop"), usage_event(1, 1), DONE)
    assert (trace.ok, trace.text) == (True, "a")


def test_server_timings_ride_on_the_usage_chunk(fake: FakeOpenAI) -> None:
    metrics = {"time_to_first_token_ms": 12.5, "queue_time_ms": 0, "mean_itl_ms": None}
    trace = answer(fake, text_event("a", finish="stop"), usage_event(3, 1, metrics=metrics), DONE)
    assert trace.server == ServerTimings(ttft_ms=12.5, queue_ms=0.0, mean_itl_ms=None)
    assert answer(fake, text_event("a", finish="stop"), usage_event(3, 1), DONE).server is None


# --- bytes -----------------------------------------------------------------------------------------------------------


def test_crlf_lines(fake: FakeOpenAI) -> None:
    frames = [text_event("a"), text_event("b", finish="stop"), usage_event(3, 2), DONE]
    trace = answer(fake, *(frame.replace(b"\n", b"\r\n") for frame in frames))
    assert (trace.ok, trace.text) == (True, "ab")


def test_split_anywhere_even_inside_a_character(fake: FakeOpenAI) -> None:
    whole = json.dumps({"choices": [{"delta": {"content": "é😀"}, "finish_reason": "stop"}]}, ensure_ascii=False)
    data = f"data: {whole}\r\n\r\n".encode() + usage_event(3, 2) + DONE
    fake.script = Script(frames=[(0.0005, data[i : i + 1]) for i in range(len(data))])
    trace = ask(fake)
    assert (trace.ok, trace.text, trace.output_tokens) == (True, "é😀", 2)


def test_many_events_in_one_read(fake: FakeOpenAI) -> None:
    frames = [text_event("a"), text_event("b"), text_event("c", finish="stop"), usage_event(3, 3), DONE]
    trace = answer(fake, b"".join(frames))
    assert (trace.ok, trace.text) == (True, "abc")


def test_data_without_space_on_two_lines_and_without_last_newline(fake: FakeOpenAI) -> None:
    two_lines = b'data:{"choices":[{"text":"a",\ndata:"finish_reason":"stop"}]}\n\n'
    trace = answer(fake, two_lines, b"data:[DONE]", request=PLAIN)
    assert (trace.ok, trace.text) == (True, "a")


# --- answers that don't arrive whole ---------------------------------------------------------------------------------


def test_an_error_event_fails_the_request_although_done_follows(fake: FakeOpenAI) -> None:
    error = event(
        {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}
    )
    trace = answer(fake, text_event("a"), error, DONE)
    assert trace.interrupted and trace.text == "a"
    assert "EngineCore encountered an issue." in str(trace.error)


def test_an_incomplete_transfer_keeps_what_arrived(fake: FakeOpenAI) -> None:
    trace = answer(fake, text_event("a"), text_event("b"), end="cut")
    assert trace.interrupted and trace.text == "ab"
    assert trace.error == "The connection broke before the answer was complete."


def test_cut_before_the_first_event(fake: FakeOpenAI) -> None:
    trace = answer(fake, end="cut")
    assert trace.interrupted and trace.ttft_ms is None


def test_no_done(fake: FakeOpenAI) -> None:
    trace = answer(fake, text_event("a", finish="stop"), usage_event(3, 1))
    assert trace.interrupted
    assert trace.error == "The answer ended before its end mark."


def test_an_engine_that_sends_no_end_mark_ends_with_reason_and_usage(fake: FakeOpenAI) -> None:
    endpoint = replace(fake.endpoint(), engine="transformers")
    for frames, whole in (([text_event("a", finish="stop"), usage_event(3, 1)], True), ([text_event("a")], False)):
        fake.script = Script(frames=[(0.0, data) for data in frames], end="close")
        trace = run_concurrently(endpoint, [CHAT], timeout_s=10)[0]
        assert (trace.failure() is None) == whole


def test_done_without_finish_reason(fake: FakeOpenAI) -> None:
    trace = answer(fake, text_event("a"), usage_event(3, 1), DONE)
    assert trace.interrupted and "finish reason" in str(trace.failure())


def test_finish_reason_abort(fake: FakeOpenAI) -> None:
    assert answer(fake, text_event("a", finish="abort"), usage_event(3, 1), DONE).interrupted


def test_fewer_tokens_than_forced(fake: FakeOpenAI) -> None:
    forced = CompletionRequest(prompt="hi", max_tokens=10, ignore_eos=True)
    fake.script = Script(tokens=4)
    short = ask(fake, forced)
    assert short.interrupted and "4 tokens of the 10" in str(short.failure())
    fake.script = Script(tokens=10)
    assert ask(fake, forced).ok
    fake.script = Script(tokens=4, finish="stop")
    assert ask(fake, PLAIN).ok  # free to stop early


@pytest.mark.parametrize("data", [b"data: {not json\n\n", b"data: [1]\n\n", b"data: 3\n\n", b"data: \xff\xfe\n\n"])
def test_malformed_events(fake: FakeOpenAI, data: bytes) -> None:
    trace = answer(fake, text_event("a"), data, text_event("b", finish="stop"), DONE)
    assert trace.interrupted and trace.text == "a"
    assert str(trace.error).startswith("The server sent an event that isn't")


def test_an_endless_line_is_given_up(fake: FakeOpenAI) -> None:
    trace = answer(fake, text_event("a"), *[b"x" * 300_000] * 4, end="hang")
    assert trace.error == "The server sent one event of more than 1 MiB."


def test_an_endless_answer_is_given_up(fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_RESPONSE_BYTES >= 1 << 20
    monkeypatch.setattr("engine.client.MAX_RESPONSE_BYTES", 5_000)
    trace = answer(fake, *[text_event("a" * 100)] * 40, end="hang")
    assert trace.interrupted and "longer than" in str(trace.error)


def test_a_hanging_stream_is_given_up_when_idle_and_in_total(fake: FakeOpenAI) -> None:
    fake.script = Script(frames=[(0.0, text_event("a"))], end="hang")
    idle = ask(fake, timeout_s=30, idle_timeout_s=0.3)
    total = ask(fake, timeout_s=0.3, idle_timeout_s=30)
    for trace in (idle, total):
        assert trace.interrupted and trace.text == "a"
        assert "given up after" in str(trace.error)


def test_a_dripping_stream_is_ended_by_the_total_timeout(fake: FakeOpenAI) -> None:
    fake.script = Script(tokens=1000, gap_s=0.02)
    trace = ask(fake, timeout_s=0.5, idle_timeout_s=0.4)
    assert trace.interrupted and 1 < len(trace.chunk_texts) < 1000


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "cause", "remedy"),
    [
        (400, b'{"error": {"message": "bad temperature", "code": 400}}', "bad temperature", ""),
        (400, b'{"object": "error", "message": "old style"}', "old style", ""),
        (422, b'{"detail": [{"msg": "field required"}]}', "field required", ""),
        (401, b'{"error": "Unauthorized"}', "Unauthorized", "API key"),
        (404, b'{"error": {"message": "The model `x` does not exist."}}', "does not exist", "model name"),
        (429, b"", "HTTP 429", "too much to do"),
        (500, b"Internal <b>Server</b> Error", "Internal <b>Server</b> Error", "log"),
        (503, b'{"error": {"message": ""}}', "HTTP 503", "loading"),
        (400, b'{"error": {"message": "maximum context length is 10"}}', "maximum context length", "Shorten"),
    ],
)
def test_http_errors(fake: FakeOpenAI, status: int, body: bytes, cause: str, remedy: str) -> None:
    fake.script = Script(status=status, body=body, content_type="application/json")
    trace = ask(fake)
    assert trace.rejected and not trace.interrupted and not trace.ok
    assert trace.status == status
    assert cause in str(trace.error) and f"HTTP {status}" in str(trace.error)
    assert remedy in trace.remedy


def test_a_base_model_without_a_chat_template(fake: FakeOpenAI) -> None:
    message = (
        "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template"
    )
    fake.script = Script(status=400, body=json.dumps({"error": {"message": message}}).encode())
    trace = ask(fake)
    assert "no chat template" in str(trace.error) and "/v1/completions" in trace.remedy


def test_redirects_are_not_followed(fake: FakeOpenAI) -> None:
    fake.script = Script(status=307, body=b"", headers={"Location": "http://elsewhere.test/v1"})
    trace = ask(fake)
    assert trace.rejected and "http://elsewhere.test/v1" in str(trace.error)
    assert len(fake.sent) == 1


def test_a_huge_error_body_is_cut(fake: FakeOpenAI) -> None:
    fake.script = Script(status=500, body=b"x" * 5_000_000)
    assert len(str(ask(fake).error)) < 1000


def test_status_200_with_an_error_object_or_a_web_page(fake: FakeOpenAI) -> None:
    fake.script = Script(body=b'{"error": {"message": "engine dead"}}', content_type="application/json")
    assert "engine dead" in str(ask(fake).error)
    fake.script = Script(body=b"<html>login</html>", content_type="text/html")
    trace = ask(fake)
    assert trace.rejected and trace.error == "The server didn't stream its answer."


def test_nobody_listens() -> None:
    endpoint = Endpoint(f"http://127.0.0.1:{free_port()}/v1", "m")
    (trace,) = run_concurrently(endpoint, [CHAT])
    assert trace.rejected and "No server answers at 127.0.0.1" in str(trace.error)


def test_one_failure_does_not_touch_the_others(fake: FakeOpenAI) -> None:
    bad = Script(status=400, body=b"{}")
    fake.script_for = lambda body: bad if body["max_tokens"] == 3 else Script()
    requests = [CompletionRequest(prompt="a", max_tokens=n) for n in (10, 3, 10)]
    assert [trace.ok for trace in run_concurrently(fake.endpoint(), requests)] == [True, False, True]


# --- many at once, cancelling ----------------------------------------------------------------------------------------


def test_no_pool_caps_the_users() -> None:
    with FakeOpenAI(Script(tokens=2, ttft_s=1.5)) as fake:
        traces = run_concurrently(fake.endpoint(), [PLAIN] * 150)
        assert all(trace.ok for trace in traces)
        assert fake.most_active == 150


def test_nothing_is_retried(fake: FakeOpenAI) -> None:
    answer(fake, end="cut")
    assert len(fake.sent) == 1


def test_cancel_keeps_what_arrived(fake: FakeOpenAI) -> None:
    fake.script_for = lambda body: Script(tokens=2) if body["max_tokens"] == 2 else Script(tokens=10_000)
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    started = time.monotonic()
    requests = [CompletionRequest(prompt="a", max_tokens=n) for n in (2, 100)]
    done, cancelled = run_concurrently(fake.endpoint(), requests, cancel=cancel)
    assert time.monotonic() - started < 5  # the whole answer would take 100 s
    assert done.ok
    assert cancelled.interrupted and cancelled.error == "Cancelled." and cancelled.text.startswith("t0 t1 ")


def test_cancelled_before_it_began(fake: FakeOpenAI) -> None:
    cancel = threading.Event()
    cancel.set()
    (trace,) = run_concurrently(fake.endpoint(), [PLAIN], cancel=cancel)
    assert trace.interrupted


def test_an_error_in_the_callback_is_not_hidden(fake: FakeOpenAI) -> None:
    def broken(index: int, text: str, now_s: float) -> None:
        raise KeyError(text)

    with pytest.raises(KeyError):
        run_concurrently(fake.endpoint(), [PLAIN], on_text=broken)


async def _stream_once(fake: FakeOpenAI) -> RequestTrace:
    async with new_session() as session:
        return await stream(session, fake.endpoint(), PLAIN)


def test_stream_inside_a_loop(fake: FakeOpenAI) -> None:
    assert asyncio.run(_stream_once(fake)).ok


# --- what is sent ----------------------------------------------------------------------------------------------------


def test_bodies(fake: FakeOpenAI) -> None:
    ask(fake, CompletionRequest(prompt=[1, 2, 3], max_tokens=4, ignore_eos=True, seed=1))
    ask(fake, CHAT)
    ids, chat = fake.sent
    assert (ids.path, ids.body["prompt"], ids.body["ignore_eos"]) == ("/v1/completions", [1, 2, 3], True)
    assert ids.body["stream_options"] == {"include_usage": True} and ids.body["seed"] == 1
    assert chat.path == "/v1/chat/completions" and chat.body["messages"] == CHAT.messages
    assert not {"prompt", "ignore_eos", "top_p", "seed"} & set(chat.body)
    assert chat.headers["Authorization"] == "Bearer key"


@pytest.mark.parametrize(
    "values", [{}, {"prompt": ""}, {"prompt": []}, {"messages": []}, {"prompt": "a", "messages": []}]
)
def test_requests_that_cannot_be(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        CompletionRequest(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_max_tokens_must_be_positive(max_tokens: int) -> None:
    with pytest.raises(ConfigError, match="max_tokens"):
        CompletionRequest(prompt="a", max_tokens=max_tokens)


@pytest.mark.parametrize(
    "url", ["", "localhost:8000/v1", "ftp://x/v1", "http:///v1", "http://[::1/v1", "http://h:99999/v1"]
)
def test_addresses_that_cannot_be(url: str) -> None:
    with pytest.raises(ConfigError):
        list_models(url)
    with pytest.raises(ConfigError):
        run_concurrently(Endpoint(url, "m"), [PLAIN])


# --- short exchanges -------------------------------------------------------------------------------------------------


def test_list_models(fake: FakeOpenAI) -> None:
    assert list_models(fake.base_url) == [ServedModel("fake-model", 2048)]


def test_list_models_of_something_else(fake: FakeOpenAI) -> None:
    with pytest.raises(RequestRejected) as caught:
        list_models(fake.base_url.removesuffix("/v1") + "/nothing")
    assert caught.value.status == 404
    with pytest.raises(RequestRejected, match="OpenAI-compatible"):
        list_models(fake.base_url.removesuffix("/v1") + "/health?")
    with pytest.raises(ServerNotReady):
        list_models(f"http://127.0.0.1:{free_port()}/v1")


def test_tokenize(fake: FakeOpenAI) -> None:
    assert tokenize(fake.endpoint(), prompt="a b c") == [0, 1, 2]
    assert len(tokenize(fake.endpoint(), messages=[{"role": "user", "content": "a b"}])) == 6
    with pytest.raises(ConfigError):
        tokenize(fake.endpoint())


def test_probe(fake: FakeOpenAI) -> None:
    probe_one_token(fake.endpoint())
    assert fake.sent[-1].body["max_tokens"] == 1
    fake.script = Script(status=500, body=b'{"error": {"message": "out of resource: shared memory"}}')
    with pytest.raises(RequestRejected, match="shared memory"):
        probe_one_token(fake.endpoint())
    with pytest.raises(ServerNotReady):
        probe_one_token(Endpoint(f"http://127.0.0.1:{free_port()}/v1", "m"))


def test_probe_of_an_engine_that_hangs() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = Endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "m")
        with pytest.raises(ServerNotReady, match=r"within 0\.3 s"):
            probe_one_token(endpoint, timeout_s=0.3)


@pytest.mark.parametrize("key", ["secret\n", "a\x00b", "a\r\nX: y"])
def test_a_key_that_no_header_can_hold_is_a_message(key: str) -> None:
    with FakeOpenAI() as fake:
        with pytest.raises(LabError):
            list_models(fake.base_url, key)
        trace = run_concurrently(replace(fake.endpoint(), api_key=key), [PLAIN])[0]
    assert trace.rejected and trace.error and fake.sent == []


@pytest.mark.parametrize("url", ["http://a..b/v1", "http://" + "x" * 70 + ".de/v1"])
def test_a_host_that_can_not_be_is_a_message(url: str) -> None:
    with pytest.raises(LabError):
        list_models(url)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "NaN", "Infinity"])
def test_timings_that_are_no_numbers_are_unknown(number: str) -> None:
    metrics = b'{"time_to_first_token_ms": ' + number.encode() + b', "queue_time_ms": 2}'
    event = (
        b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}, "metrics": ' + metrics + b"}\n\n"
    )
    frames = [(0.0, text_event("a", chat=False, finish="stop")), (0.0, event), (0.0, DONE)]
    with FakeOpenAI(Script(frames=frames)) as fake:
        server = ask(fake, PLAIN).server
    assert server is not None and (server.ttft_ms, server.queue_ms) == (None, 2.0)
