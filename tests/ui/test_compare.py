"""HF vs vLLM: the form, the race while it runs, and how it ended."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from components import compare_form
from engine import cli
from engine.compare_estimate import Estimate, Span
from engine.compare_results import CompareResults, CompareSnapshot, CompareState, EngineResult, Level, Mode
from engine.config import CompareConfig, Device
from engine.errors import AlreadyRunning, LabError
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
    nodes,
    part,
    press,
    said,
    table,
)

START = "Start the race"
BUSY = AlreadyRunning(f"A comparison runs already. {HOSTILE}", "Wait for it, or cancel it.")


def opened(open_page: OpenPage, snapshot: CompareSnapshot | None = None) -> tuple[fakes.FakeLab, AppTest]:
    lab = fakes.make_lab(fakes.READY, compare=snapshot)
    return lab, open_page(lab, "compare")


def test_idle_explains_and_offers_the_race(open_page: OpenPage) -> None:
    _, at = opened(open_page)
    assert not at.exception
    assert "Same weights, same prompt, same number of tokens, same threads." in said(at)
    assert START in labels(at)
    assert not {"compare_race", "compare_result", "compare_levels"} & keys(at)
    assert not table(at)


def test_start_sends_what_the_form_shows(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    press(at, START)
    assert not at.exception and not at.error
    assert lab.compare.made == [("start", CompareConfig(users=(1, 5)))]


def test_nothing_is_said_of_the_time_where_nothing_is_known(open_page: OpenPage) -> None:
    _, at = opened(open_page)
    assert "on this machine (from" not in said(at)
    _, at = opened(open_page, fakes.RUNNING)
    assert " left" not in said(at)


@pytest.mark.parametrize(
    ("runs", "words"),
    [(1, "About 2 min on this machine (from the last run)"), (3, "About 2 min on this machine (from 3 earlier runs)")],
)
def test_the_time_it_will_take_is_said_beside_start(open_page: OpenPage, runs: int, words: str) -> None:
    lab = fakes.make_lab(fakes.READY)
    lab.compare.expected = Estimate((Span(20, 20), Span(100, 104)), runs)
    at = open_page(lab, "compare")
    assert words in said(at)
    at.text_area(key="compare_prompt").set_value("").run()  # what can't be started takes no time
    assert "on this machine (from" not in said(at) and not at.error


def test_the_time_left_is_said_while_it_runs(open_page: OpenPage) -> None:
    _, at = opened(open_page, replace(fakes.RUNNING, left_s=(41.0, 44.0)))
    assert "Hugging Face: one request, repeat 1 of 3 · 12 s · about 40 s left" in said(at)
    _, late = opened(open_page, replace(fakes.RUNNING, left_s=(0.0, 0.0)))
    assert " left" not in said(late)


def test_start_sends_what_was_chosen(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    at.text_area(key="compare_prompt").set_value("Say hello.")
    at.number_input(key="compare_tokens").set_value(80)
    at.number_input(key="compare_repeats").set_value(5)
    at.pills(key="compare_users").set_value([20, 1, 10])
    at.toggle(key="compare_static").set_value(False)
    press(at, START)
    wanted = CompareConfig("Say hello.", 80, 5, (1, 10, 20), static_batch=False)
    assert lab.compare.made == [("start", wanted)]


def test_only_a_gpu_offers_eager_against_graphs(open_page: OpenPage) -> None:
    _, at = opened(open_page)
    assert "compare_graphs" not in keys(at)
    lab = fakes.make_lab(fakes.READY, device=Device.CUDA)
    at = open_page(lab, "compare")
    at.toggle(key="compare_graphs").set_value(True)
    press(at, START)
    assert lab.compare.made == [("start", CompareConfig(users=(1, 5), eager_against_graphs=True))]


@pytest.mark.parametrize(
    ("key", "value", "cause"), [("compare_prompt", "  ", "The prompt is empty."), ("compare_users", [], "users is ().")]
)
def test_what_cannot_be_compared_is_a_message(open_page: OpenPage, key: str, value: object, cause: str) -> None:
    lab, at = opened(open_page)
    at.get_by_key(key).set_value(value)
    press(at, START)
    assert not at.exception
    assert cause in errors(at)[0]
    assert lab.compare.made == []


def test_a_start_that_is_refused_is_a_message(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    lab.compare.error = BUSY
    press(at, START)
    assert not at.exception
    assert BUSY.cause in errors(at)[0] and BUSY.remedy in errors(at)[0]
    assert_no_live_markup(at)


def test_tokens_and_repeats_come_from_the_address(open_page: OpenPage) -> None:
    lab = fakes.make_lab(fakes.READY)
    at = open_page(lab, "compare", compare_tokens="80", compare_repeats="5")
    press(at, START)
    assert lab.compare.made == [("start", CompareConfig(max_tokens=80, repeats=5, users=(1, 5)))]


@pytest.mark.parametrize("value", ["", "many", "-3", "1e99", "99999999999999999999"])
def test_an_address_that_makes_no_sense_leaves_the_defaults(open_page: OpenPage, value: str) -> None:
    lab = fakes.make_lab(fakes.READY)
    at = open_page(lab, "compare", compare_tokens=value)
    assert not at.exception
    press(at, START)
    assert lab.compare.made == [("start", CompareConfig(users=(1, 5)))]


def test_running_shows_progress_and_lanes_and_no_second_start(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.RUNNING)
    assert not at.exception
    assert [bar.value for bar in at.main.get("progress")] == [25]
    assert "Hugging Face: one request, repeat 1 of 3 · 12 s" in said(at)
    assert "Cancel" in labels(at) and START not in labels(at)
    assert "compare_race" in keys(at)


def test_cancel_cancels(open_page: OpenPage) -> None:
    lab, at = opened(open_page, fakes.RUNNING)
    press(at, "Cancel")
    assert not at.exception and not at.error
    assert lab.compare.made == [("cancel", None)]


def test_a_cancel_that_fails_is_a_message(open_page: OpenPage) -> None:
    lab, at = opened(open_page, fakes.RUNNING)
    lab.compare.error = LabError("It can't be cancelled.", "Stop the lab.")
    press(at, "Cancel")
    assert not at.exception
    assert "It can't be cancelled." in errors(at)[0] and "Stop the lab." in errors(at)[0]


@pytest.mark.parametrize("share", [-0.5, 1.7])
def test_progress_stays_on_its_bar(open_page: OpenPage, share: float) -> None:
    _, at = opened(open_page, replace(fakes.RUNNING, progress=share, elapsed_s=None))
    assert not at.exception
    assert [bar.value for bar in at.main.get("progress")] in ([0], [100])


def test_done_shows_ratio_speeds_spread_and_what_it_means(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.DONE)
    words = said(at)
    assert not at.exception and not at.error
    for expected in (
        "3.1×",
        "33 tok/s   (31 to 33)",
        "102 tok/s   (98 to 104)",
        "Median of 3 repeats, warm-up discarded",
        "More users",
        "5 users, against one after another",
        "10.0×",
        "5 users, against a static batch",
        "3.0×",
        "Every prompt begins with a number of its own.",
        "Same for both:",
        "dtype bfloat16, 2 threads.",
        "vLLM ran eagerly, without compilation.",
        "Memory, all processes",
        "vLLM's includes the KV cache that it reserves.",
        "Race again",
    ):
        assert expected in words, expected
    assert {"compare_race", "compare_levels"} <= keys(at)
    assert "Open the saved run" in links(at)
    assert START in labels(at)


def test_done_lists_every_number_of_both_engines(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.DONE)
    for cell in (
        "Hugging Face",
        "vLLM",
        "2.5 s",
        "26 s",
        "50 tokens",
        "300 ms",
        "25.0 ms",
        "8.0 ms",
        "1.9 GB",
        "269 MB",
    ):
        assert cell in table(at), cell


def test_saved_run_is_linked_by_its_id(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.DONE)
    (link,) = [link for link in at.page_link if link.label == "Open the saved run"]
    assert fakes.DONE.run_id in link.proto.query_string


def test_numbers_that_are_not_known_are_dashes(open_page: OpenPage) -> None:
    unknown = CompareResults(
        engines={"hf": EngineResult(), "vllm": EngineResult()},
        levels=(Level(5, Mode.SEQUENTIAL, "hf"), Level(5, Mode.CONCURRENT, "vllm")),
    )
    _, at = opened(open_page, replace(fakes.DONE, results=unknown, run_id=None))
    assert not at.exception
    assert table(at).count("—") == 16
    assert not has_a_lone_zero(table(at))
    assert "×" not in said(at)
    assert "Open the saved run" not in links(at)


def test_only_one_engine_has_no_ratio(open_page: OpenPage) -> None:
    half = replace(fakes.RESULTS, engines={"hf": fakes.RESULTS.engines["hf"]}, levels=fakes.RESULTS.levels[:1])
    _, at = opened(open_page, replace(fakes.DONE, results=half))
    assert not at.exception
    assert "×" not in said(at)
    assert "33 tok/s" in said(at)


def test_cancelled_before_anything_was_measured_says_so(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.CANCELLED)
    assert not at.exception
    assert "Cancelled. No measurement was finished." in said(at)
    assert "was saved" not in said(at)
    assert START in labels(at) and "Cancel" not in labels(at)


def test_cancelled_later_shows_what_was_saved(open_page: OpenPage) -> None:
    half = replace(fakes.RESULTS, engines={"hf": fakes.RESULTS.engines["hf"]}, levels=())
    _, at = opened(open_page, replace(fakes.CANCELLED, results=half, run_id="20261201-1"))
    assert "What was measured before is below and was saved." in said(at)
    assert "33 tok/s" in said(at)
    assert "Open the saved run" in links(at)


def test_failed_shows_cause_and_remedy(open_page: OpenPage) -> None:
    failed = replace(fakes.COMPARE_FAILED, error=f"The HF child ended. {HOSTILE}", remedy=f"Look at its log. {HOSTILE}")
    _, at = opened(open_page, failed)
    assert not at.exception
    assert f"The HF child ended. {HOSTILE}" in errors(at)[0] and f"Look at its log. {HOSTILE}" in errors(at)[0]
    assert START in labels(at)
    assert_no_live_markup(at)


def test_failed_without_a_reason_still_says_that_it_failed(open_page: OpenPage) -> None:
    _, at = opened(open_page, CompareSnapshot(CompareState.FAILED))
    assert not at.exception
    assert "The comparison failed." in errors(at)[0]


def test_a_result_that_could_not_be_saved_says_so(open_page: OpenPage) -> None:
    unsaved = replace(fakes.DONE, run_id=None, error="No room on the disk.", remedy="Free some space.")
    _, at = opened(open_page, unsaved)
    assert "No room on the disk." in errors(at)[0] and "Free some space." in errors(at)[0]
    assert "3.1×" in said(at)


def test_markup_in_messages_notes_and_prompt_is_text(open_page: OpenPage) -> None:
    results = replace(fakes.RESULTS, notes=(HOSTILE,), context={"model": HOSTILE})
    config = replace(fakes.DONE.config, prompt=HOSTILE)
    for snapshot in (
        replace(fakes.DONE, results=results, config=config),
        replace(fakes.RUNNING, message=HOSTILE, config=config),
    ):
        _, at = opened(open_page, snapshot)
        assert not at.exception
        assert HOSTILE in said(at) or "Attached server" in said(at)
        assert_no_live_markup(at)


def test_commands_are_for_the_newest_comparison_and_the_running_model(open_page: OpenPage) -> None:
    lab = fakes.make_lab(fakes.ATTACHED, compare=replace(fakes.DONE, config=CompareConfig("Count.", 64, 2, (1, 5))))
    shown = [code.value for code in open_page(lab, "compare").code]
    qwen = "Qwen/Qwen2.5-0.5B-Instruct"
    assert shown[0] == compare_form.command(CompareConfig("Count.", 64, 2, (1, 5)), qwen, "http://127.0.0.1:9/v1")
    assert f"--base-url http://127.0.0.1:9/v1 --model {qwen} " in shown[0]
    assert qwen in shown[1] and "max_tokens=64" in shown[1]


def test_command_names_the_model_where_it_is_not_the_default(open_page: OpenPage) -> None:
    other = replace(fakes.READY, endpoint=replace(fakes.ENDPOINT, model="owner/na'me"))
    (shown, _) = [code.value for code in open_page(fakes.make_lab(other), "compare").code]
    assert cli.build_parser().parse_args(shlex.split(shown)[3:]).model == "owner/na'me"
    (shown, _) = [code.value for code in open_page(fakes.make_lab(fakes.READY), "compare").code]
    assert "--model" not in shown and "--engines hf,vllm" in shown


@pytest.mark.parametrize(
    ("choice", "engines"), [("vLLM", ("vllm",)), ("Hugging Face", ("hf",)), ("Both", ("hf", "vllm"))]
)
def test_one_engine_can_be_measured_alone(open_page: OpenPage, choice: str, engines: tuple[str, ...]) -> None:
    lab, at = opened(open_page)
    at.segmented_control(key="compare_engines_False").set_value(choice)
    press(at, START)
    assert lab.compare.made == [("start", CompareConfig(users=(1, 5), engines=engines))]


def test_an_attached_server_is_measured_alone_and_not_said_to_have_the_same_weights(open_page: OpenPage) -> None:
    lab = fakes.make_lab(fakes.ATTACHED)
    at = open_page(lab, "compare")
    assert "its weights, number format and threads are not known here" in said(at)
    assert "Same weights" not in said(at)
    press(at, START)
    assert lab.compare.made == [("start", CompareConfig(users=(1, 5), engines=("vllm",)))]


def test_results_of_an_attached_server_claim_nothing_that_is_not_known(open_page: OpenPage) -> None:
    results = replace(fakes.RESULTS, context={"model": "owner/name"})
    _, at = opened(open_page, replace(fakes.DONE, results=results))
    assert "Attached server" in table(at)
    assert "one request to the attached server" in part(at, "compare_result")
    assert "Hugging Face ran: model owner/name." in said(at) and "Same for both" not in said(at)
    assert "vLLM ran" not in said(at)


def test_a_ratio_within_the_noise_is_said_to_be_so(open_page: OpenPage) -> None:
    hf = replace(fakes.RESULTS.engines["hf"], spread=(31.0, 99.0))
    results = replace(fakes.RESULTS, engines={**fakes.RESULTS.engines, "hf": hf})
    _, at = opened(open_page, replace(fakes.DONE, results=results))
    assert "The ranges overlap" in part(at, "compare_result")
    _, at = opened(open_page, fakes.DONE)
    assert "overlap" not in said(at)


def test_one_user_alone_has_no_section_of_more_users(open_page: OpenPage) -> None:
    one = replace(fakes.RESULTS, levels=tuple(level for level in fakes.RESULTS.levels if level.users == 1))
    _, at = opened(open_page, replace(fakes.DONE, results=one))
    assert "More users" not in said(at) and "1 users" not in said(at)
    assert "compare_levels" not in keys(at)


def test_start_is_off_with_the_reason_while_the_server_is_reserved(open_page: OpenPage) -> None:
    at = open_page(fakes.make_lab(fakes.READY_RESERVED), "compare")
    assert START not in labels(at)
    assert fakes.MEASURING in said(at)


@pytest.mark.parametrize("snapshot", [fakes.DONE, fakes.RUNNING, fakes.CANCELLED, CompareSnapshot()])
def test_no_line_of_the_page_is_drawn_by_accident(open_page: OpenPage, snapshot: CompareSnapshot) -> None:
    """A line that is only an expression used to be shown with its whole documentation."""
    _, at = opened(open_page, snapshot)
    assert not at.get("doc_string") and not at.help


def test_the_result_comes_before_the_race(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.DONE)
    order = [node.key for node in nodes(at) if getattr(node, "key", None)]
    assert order.index("compare_result") < order.index("compare_race") < order.index("compare_levels")


@pytest.mark.parametrize(
    "config",
    [
        CompareConfig(),
        CompareConfig('It\'s "quoted" $(rm) `x`\nand new lines', 64, 2, (1, 5, 20), static_batch=False),
        CompareConfig(engines=("vllm",), eager_against_graphs=True),
    ],
)
def test_shown_command_is_one_that_the_command_line_takes(config: CompareConfig) -> None:
    python, _, module, *argv = shlex.split(compare_form.command(config))
    args = cli.build_parser().parse_args(argv)
    assert (python, module) == ("python", "engine")
    assert args.prompt == config.prompt
    assert (args.max_tokens, args.repeats) == (config.max_tokens, config.repeats)
    assert args.engines.split(",") == list(config.engines)
    assert [int(n) for n in args.users.split(",")] == list(config.users)
    assert (args.no_static_batch, args.eager) == (not config.static_batch, config.eager_against_graphs)


def test_shown_snippet_is_python_for_the_same_request() -> None:
    config = CompareConfig('Say """hi"""\n\\n {x}', 64)
    snippet = compare_form.sdk_snippet(config, "owner/na'me")
    compile(snippet, "snippet", "exec")
    assert "client.chat.completions.create(" in snippet and '"role": "user"' in snippet
    assert repr(config.prompt) in snippet and repr("owner/na'me") in snippet and "max_tokens=64" in snippet


def test_a_busy_machine_is_told_beside_the_numbers(open_page: OpenPage) -> None:
    assert fakes.DONE.results is not None
    warned = replace(fakes.DONE, results=replace(fakes.DONE.results, warnings=("Others kept 0.9 of 2 cores busy.",)))
    _, at = opened(open_page, warned)
    assert not at.exception
    assert any("0\\.9 of 2 cores" in found.value for found in at.warning)


def test_the_ratio_is_shown_as_soon_as_it_is_known(open_page: OpenPage) -> None:
    _, at = opened(open_page, replace(fakes.RUNNING, results=fakes.DONE.results))
    assert not at.exception
    assert "3.1×" in said(at)
    assert not at.table
    _, before = opened(open_page, fakes.RUNNING)
    assert "×" not in said(before)
