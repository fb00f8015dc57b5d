"""Home: the headline, the check of the machine, a start and a quick generation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.compare_results import CompareResults, EngineResult
from engine.errors import AlreadyRunning, StoreError
from engine.server.state import ServerSnapshot, ServerState
from tests.fake_openai import DONE, FakeOpenAI, Script, text_event
from tests.ui import fakes
from tests.ui.conftest import OpenPage
from tests.ui.page import HOSTILE, assert_no_live_markup, errors, labels, links, said

START, QUICK = "Start the server", "Generate 16 tokens now"


@pytest.mark.parametrize(
    ("server", "line", "buttons"),
    [
        (fakes.STOPPED, "stopped  Start it.", {START}),
        (fakes.STARTING, "Wait until it is ready.", set()),
        (fakes.READY, "answered a first token after 26 s", {QUICK}),
        (fakes.FAILED, "The KV cache is too small for one request of the full length.", {START}),
        (fakes.ATTACHED, "attached to http://127.0.0.1:9/v1", {QUICK}),
    ],
)
def test_server_line_and_buttons_fit_the_state(
    open_page: OpenPage, server: ServerSnapshot, line: str, buttons: set[str]
) -> None:
    at = open_page(fakes.make_lab(server))
    assert not at.exception
    assert line in said(at)
    assert labels(at) == buttons


def test_machine_check_lists_hardware_and_says_what_is_missing(open_page: OpenPage) -> None:
    lab = fakes.make_lab()
    lab.environment = replace(lab.environment, packages={**lab.environment.packages, "torch": None})
    words = said(open_page(lab))
    assert "Intel(R) Xeon(R) Processor @ 2.80GHz, AVX-512" in words
    assert "torch  not installed  Run make setup." in words


def test_what_needs_attention_comes_first(open_page: OpenPage) -> None:
    lab = fakes.make_lab(fakes.READY)
    lab.environment = replace(lab.environment, packages={**lab.environment.packages, "torch": None})
    words = said(open_page(lab))
    assert words.index("torch  not installed") < words.index("Python  3.11.9")


def test_failed_server_without_a_diagnosis_says_its_message(open_page: OpenPage) -> None:
    at = open_page(fakes.make_lab(ServerSnapshot(state=ServerState.FAILED, message=f"It died. {HOSTILE}")))
    assert f"It died. {HOSTILE}" in said(at)
    assert_no_live_markup(at)


def test_nothing_measured_offers_the_comparison_and_shows_no_number(open_page: OpenPage) -> None:
    at = open_page(fakes.make_lab())
    assert "Nothing is measured yet." in said(at)
    assert "×" not in said(at)
    assert links(at) >= {"Measure HF against vLLM", "Race HF against vLLM", "Chat and watch", "Turn the knobs"}


def test_last_comparison_is_the_headline_with_when_and_where(open_page: OpenPage) -> None:
    at = open_page(fakes.make_lab(runs=[fakes.saved_run()]))
    words = said(at)
    assert not at.exception
    assert "3.1×" in words
    assert "Measured on this machine" in words
    assert "1 Dec 2026, 06:40 UTC" in words
    assert "102 tok/s" in words and "33 tok/s" in words
    assert "Measure it again" in links(at)


def test_a_result_of_another_machine_is_not_said_to_be_of_this_one(open_page: OpenPage) -> None:
    run = fakes.saved_run(environment={"summary": "Tesla T4 · vLLM 0.32.0"})
    words = said(open_page(fakes.make_lab(runs=[run])))
    assert "Last measured" in words and "Tesla T4 · vLLM 0.32.0" in words
    assert "Measured on this machine" not in words


def test_headline_skips_runs_without_a_ratio(open_page: OpenPage) -> None:
    only_vllm = CompareResults(engines={"vllm": EngineResult(throughput_tok_s=500.0)}).to_dict()
    runs = [
        fakes.saved_run("5", status="cancelled"),
        fakes.saved_run("4", results=only_vllm),
        fakes.saved_run("3", results={"engines": {"hf": {"throughput_tok_s": "fast"}, "vllm": {}}}),
        fakes.saved_run("2", results={"engines": [1]}),
    ]
    at = open_page(fakes.make_lab(runs=runs))
    assert not at.exception
    assert "Nothing is measured yet." in said(at)
    assert "3.1×" in said(open_page(fakes.make_lab(runs=[*runs, fakes.saved_run("1")])))


def test_start_starts_the_server(open_page: OpenPage) -> None:
    lab = fakes.make_lab()
    at = open_page(lab).button(key="home_start").click().run()
    assert not at.exception and not at.error
    assert lab.supervisor.made == [("start", None)]


def test_start_uses_the_last_configuration(open_page: OpenPage) -> None:
    lab = fakes.make_lab(fakes.FAILED)
    open_page(lab).button(key="home_start").click().run()
    assert lab.supervisor.made == [("start", fakes.FAILED.config)]


def test_start_is_off_with_the_reason_while_the_server_is_reserved(open_page: OpenPage) -> None:
    at = open_page(fakes.make_lab(fakes.STOPPED_RESERVED))
    start = at.button(key="home_start")
    assert start.disabled and fakes.MEASURING[:-1] in start.help


def test_a_lost_server_of_somebody_else_is_not_started(open_page: OpenPage) -> None:
    lost = replace(fakes.ATTACHED, state=ServerState.FAILED, message="It can't be reached.")
    at = open_page(fakes.make_lab(lost))
    assert not at.exception
    assert "It can't be reached." in said(at) and "attached to" not in said(at)
    assert labels(at) == set()


def test_memory_is_that_of_now_and_not_of_the_start(open_page: OpenPage) -> None:
    lab = fakes.make_lab()
    lab.machine = replace(lab.environment.hardware, ram_available_bytes=1024**3)
    assert "Memory free  1.0 GiB  Close other programs: 3 GiB are needed." in said(open_page(lab))


def test_memory_that_the_running_server_has_taken_is_not_missing(open_page: OpenPage) -> None:
    lab = fakes.make_lab(fakes.READY)
    lab.machine = replace(lab.environment.hardware, ram_available_bytes=1024**3)
    words = said(open_page(lab))
    assert "1.0 GiB, with the server running" in words and "Close other programs" not in words


def test_a_database_that_cannot_be_read_is_a_message(open_page: OpenPage) -> None:
    lab = fakes.make_lab()
    lab.store.broken = StoreError(f"It is locked. {HOSTILE}", "Close the other program.")
    at = open_page(lab)
    assert not at.exception
    assert "It is locked." in errors(at)[0] and "Close the other program." in errors(at)[0]
    assert "Is this machine ready?" in said(at)
    assert_no_live_markup(at)


def test_start_that_is_refused_is_a_message(open_page: OpenPage) -> None:
    lab = fakes.make_lab()
    lab.supervisor.error = AlreadyRunning(f"The server is starting. {HOSTILE}", "There is only one at a time.")
    at = open_page(lab).button(key="home_start").click().run()
    assert not at.exception
    assert len(errors(at)) == 1
    assert "The server is starting." in errors(at)[0] and "There is only one at a time." in errors(at)[0]
    assert_no_live_markup(at)


def test_quick_generation_waits_for_a_comparison(open_page: OpenPage) -> None:
    at = open_page(fakes.make_lab(fakes.READY_RESERVED, compare=fakes.RUNNING))
    assert at.button(key="home_quick").disabled
    assert fakes.MEASURING in said(at)


def test_quick_generation_shows_the_answer_and_its_times(open_page: OpenPage) -> None:
    with FakeOpenAI(Script(tokens=16, ttft_s=0, gap_s=0)) as server:
        lab = fakes.make_lab(replace(fakes.READY, endpoint=server.endpoint()))
        at = open_page(lab).button(key="home_quick").click().run()
        sent = server.sent[0].body
    assert not at.exception and not at.error
    assert sent["max_tokens"] == 16
    assert "16 tokens in" in said(at)
    assert "The capital of France ist0 t1" in said(at)


def test_quick_generation_counts_no_tokens_where_the_server_does_not(open_page: OpenPage) -> None:
    frames = [(0.0, text_event(HOSTILE, chat=False, finish="length")), (0.0, DONE)]
    with FakeOpenAI(Script(frames=frames)) as server:
        lab = fakes.make_lab(replace(fakes.READY, endpoint=server.endpoint()))
        at = open_page(lab).button(key="home_quick").click().run()
    assert not at.exception and not at.error
    assert "— tokens in" in said(at)
    assert HOSTILE in said(at)
    assert_no_live_markup(at)


def test_quick_generation_that_is_refused_is_a_message(open_page: OpenPage) -> None:
    refusal = Script(status=500, body=b'{"error": {"message": "the engine died"}}', content_type="application/json")
    with FakeOpenAI(refusal) as server:
        lab = fakes.make_lab(replace(fakes.READY, endpoint=server.endpoint()))
        at = open_page(lab).button(key="home_quick").click().run()
    assert not at.exception and not at.success
    assert "the engine died" in errors(at)[0]


def test_quick_generation_without_a_server_behind_the_address_is_a_message(open_page: OpenPage) -> None:
    lab = fakes.make_lab(replace(fakes.READY, endpoint=fakes.ATTACHED.endpoint))
    at = open_page(lab).button(key="home_quick").click().run()
    assert not at.exception and not at.success
    assert len(errors(at)) == 1
