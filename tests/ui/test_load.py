"""Load test: the form, what is seen while it runs, its results on the page and as a saved run."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from components import load_command, load_downloads, load_figures, swim_lanes, uploads
from components.load_form import DEFAULTS, PROFILES, expected_words
from components.load_shown import Shown
from components.load_values import SPEAKS_AGAINST, best, doubts, saved_load, times_one_user, value_of
from engine import cli
from engine.cli.load import config_of
from engine.compare_estimate import Span
from engine.config import LOAD_PROFILES, LoadTestConfig, Settings
from engine.errors import AlreadyRunning, LabError
from engine.kv.traces import SAMPLE_TRACE
from engine.load import badges
from engine.load.estimate import LoadEstimate
from engine.load.profiles import levels_of
from engine.load.results import LoadResults, LoadSnapshot, LoadState
from tests.ui import fakes
from tests.ui import load_snapshots as shots
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
    nodes,
    part,
    press,
    said,
    table,
)

START = "Start the load test"


def opened(
    open_page: OpenPage, snapshot: LoadSnapshot | None = None, server: Any = fakes.READY, **query: str
) -> tuple[fakes.FakeLab, AppTest]:
    lab = fakes.make_lab(server)
    if snapshot is not None:
        lab.load.current = snapshot
    return lab, open_page(lab, "load", **query)


def started(lab: fakes.FakeLab) -> LoadTestConfig:
    ((name, config),) = lab.load.made
    assert name == "start"
    return config


# -- the form


def test_idle_shows_the_profiles_and_what_they_cost(open_page: OpenPage) -> None:
    _, at = opened(open_page)
    assert not at.exception
    assert at.radio(key="load_profile").options == [profile.title for profile in PROFILES.values()]
    assert "4 levels · 130 requests" in said(at)
    assert START in labels(at) and "Cancel" not in labels(at)
    assert not {"load_result", "load_lanes", "load_chart"} & keys(at)
    assert not table(at)


def test_every_profile_of_the_engine_is_offered() -> None:
    assert set(PROFILES) == set(LOAD_PROFILES)


def test_start_sends_the_workshops_test(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    press(at, START)
    assert not at.exception and not at.error
    assert started(lab) == DEFAULTS


def test_start_sends_what_was_chosen(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    at.text_input(key="load_levels_closed").set_value("16 2; 4")
    at.number_input(key="load_seconds_closed").set_value(10.0)
    at.number_input(key="load_prompt_tokens").set_value(128)
    at.number_input(key="load_max_tokens").set_value(20)
    at.number_input(key="load_slo_ttft").set_value(None)
    at.number_input(key="load_slo_e2e").set_value(2000.0)
    at.toggle(key="load_same").set_value(True)
    at.toggle(key="load_warm").set_value(False)
    at.selectbox(key="load_output_shape").set_value("uniform")
    press(at, START)
    assert started(lab) == LoadTestConfig(
        users=(2, 4, 16),
        duration_s=10.0,
        prompt_tokens=128,
        max_tokens=20,
        slo_tpot_ms=100.0,
        slo_e2e_ms=2000.0,
        same_prompt=True,
        warm_up=False,
        output_shape="uniform",
        output_spread=0.5,
    )


@pytest.mark.parametrize(
    ("profile", "wanted"),
    [
        ("ramp", {"users": (1, 64)}),
        ("constant", {"rates": (1.0, 2.0, 4.0), "duration_s": 30.0}),
        ("poisson", {"rates": (1.0, 2.0, 4.0), "duration_s": 30.0}),
        ("burst", {"users": (8, 16, 32)}),
        ("trace", {"trace": str(SAMPLE_TRACE), "duration_s": 30.0}),
    ],
)
def test_each_profile_has_its_own_pressure(open_page: OpenPage, profile: str, wanted: dict[str, Any]) -> None:
    lab, at = opened(open_page)
    at.radio(key="load_profile").set_value(profile).run()
    assert not at.exception
    press(at, START)
    assert started(lab) == replace(DEFAULTS, profile=profile, **wanted)


@pytest.mark.parametrize("prompts", ["short", "long", "mixed", "chat", "sharegpt"])
def test_each_source_of_prompts_can_be_started(open_page: OpenPage, prompts: str) -> None:
    lab, at = opened(open_page)
    at.selectbox(key="load_prompts").set_value(prompts).run()
    press(at, START)
    assert not at.exception and not at.error
    assert started(lab) == replace(DEFAULTS, prompts=prompts)


def test_a_file_that_was_not_given_is_a_message(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    at.selectbox(key="load_prompts").set_value("file").run()
    press(at, START)
    assert "No file was given." in errors(at)[0]
    assert lab.load.made == []


def test_a_file_stays_chosen_after_a_change_of_page(open_page: OpenPage, tmp_path: Path) -> None:
    lab = fakes.make_lab(fakes.READY)
    lab.settings = Settings(data_dir=tmp_path)
    at = open_page(lab, "load")
    at.selectbox(key="load_prompts").set_value("file").run()
    at.file_uploader(key="load_prompt_file").set_value(("mine.jsonl", b'{"prompt": "Hi"}', "application/jsonl")).run()
    at.switch_page("pages/home.py").run()
    at.switch_page("pages/load.py").run()
    at.selectbox(key="load_prompts").set_value("file").run()
    assert "Still: mine.jsonl" in said(at)
    press(at, START)
    assert Path(started(lab).prompt_file).read_bytes() == b'{"prompt": "Hi"}'


@pytest.mark.parametrize(
    ("typed", "cause"),
    [("1, x", "is not a list of whole numbers"), ("", "No number of users was given."), ("0", "users is 0.")],
)
def test_what_cannot_be_sent_is_a_message(open_page: OpenPage, typed: str, cause: str) -> None:
    lab, at = opened(open_page)
    at.text_input(key="load_levels_closed").set_value(typed)
    press(at, START)
    assert not at.exception
    assert cause in errors(at)[0]
    assert lab.load.made == [] and "levels ·" not in said(at)


def test_a_start_that_is_refused_is_a_message(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    lab.load.error = AlreadyRunning(f"A chat answer is being written. {HOSTILE}", "Wait for it.")
    press(at, START)
    assert "A chat answer is being written." in errors(at)[0] and "Wait for it." in errors(at)[0]
    assert_no_live_markup(at)


def test_start_is_off_with_the_reason_while_the_server_is_reserved(open_page: OpenPage) -> None:
    _, at = opened(open_page, server=fakes.READY_RESERVED)
    assert START not in labels(at)
    assert fakes.MEASURING in said(at)


def test_without_a_server_it_says_that_one_will_be_started(open_page: OpenPage) -> None:
    _, at = opened(open_page, server=fakes.STOPPED)
    assert "starts the server first" in said(at) and START in labels(at)
    _, at = opened(open_page)
    assert "starts the server first" not in said(at)


def test_choices_come_from_the_address(open_page: OpenPage) -> None:
    lab, at = opened(open_page, load_profile="Burst", load_levels_burst="3, 6", load_max_tokens="7")
    press(at, START)
    assert started(lab) == replace(DEFAULTS, profile="burst", users=(3, 6), max_tokens=7)


def test_earlier_runs_tell_how_long_it_will_take(open_page: OpenPage) -> None:
    lab = fakes.make_lab(fakes.READY, runs=[shots.saved()])
    at = open_page(lab, "load")
    assert "about 20 s (from the last run)" in said(at)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (LoadEstimate(1, 20, None), "1 level · 20 requests"),
        (LoadEstimate(3, None, Span(60, 60)), "3 levels · about 60 s"),
        (LoadEstimate(2, 40, Span(20, 60), 2), "2 levels · 40 requests · 20 to 60 s (from 2 earlier runs)"),
    ],
)
def test_what_a_test_costs_in_words(found: LoadEstimate, words: str) -> None:
    assert expected_words(found, ready=True) == words


def test_an_uploaded_file_is_kept_once_under_its_content(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    path = uploads.keep(settings, "../../évil name.csv", b"a,b\n1,2\n")
    assert path.parent == tmp_path / "uploads" and path.read_bytes() == b"a,b\n1,2\n"
    assert path == uploads.keep(settings, "../../évil name.csv", b"a,b\n1,2\n")
    assert path != uploads.keep(settings, "../../évil name.csv", b"other")
    assert path.suffix == ".csv" and "/" not in path.name


def test_only_the_uploads_that_were_used_last_are_kept(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    paths = [uploads.keep(settings, f"{number}.csv", b"%d" % number) for number in range(uploads.KEPT)]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (1e9 - age, 1e9 - age))
    uploads.keep(settings, "0.csv", b"0")  # the oldest is used again
    newest = uploads.keep(settings, "new.csv", b"new")
    assert set((tmp_path / uploads.FOLDER).iterdir()) == {*paths, newest} - {paths[1]}


def test_a_file_that_cannot_be_kept_is_a_lab_error(tmp_path: Path) -> None:
    (tmp_path / "uploads").write_text("a file where the folder should be")
    with pytest.raises(LabError, match="can't be kept"):
        uploads.keep(Settings(data_dir=tmp_path), "a.csv", b"")


# -- while it runs


def test_running_shows_progress_lanes_and_the_table_so_far(open_page: OpenPage) -> None:
    _, at = opened(open_page, shots.RUNNING)
    assert not at.exception
    assert [bar.value for bar in at.main.get("progress")] == [40]
    words = said(at)
    assert "Level 2 of 4 · 5 users: measuring · 21 s · about 30 s left" in words
    for expected in ("287 tok/s", "of 20 · 1 failed", "in the server, by its own word"):
        assert expected in words, expected
    assert "load_lanes" in keys(at)
    assert "Cancel" in labels(at) and START not in labels(at)
    for cell in ("1 user", "100", "78.0 ms", "20 users", "—"):
        assert cell in table(at), cell


def test_before_the_first_level_there_is_only_the_message(open_page: OpenPage) -> None:
    _, at = opened(open_page, shots.STARTING)
    assert not at.exception
    assert "Starting the vLLM server · 3.0 s" in said(at)
    assert "load_lanes" not in keys(at) and not table(at)


def test_nothing_of_a_warm_up_is_shown_as_measured(open_page: OpenPage) -> None:
    _, at = opened(open_page, shots.WARMING)
    assert not has_a_lone_zero(part(at, "load_live"))
    assert part(at, "load_live").count("—") == 4


def test_cancel_cancels(open_page: OpenPage) -> None:
    lab, at = opened(open_page, shots.RUNNING)
    press(at, "Cancel")
    assert not at.exception and not at.error
    assert lab.load.made == [("cancel", None)]


@pytest.mark.parametrize("share", [-0.5, 1.7])
def test_progress_stays_on_its_bar(open_page: OpenPage, share: float) -> None:
    _, at = opened(open_page, replace(shots.RUNNING, progress=share, elapsed_s=None, left_s=None))
    assert not at.exception and " left" not in said(at)


def test_a_server_without_metrics_has_no_queue_of_zero(open_page: OpenPage) -> None:
    blind = tuple(point._replace(queued=None) for point in shots.RUNNING.live)
    _, at = opened(open_page, replace(shots.RUNNING, live=blind), server=fakes.ATTACHED)
    assert "—" in part(at, "load_live") and not has_a_lone_zero(part(at, "load_live"))


# -- the lanes


def test_lanes_carry_states_and_times_in_ms() -> None:
    data = swim_lanes.swim_data(shots.RUNNING)
    states = data["states"]
    assert data["running"] and data["now"] == 2000 and data["lane"] == "User"
    assert data["lanes"][0] == [
        0,
        [[0, states.index("done"), 0, 10, 80, 1200], [2, states.index("decode"), 1200, -1, 1300, -1]],
    ]
    assert data["lanes"][1][1][0] == [1, states.index("failed"), 0, -1, -1, 900]
    assert data["live"] == [[500, 200.0, 5, 0], [1000, 287.4, 4, 3]]
    assert json.dumps(data)


def test_lanes_are_told_in_words() -> None:
    assert swim_lanes.swim_data(shots.RUNNING)["alt"] == (
        "Requests of 2 lanes over time: 7 answered, 1 queued, 0 prefill, 1 decode, 1 failed."
    )


def test_a_wait_that_is_not_known_to_be_queue_or_prefill_is_called_so() -> None:
    blind = tuple(point._replace(queued=None) for point in shots.RUNNING.live)
    lanes = tuple(
        lane._replace(requests=tuple(one._replace(prefill_s=None) for one in lane.requests)) for lane in shots.LANES
    )
    names = [name for _, name, _ in swim_lanes.swim_data(replace(shots.RUNNING, live=blind, lanes=lanes))["legend"]]
    assert names == ["Queued or prefill", "Decode", "Failed"]
    assert "Queued" in [name for _, name, _ in swim_lanes.swim_data(shots.RUNNING)["legend"]]


def test_what_the_browser_gets_is_bounded() -> None:
    many = tuple(
        shots.Lane(
            user, tuple(shots.LaneRequest(i, shots.RequestState.DONE, i, i, i + 0.1, i + 0.9) for i in range(40))
        )
        for user in range(200)
    )
    for state in (LoadState.RUNNING, LoadState.DONE):
        data = swim_lanes.swim_data(replace(shots.RUNNING, state=state, lanes=many, level_s=40.0))
        assert 0 < sum(len(bars) for _, bars in data["lanes"]) <= swim_lanes.MOST_BARS
        assert len(data["lanes"]) == 200


def test_a_level_that_is_over_is_shown_whole() -> None:
    data = swim_lanes.swim_data(replace(shots.DONE, level_s=90.0))
    assert data["window"] == 90_000 and len(data["lanes"][0][1]) == 2
    assert swim_lanes.swim_data(replace(shots.RUNNING, level_s=90.0))["window"] < 90_000


# -- how it ended


def test_done_says_the_headline_in_words(open_page: OpenPage) -> None:
    _, at = opened(open_page, shots.DONE)
    assert not at.exception and not at.error
    headline = part(at, "load_result")
    for expected in ("590", "tok/s with 20 users: 5.9× one user", "1 user", "100 tok/s"):
        assert expected in headline, expected
    shown = metrics(at)
    assert shown == {
        "TTFT p95": "533 ms",
        "TPOT p95": "37.7 ms",
        "E2E p95": "2.4 s",
        "Goodput": "50%",
        "Answered": "60",
    }
    assert "load_chart" in keys(at)
    assert "Open the saved run" in links(at) and START in labels(at)


def test_each_figure_has_its_formula(open_page: OpenPage) -> None:
    _, at = opened(open_page, shots.DONE)
    helps = {metric.label: metric.help for metric in at.metric}
    assert "first chunk with non-empty content" in helps["TTFT p95"] and "linear interpolation" in helps["TTFT p95"]
    assert "output tokens − 1" in helps["TPOT p95"] and "SLO" in helps["Goodput"]
    (head,) = [
        node.proto.body for node in nodes(at) if node.type == "html" and '<table class="lab-table"' in node.proto.body
    ]
    assert head.count("lab-help") == 9 and "wall time from first send to last finish" in head


def test_badges_stand_beside_what_they_qualify_with_their_reasons(open_page: OpenPage) -> None:
    _, at = opened(open_page, shots.DONE)
    assert "Preempted" in part(at, "load_result") and "3 times the KV cache was full" in part(at, "load_result")
    rows = table(at)
    assert "590 ¹" in rows and "533 ms" in rows and "533 ms ¹" not in rows
    assert "¹ Preempted, 20 users: 3 times the KV cache was full." in said(at)
    busy = replace(shots.LEVELS[3], badges=(shots.Badge("others_busy", "Other programs", "They kept 1 of 2 cores."),))
    _, at = opened(open_page, replace(shots.DONE, results=replace(shots.RESULTS, levels=(*shots.LEVELS[:3], busy))))
    assert part(at, "load_result").count("All numbers: Other programs") == 1
    assert "20 users ¹" in table(at) and "590 ¹" not in table(at)
    level = shots.LEVELS[0]
    assert doubts(level, "ttft_p99_ms") == (shots.FEW,) and doubts(level, "ttft_p50_ms") == ()


def test_the_table_has_every_level(open_page: OpenPage) -> None:
    _, at = opened(open_page, shots.DONE)
    for cell in ("1 user", "5 users", "10 users", "20 users", "330", "117 ms", "5.9 (50%)"):
        assert cell in table(at), cell


@pytest.mark.parametrize("view", ["Load curve", "TTFT", "TPOT", "Trade-off", "Goodput"])
def test_every_view_draws_its_chart(open_page: OpenPage, view: str) -> None:
    _, at = opened(open_page, shots.DONE)
    at.segmented_control(key="load_view").set_value(view).run()
    assert not at.exception
    assert "load_chart" in keys(at)


def test_requests_and_all_numbers_are_views_too(open_page: OpenPage) -> None:
    _, at = opened(open_page, shots.DONE)
    at.segmented_control(key="load_view").set_value("Requests").run()
    assert "load_lanes_over" in keys(at) and "load_chart" not in keys(at)
    at.segmented_control(key="load_view").set_value("All numbers").run()
    assert not at.exception and len(at.dataframe[0].value) == 16
    for words in ("KV cache peak", "12.5%", "Client CPU"):
        assert words in table(at), words


def test_another_convention_changes_numbers_and_formulas(open_page: OpenPage) -> None:
    _, at = opened(open_page, shots.DONE)
    at.selectbox(key="load_convention").set_value("guidellm").run()
    assert not at.exception
    assert "579" in part(at, "load_result") and metrics(at)["TTFT p95"] == "777 ms"
    assert metrics(at)["E2E p95"] == "—" and metrics(at)["Goodput"] == "50%"
    assert "By the definitions of guidellm" in part(at, "load_result")
    assert "nothing is interpolated" in next(metric.help for metric in at.metric if metric.label == "TTFT p95")


def test_cancelled_shows_what_there_is_and_marks_it(open_page: OpenPage) -> None:
    _, at = opened(open_page, shots.CANCELLED)
    assert not at.exception and not at.error
    assert "Cancelled. What was measured before is below and was saved." in said(at)
    assert "Not whole" in said(at) and "20 of 25" in metrics(at)["Answered"]
    assert START in labels(at)


def test_cancelled_before_anything_finished_says_so(open_page: OpenPage) -> None:
    _, at = opened(open_page, replace(shots.CANCELLED, results=LoadResults(), run_id=None))
    assert "Cancelled. No request was finished." in said(at)
    assert "load_result" not in keys(at) and "was saved" not in said(at)


def test_failed_shows_cause_remedy_and_what_was_measured(open_page: OpenPage) -> None:
    failed = replace(shots.FAILED, error=f"The server died. {HOSTILE}", remedy=f"Look at its log. {HOSTILE}")
    _, at = opened(open_page, failed)
    assert not at.exception
    assert f"The server died. {HOSTILE}" in errors(at)[0] and f"Look at its log. {HOSTILE}" in errors(at)[0]
    assert "It ended early. What was measured before is below" in said(at)
    assert "load_result" in keys(at)
    assert_no_live_markup(at)


def test_a_result_that_could_not_be_saved_says_so(open_page: OpenPage) -> None:
    _, at = opened(open_page, replace(shots.DONE, run_id=None, error="No room on the disk.", remedy="Free some space."))
    assert "No room on the disk." in errors(at)[0]
    assert "590" in part(at, "load_result") and "Open the saved run" not in links(at)


def test_reasons_of_failures_are_told_once_with_their_levels(open_page: OpenPage) -> None:
    levels = tuple(
        replace(level, requests_failed=2, failures=((f"timed out {HOSTILE}", 2),)) for level in shots.LEVELS[:2]
    )
    _, at = opened(open_page, replace(shots.DONE, results=replace(shots.RESULTS, levels=levels, knee=None)))
    assert not at.exception
    assert f"4 × timed out {HOSTILE} (1 user: 2, 5 users: 2)" in said(at)
    assert "20, 2 failed" in table(at)
    assert_no_live_markup(at)


def test_what_is_not_known_is_a_dash(open_page: OpenPage) -> None:
    bare = replace(shots.DONE, results=LoadResults((shots.BARE, replace(shots.BARE, label="9 users", users=9))))
    _, at = opened(open_page, bare)
    assert not at.exception
    assert not has_a_lone_zero(table(at)) and not has_a_lone_zero(part(at, "load_result"))
    assert set(metrics(at).values()) == {"—", "5"}
    at.segmented_control(key="load_view").set_value("All numbers").run()
    assert not at.exception and not has_a_lone_zero(table(at))


def test_nothing_answered_has_no_headline_and_no_ratio(open_page: OpenPage) -> None:
    dead = replace(shots.BARE, requests_ok=0, requests_failed=5, failures=(("refused", 5),))
    _, at = opened(open_page, replace(shots.FAILED, results=LoadResults((dead,))))
    assert not at.exception
    assert "No request was answered." in said(at) and "×" not in part(at, "load_result")


def test_markup_in_messages_labels_notes_and_badges_is_text(open_page: OpenPage) -> None:
    badge = shots.Badge("preempted", HOSTILE, HOSTILE)
    levels = tuple(replace(level, badges=(badge,)) for level in shots.LEVELS)
    labelled = tuple(replace(level, label=HOSTILE) for level in levels)
    done = replace(shots.DONE, results=replace(shots.RESULTS, levels=levels, notes=(HOSTILE,)))
    running = replace(
        shots.RUNNING, message=HOSTILE, labels=(HOSTILE,) * 4, results=replace(shots.RESULTS, levels=labelled)
    )
    for snapshot in (done, running):
        _, at = opened(open_page, snapshot)
        assert not at.exception
        assert HOSTILE in said(at)
        assert_no_live_markup(at)


def test_markup_in_a_label_is_text_in_every_figure() -> None:
    levels = tuple(replace(level, label=HOSTILE, users=None) for level in shots.LEVELS)
    for figure in (
        load_figures.load_figure(levels, 2, "x"),
        load_figures.distribution_figure(levels, "ttft", None),
        load_figures.tradeoff_figure(levels, 2),
        load_figures.goodput_figure(levels, "x"),
    ):
        shown = figure.to_json()
        assert "<script" not in shown and "\\u003cscript" not in shown and "&lt;script" in shown


def test_rates_are_named_as_such(open_page: OpenPage) -> None:
    levels = tuple(
        replace(level, users=None, rate_req_s=float(rate), label=f"{rate} requests/s")
        for rate, level in zip((1, 2, 4, 16), shots.LEVELS, strict=True)
    )
    _, at = opened(open_page, replace(shots.DONE, results=replace(shots.RESULTS, levels=levels)))
    assert "tok/s at 16 requests/s: 12 of 16 requests/s answered" in part(at, "load_result")


def test_one_level_has_no_curve(open_page: OpenPage) -> None:
    _, at = opened(open_page, replace(shots.DONE, results=replace(shots.RESULTS, levels=shots.LEVELS[:1], knee=None)))
    assert not at.exception
    assert "Load curve" not in said(at) and "Trade-off" not in said(at)


def test_a_view_that_the_next_results_lack_is_left(open_page: OpenPage) -> None:
    lab, at = opened(open_page, shots.DONE)
    at.segmented_control(key="load_view").set_value("Trade-off").run()
    lab.load.current = replace(shots.DONE, results=replace(shots.RESULTS, levels=shots.LEVELS[:1], knee=None))
    at.run()
    assert not at.exception
    assert "load_chart" in keys(at)


@pytest.mark.parametrize("snapshot", [shots.DONE, shots.RUNNING, shots.CANCELLED, LoadSnapshot()])
def test_no_line_of_the_page_is_drawn_by_accident(open_page: OpenPage, snapshot: LoadSnapshot) -> None:
    _, at = opened(open_page, snapshot)
    assert not at.get("doc_string") and not at.help


# -- numbers and figures


def test_the_headline_is_the_level_with_the_most_throughput() -> None:
    slower = (*shots.LEVELS, shots.level(40, 550, 900))
    top = best(slower)
    assert top is shots.LEVELS[3]
    assert times_one_user(top, slower) == pytest.approx(5.9)
    assert times_one_user(shots.LEVELS[0], slower) is None


def test_a_value_is_that_of_its_convention() -> None:
    level = shots.LEVELS[1]
    assert value_of(level, "ttft_p95_ms") == pytest.approx(117)
    assert value_of(level, "ttft_p95_ms", "vllm_bench") == 777
    assert value_of(level, "tpot_p95_ms", "vllm_bench") is None
    assert value_of(level, "goodput_pct", "vllm_bench") == 50
    assert value_of(level, "itl_mean_ms") == pytest.approx(14 * 1.05)


def test_the_curve_has_two_axes_and_marks_the_knee() -> None:
    figure = load_figures.load_figure(shots.LEVELS, 2, "Users at the same time")
    by_name = {trace.name: trace for trace in figure.data}
    assert list(by_name["Throughput (left)"].y) == [100, 330, 520, 590]
    assert by_name["TTFT p95 (right)"].yaxis == "y2"
    assert (list(by_name["Knee: 10 users"].x), list(by_name["Knee: 10 users"].y)) == ([10], [520])
    titles = [axis.title.text for axis in (figure.layout.xaxis, figure.layout.yaxis, figure.layout.yaxis2)]
    assert titles == ["Users at the same time", "Throughput (tok/s)", "TTFT (ms)"]
    assert figure.layout.xaxis.type is None
    wide = load_figures.load_figure((shots.LEVELS[0], shots.level(64, 600, 900)), None, "Users")
    assert wide.layout.xaxis.type == "log"


def test_a_percentile_can_be_read_off_the_distribution() -> None:
    """Interpolated between the points as the percentiles are."""
    level = shots.LEVELS[0]
    trace = load_figures.distribution_figure((level,), "ttft", 70.0).data[0]
    assert (trace.y[0], trace.y[-1]) == (0, 100)
    assert trace.x[10] == 70 and trace.y[10] == pytest.approx(100 * 10 / 19)
    assert load_figures.distribution_figure((level,), "ttft", 70.0).data[1].name == "SLO: 70 ms"


def test_failed_requests_are_in_no_distribution() -> None:
    samples = (*shots.LEVELS[0].samples[:3], shots.LEVELS[0].samples[3]._replace(ok=False))
    assert load_figures.samples_ms(replace(shots.LEVELS[0], samples=samples), "ttft") == [60, 61, 62]


def test_every_figure_is_told_in_words() -> None:
    assert "20 users: 590 tok/s, TTFT p95 533 ms. The knee is at 10 users" in load_figures.load_alt(shots.LEVELS, 2)
    assert "1 user: half within 60.0 ms, 95% within 78.0 ms" in load_figures.distribution_alt(shots.LEVELS, "ttft")
    assert "20 users: 5.9 requests/s, 50%" in load_figures.goodput_alt(shots.LEVELS)
    assert "590 tok/s at E2E p95" in load_figures.tradeoff_alt(shots.LEVELS)


def test_the_knee_is_found_among_the_levels_that_are_drawn() -> None:
    dead = replace(shots.LEVELS[0], requests_ok=0)
    shown = Shown(replace(shots.RESULTS, levels=(dead, *shots.LEVELS[1:])), None, "x")
    assert shown.knee == 1 and shown.measured[1] is shots.LEVELS[2]
    assert Shown(replace(shots.RESULTS, knee=9), None, "x").knee is None


def test_the_last_level_is_no_knee() -> None:
    """Nothing beyond it was measured."""
    last = len(shots.LEVELS) - 1
    assert Shown(replace(shots.RESULTS, knee=last), None, "x").knee is None
    dead = replace(shots.LEVELS[-1], requests_ok=0)
    shown = Shown(replace(shots.RESULTS, levels=(*shots.LEVELS[:-1], dead), knee=last - 1), None, "x")
    assert shown.knee is None


def test_every_badge_speaks_against_a_number_that_is_shown() -> None:
    codes = set(re.findall(r'Badge\(\s*"(\w+)"', Path(badges.__file__).read_text()))
    assert len(codes) > 9 and codes - {"few_samples"} <= SPEAKS_AGAINST.keys()


# -- without the page


@pytest.mark.parametrize(
    "config",
    [
        LoadTestConfig(),
        DEFAULTS,
        LoadTestConfig(profile="ramp", users=(1, 64), requests=30),
        LoadTestConfig(profile="ramp", rates=(0.5, 8.0), duration_s=20.0),
        LoadTestConfig(profile="poisson", rates=(2.0, 4.5), same_prompt=True, nonce=False, warm_up=False),
        LoadTestConfig(profile="constant", rates=(3.0,), prompt_shape="normal", prompt_spread=0.25, seed=7),
        LoadTestConfig(profile="burst", users=(8,), prompts="chat", turns=4, force_length=False, timeout_s=20.0),
        LoadTestConfig(profile="trace", trace="/data/it's a trace.csv", trace_speed=2.0, slo_e2e_ms=1000.0),
        LoadTestConfig(prompts="file", prompt_file="my prompts.jsonl", max_tokens=9, prompt_tokens=9),
    ],
)
def test_shown_command_gives_the_same_test(config: LoadTestConfig) -> None:
    python, _, module, *argv = shlex.split(load_command.command(config))
    assert (python, module) == ("python", "engine")
    assert config_of(cli.build_parser().parse_args(argv)) == config


def test_commands_are_for_the_attached_server(open_page: OpenPage) -> None:
    _, at = opened(open_page, server=fakes.ATTACHED)
    ours, theirs = (code.value for code in at.code)
    assert "--base-url http://127.0.0.1:9/v1 --model Qwen/Qwen2.5-0.5B-Instruct --users 1,5,10,20" in ours
    assert theirs.startswith("vllm bench serve --backend openai --base-url http://127.0.0.1:9 --model Qwen/")
    assert "--num-prompts 60 --max-concurrency 20 --ignore-eos" in theirs and "--goodput ttft:500 tpot:100" in theirs


def test_commands_follow_the_choices(open_page: OpenPage) -> None:
    _, at = opened(open_page, shots.DONE)
    at.text_input(key="load_levels_closed").set_value("3").run()
    assert "--users 3 " in at.code[0].value and "--max-concurrency 3 " in at.code[1].value


@pytest.mark.parametrize(
    ("config", "part_of_it"),
    [
        (LoadTestConfig(profile="poisson", rates=(2.0,)), "--request-rate 2 --ignore-eos"),
        (LoadTestConfig(profile="constant", rates=(2.0,)), "--request-rate 2 --burstiness 1000"),
        (LoadTestConfig(profile="burst", users=(8,)), "--num-prompts 8 --ignore-eos"),
        (LoadTestConfig(prompts="file", prompt_file="a.jsonl"), "--dataset-name custom --dataset-path a.jsonl"),
        (LoadTestConfig(slo_e2e_ms=900.0), "--goodput e2el:900"),
        (
            LoadTestConfig(output_shape="uniform", output_spread=0.25),
            """--random-range-ratio '{"input": 0.0, "output": 0.25}' --num-prompts 60""",
        ),
    ],
)
def test_vllms_own_benchmark_gets_the_same_pressure(config: LoadTestConfig, part_of_it: str) -> None:
    line = load_command.bench_command(config, levels_of(config)[-1], "http://127.0.0.1:8000/v1", "m", None)
    assert part_of_it in line


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (LoadTestConfig(prompts="chat"), "no such prompts"),
        (LoadTestConfig(prompts="file", prompt_file="a.csv"), "no such prompts"),
        (LoadTestConfig(profile="trace", trace=str(SAMPLE_TRACE), duration_s=10.0), "another format"),
        (LoadTestConfig(same_prompt=True), "a prompt of its own"),
        (LoadTestConfig(duration_s=10.0), "no time limit"),
        (LoadTestConfig(prompt_shape="normal", prompt_spread=0.5), "fixed or uniform"),
        (LoadTestConfig(output_shape="uniform", output_spread=1.0), "fixed or uniform"),
        (LoadTestConfig(profile="poisson", rates=(2.0,), duration_s=10.0), ""),
    ],
)
def test_what_vllms_benchmark_cannot_do_is_said(config: LoadTestConfig, reason: str) -> None:
    said_of_it = load_command.no_bench(config, levels_of(config)[-1])
    assert reason in said_of_it and bool(reason) == bool(said_of_it)


def test_vllms_format_is_an_object_a_line() -> None:
    lines = load_downloads.bench_lines(shots.RESULTS, shots.CONFIG, "m", "2026-12-01T07:00:00+00:00").splitlines()
    found = [json.loads(line) for line in lines]
    assert [one["max_concurrency"] for one in found] == [1, 5, 10, 20]
    assert found[0]["date"] == "20261201-070000" and found[0]["model_id"] == "m"


# -- saved runs


def run_page(open_page: OpenPage, **changes: Any) -> AppTest:
    lab = fakes.make_lab(runs=[shots.saved("x", **changes)])
    return open_page(lab, "runs", run="x")


def test_a_saved_test_shows_all_that_the_page_showed(open_page: OpenPage) -> None:
    at = run_page(open_page)
    assert not at.exception
    assert "tok/s with 20 users: 5.9× one user" in part(at, "runs_load_result")
    assert "533 ms" in table(at) and "runs_load_chart" in keys(at)
    assert "vLLM bench JSON" in {button.label for button in at.get("download_button")}


def test_a_cancelled_saved_test_says_why_it_ended(open_page: OpenPage) -> None:
    at = run_page(open_page, status="failed", results=shots.FAILED.results.to_dict() | {"error": "The server died."})
    assert "The server died." in errors(at)[0] and "Not whole" in said(at)


@pytest.mark.parametrize(
    "results",
    [
        {},
        {"levels": 3},
        {"levels": [{"label": "1 user", "users": "many"}]},
        {"levels": [{"label": "1 user", "throughput_tok_s": "fast", "requests_ok": 1}]},
        {"levels": [], "knee": 7},
        {"levels": [{"badges": [{"code": 1, "label": 2, "why": 3}]}]},
    ],
)
def test_a_damaged_saved_test_is_no_exception(open_page: OpenPage, results: dict[str, Any]) -> None:
    at = run_page(open_page, results=results)
    assert not at.exception


def test_settings_of_another_version_leave_the_numbers(open_page: OpenPage) -> None:
    at = run_page(open_page, config={"profile": "spiral"})
    assert not at.exception and "590" in part(at, "runs_load_result")


def test_only_load_tests_are_read_as_such() -> None:
    assert saved_load(fakes.saved_run()) is None
    assert saved_load(shots.saved()) == replace(shots.RESULTS)
