"""Chat: sending, the numbers beside it, and every way an answer can end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from engine.chat import ChatOptions, ChatSnapshot, SaveState, Turn
from engine.errors import AlreadyRunning, DiskFull, LabError, PromptTooLong, ServerNotReady
from engine.server.state import ServerSnapshot
from engine.telemetry.host import OtherWork
from tests.fake_openai import FakeOpenAI
from tests.ui import fakes
from tests.ui.conftest import OpenPage
from tests.ui.page import (
    HOSTILE,
    assert_no_live_markup,
    errors,
    has_a_lone_zero,
    keys,
    labels,
    links,
    metrics,
    part,
    press,
    said,
    table,
)

UNKNOWN = {"TTFT": "—", "Tokens per second": "—", "TPOT": "—", "Tokens": "—"}


def opened(open_page: OpenPage, chat: ChatSnapshot | None = None) -> tuple[fakes.FakeLab, AppTest]:
    lab = fakes.make_lab(fakes.READY, chat=chat)
    return lab, open_page(lab, "chat")


@pytest.mark.parametrize("server", [fakes.STOPPED, fakes.FAILED])
def test_without_a_server_it_says_where_to_get_one(open_page: OpenPage, server: ServerSnapshot) -> None:
    at = open_page(fakes.make_lab(server), "chat")
    assert not at.exception
    assert "Chat needs a running server." in said(at)
    assert "Start or attach one" in links(at)
    assert at.chat_input(key="chat_input").disabled
    assert metrics(at) == UNKNOWN


def test_a_starting_server_is_to_be_waited_for(open_page: OpenPage) -> None:
    at = open_page(fakes.make_lab(fakes.STARTING), "chat")
    assert "The server is starting. You can chat as soon as it is ready." in said(at)
    assert "See how far it is" in links(at) and "Start or attach one" not in links(at)
    assert at.chat_input(key="chat_input").disabled
    assert at.chat_input(key="chat_input").placeholder == "The server is starting"


@pytest.mark.parametrize("server", [fakes.READY, fakes.ATTACHED])
def test_with_a_server_a_message_is_sent(open_page: OpenPage, server: ServerSnapshot) -> None:
    lab = fakes.make_lab(server)
    at = open_page(lab, "chat")
    at.chat_input(key="chat_input").set_value("Hello **you**").run()
    assert not at.exception and not at.error
    assert lab.chats.session.made == [("send", ("Hello **you**", ChatOptions()))]


def test_the_settings_go_with_the_message(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    at.text_area(key="chat_system").set_value("Be brief.")
    at.slider(key="chat_temperature").set_value(0.0)
    at.slider(key="chat_top_p").set_value(0.5)
    at.number_input(key="chat_max_tokens").set_value(10)
    at.chat_input(key="chat_input").set_value("Hello").run()
    assert lab.chats.session.made == [("send", ("Hello", ChatOptions("Be brief.", 0.0, 0.5, 10)))]


@pytest.mark.parametrize(
    "error",
    [
        PromptTooLong(f"The prompt has 3,000 tokens. {HOSTILE}", "Shorten the message."),
        ServerNotReady("http://127.0.0.1:1/v1 can't be reached.", "Start it on the Server page."),
        AlreadyRunning("An answer is arriving.", "Stop it first."),
    ],
)
def test_a_message_that_cannot_be_sent_is_a_message_with_a_remedy(open_page: OpenPage, error: LabError) -> None:
    lab, at = opened(open_page)
    lab.chats.session.error = error
    at.chat_input(key="chat_input").set_value("Hello").run()
    assert not at.exception
    assert error.cause in errors(at)[0] and error.remedy in errors(at)[0]
    assert_no_live_markup(at)


def test_empty_chat_has_nothing_to_clear_or_stop_and_no_numbers(open_page: OpenPage) -> None:
    _, at = opened(open_page)
    assert not at.exception
    assert "Ask something." in part(at, "chat_turns")
    assert not {"New chat", "Stop"} & labels(at)
    assert metrics(at) == UNKNOWN
    panel = part(at, "chat_numbers")
    assert "— of 2,048 tokens" in panel
    assert not has_a_lone_zero(panel)
    assert "chat_gaps" not in keys(at) and not table(at)


def test_waiting_for_the_first_token_shows_no_number(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.CHAT_WAITING)
    assert "Waiting for the first token" in part(at, "chat_turns")
    assert metrics(at) == UNKNOWN


def test_streaming_shows_what_arrived_and_its_numbers_so_far(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.CHAT_STREAMING)
    assert not at.exception
    assert "Because air" in part(at, "chat_turns")
    assert metrics(at) == {"TTFT": "50.0 ms", "Tokens per second": "100", "TPOT": "10.0 ms", "Tokens": "3"}
    assert "43 of 2,048 tokens" in part(at, "chat_numbers")
    assert at.chat_input(key="chat_input").disabled
    assert "chat_gaps" in keys(at)


def test_stop_stops_the_answer(open_page: OpenPage) -> None:
    lab, at = opened(open_page, fakes.CHAT_STREAMING)
    press(at, "Stop")
    assert not at.exception
    assert lab.chats.session.made == [("stop", None)]


def test_done_shows_times_beside_the_servers_own(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.CHAT_DONE)
    assert not at.exception and not at.warning
    assert [message.name for message in at.chat_message] == ["user", "assistant"]
    assert metrics(at) == {"TTFT": "50.0 ms", "Tokens per second": "75", "TPOT": "13.3 ms", "Tokens": "4"}
    assert "44 of 2,048 tokens" in part(at, "chat_numbers")
    assert "32 of 40 tokens" in part(at, "chat_numbers")
    for cell in ("50.0 ms", "13.3 ms", "41.0 ms", "1.5 ms", "13.0 ms"):
        assert cell in table(at)
    assert "the server counts from scheduling it" in said(at)
    assert not at.chat_input(key="chat_input").disabled


def test_a_new_chat_leaves_the_conversation(open_page: OpenPage) -> None:
    lab, at = opened(open_page, fakes.CHAT_DONE)
    press(at, "New chat")
    assert not at.exception
    assert lab.chats.session.made == [("clear", None)]


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        (fakes.CHAT_STOPPED, "Stopped by you. What had arrived is kept."),
        (fakes.CHAT_INTERRUPTED, "Interrupted: the answer did not arrive whole. What had arrived is kept."),
        (fakes.CHAT_INTERRUPTED, "The connection broke."),
        (fakes.CHAT_FAILED, "No answer. The server refused it."),
    ],
)
def test_an_answer_that_is_not_whole_says_why(open_page: OpenPage, chat: ChatSnapshot, words: str) -> None:
    _, at = opened(open_page, chat)
    assert not at.exception
    assert words in part(at, "chat_turns")
    assert "New chat" in labels(at) and "Stop" not in labels(at)


def test_what_arrived_of_an_interrupted_answer_is_kept(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.CHAT_INTERRUPTED)
    assert "Because" in [text.value for text in at.text]


def test_no_answer_has_no_numbers(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.CHAT_FAILED)
    assert metrics(at) == UNKNOWN


def test_what_a_server_does_not_count_is_a_dash(open_page: OpenPage) -> None:
    trace = replace(fakes.TRACE, prompt_tokens=None, output_tokens=None, cached_tokens=None, server=None)
    turn = replace(fakes.ANSWER, trace=trace, context_used=None, tokens_so_far=None)
    _, at = opened(open_page, ChatSnapshot((fakes.QUESTION, turn)))
    assert metrics(at) == UNKNOWN | {"TTFT": "50.0 ms"}
    assert "— of — tokens" in part(at, "chat_numbers")
    assert table(at).split("Server's own")[1].split() == ["—"] * 3
    html = "\n".join(node.proto.body for node in at.get_by_key("chat_numbers") if node.type == "html")
    assert " 0 " not in html


def test_markup_in_a_turn_is_text(open_page: OpenPage) -> None:
    answer = replace(fakes.ANSWER, text=HOSTILE, reasoning=f"Hm {HOSTILE}")
    failed = replace(fakes.CHAT_FAILED.turns[1], error=HOSTILE)
    _, at = opened(open_page, ChatSnapshot((Turn("user", HOSTILE), answer, failed)))
    assert not at.exception
    assert [text.value for text in at.text] == [HOSTILE, f"Hm {HOSTILE}", HOSTILE]
    assert f"No answer. {HOSTILE}" in part(at, "chat_turns")
    assert_no_live_markup(at)


def test_cache_use_is_the_servers_own_number(open_page: OpenPage) -> None:
    with FakeOpenAI() as server:
        server.metrics_text = 'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
        at = open_page(fakes.make_lab(replace(fakes.READY, endpoint=server.endpoint())), "chat")
    assert not at.exception
    assert "25%" in part(at, "chat_numbers")


def test_the_conversation_in_the_address_is_opened(open_page: OpenPage) -> None:
    lab = fakes.make_lab(fakes.READY)
    at = open_page(lab, "chat", chat="shared-id")
    assert lab.chats.ids == ["shared-id"]
    assert at.query_params["chat"] == "shared-id"


def test_a_new_conversation_gets_an_address_of_its_own_and_keeps_it(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    first = at.query_params["chat"]
    at.run()
    assert at.query_params["chat"] == first
    assert set(lab.chats.ids) == {first}
    opened_again = open_page(lab, "chat")
    assert opened_again.query_params["chat"] != first


@pytest.mark.parametrize("name", ["", "<script>", "../../etc", "é" * 300])
def test_any_text_may_be_the_conversation_in_the_address(open_page: OpenPage, name: str) -> None:
    at = open_page(fakes.make_lab(fakes.READY), "chat", chat=name)
    assert not at.exception
    assert_no_live_markup(at)


def test_a_saved_conversation_leads_to_its_run(open_page: OpenPage) -> None:
    _, at = opened(open_page, replace(fakes.CHAT_DONE, saved=SaveState("20261201-064000-abcdef")))
    assert not at.exception and not at.warning
    (link,) = [link for link in at.page_link if link.label == "Saved"]
    assert "20261201-064000-abcdef" in str(link.proto)


def test_an_unsaved_conversation_leads_nowhere(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.CHAT_DONE)
    assert "Saved" not in links(at)


def test_a_store_that_fails_is_a_notice_beside_the_answer(open_page: OpenPage) -> None:
    failed = SaveState(error=DiskFull(f"No room on the disk. {HOSTILE}", "Free some space."))
    _, at = opened(open_page, replace(fakes.CHAT_DONE, saved=failed))
    assert not at.exception
    assert fakes.ANSWER.text in [text.value for text in at.text]
    for words in ("aren't saved", "No room on the disk.", "Free some space."):
        assert words in part(at, "chat_not_saved")
    assert_no_live_markup(at)


@pytest.mark.parametrize(("busy_cores", "told"), [(0.4, False), (0.9, True)])
def test_other_programs_on_the_cores_are_told_beside_the_numbers(
    open_page: OpenPage, busy_cores: float, told: bool
) -> None:
    turn = replace(fakes.ANSWER, others=OtherWork(busy_cores, 2))
    _, at = opened(open_page, ChatSnapshot((fakes.QUESTION, turn)))
    assert not at.exception
    assert ("kept 0.9 of 2 cores busy" in part(at, "chat_numbers")) is told
