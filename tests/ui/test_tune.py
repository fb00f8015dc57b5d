"""Tuning: knobs and their prediction, an apply at every moment, experiments, and profiles."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from components import tune_figures, tune_load, tune_results
from components.tune_draft import EXPERIMENTS, PROFILES
from engine.cli import build_parser
from engine.cli.tune import config_of
from engine.config import Device, LoadTestConfig, ServerConfig
from engine.errors import AlreadyRunning
from engine.load.results import LoadResults
from engine.server.state import KvCapacity, ServerSnapshot
from engine.store import Run, RunStore, new_run
from engine.tuning.estimate import Estimate
from engine.tuning.knobs import KNOBS
from engine.tuning.prediction import Prediction, Refusal
from engine.tuning.profiles import WORKSHOP, WORKSHOP_LOAD, Profiles
from engine.tuning.study import SHORT_LOAD, Sampler, StudyConfig, StudyKind, StudyState, Trial, TrialState, TuneSnapshot
from tests.ui import fakes, tuned
from tests.ui.conftest import OpenPage
from tests.ui.page import (
    HOSTILE,
    assert_no_live_markup,
    errors,
    has_a_lone_zero,
    keys,
    labels,
    part,
    press,
    said,
    table,
)

APPLY, START, BACK = "Apply and measure", "Start the experiment", "Back to the last configuration"
TRYING = "Configurations are being tried."
BUSY = AlreadyRunning(f"{TRYING} {HOSTILE}", "Wait until it is over.")
SEQS = "tune_max_num_seqs_1_0"


def opened(
    open_page: OpenPage,
    snapshot: TuneSnapshot | None = None,
    server: ServerSnapshot = fakes.READY,
    device: Device = Device.CPU,
) -> tuple[fakes.FakeLab, AppTest]:
    lab = fakes.make_lab(server, device=device)
    lab.tuning.current = snapshot or TuneSnapshot()
    lab.tuning.predicted = tuned.PREDICTED
    lab.tuning.hardware = lab.environment.hardware
    return lab, open_page(lab, "tune")


def go_to(at: AppTest, section: str) -> AppTest:
    return at.segmented_control(key="tune_section").set_value(section).run()


def study_of(lab: fakes.FakeLab) -> StudyConfig:
    """What was started."""
    (name, config), *_ = lab.tuning.made
    assert name == "start"
    assert isinstance(config, StudyConfig)
    return config


# -- turn a knob


def test_every_knob_of_this_machine_has_a_widget_and_says_what_it_trades(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    assert not at.exception
    words = said(at)
    for knob in lab.tuning.knobs(ServerConfig()):
        assert (f"tune_{knob.name}_1_0" in keys(at)) == knob.offered
        assert (knob.trades if knob.offered else knob.refused) in words


def test_a_gpu_has_its_own_knobs(open_page: OpenPage) -> None:
    _, at = opened(open_page, device=Device.CUDA)
    assert not at.exception
    assert {"tune_gpu_memory_utilization_1_0", "tune_attention_backend_1_0"} <= keys(at)


def test_the_prediction_follows_the_knob_before_anything_restarts(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    assert "What runs now" in part(at, "tune_card")
    at.select_slider(key=SEQS).set_value("8 requests").run()
    card = part(at, "tune_card")
    assert lab.tuning.asked[-1] == {"max_num_seqs": 8}
    for words in ("max_num_seqs 8", "requests of 2,048 tokens at once", "45.5 would fit", "2.00 GiB", "728", "93,184"):
        assert words in card
    assert "24 s" in card and "Exact." in card and "now" not in card
    assert lab.tuning.made == [] and lab.supervisor.made == []


def test_what_it_is_now_stands_beside_what_it_will_be(open_page: OpenPage) -> None:
    _, at = opened(open_page, server=replace(fakes.READY, capacity=KvCapacity(46_592, 128, 364, 22.8)))
    assert "of 128 tokens, now 364" in part(at, "tune_card") and "now 46,592" in part(at, "tune_card")


def test_what_is_not_known_before_is_a_dash(open_page: OpenPage) -> None:
    lab, at = opened(open_page, server=replace(fakes.READY, capacity=KvCapacity()))
    lab.tuning.predicted = Prediction(warnings=("The model is not on this machine yet.",))
    card = part(at.run(), "tune_card")
    assert "—" in card and "not on this machine yet" in card and "no restart was timed yet" in card
    assert not has_a_lone_zero(card)


def test_what_can_not_start_is_refused_with_its_reason(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    lab.tuning.predicted = Prediction(refusals=(Refusal(f"Below max_num_seqs. {HOSTILE}", "Set the first."),))
    at.select_slider(key=SEQS).set_value("8 requests").run()
    assert f"Below max_num_seqs. {HOSTILE}" in errors(at)[0] and "Set the first." in errors(at)[0]
    assert APPLY not in labels(at)
    assert_no_live_markup(at)


def test_settings_that_contradict_each_other_are_a_message(
    open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = fakes.make_lab(fakes.READY)
    lab.tuning.predicted = tuned.PREDICTED
    at = open_page(lab, "tune")
    monkeypatch.setattr(lab.tuning, "knobs", lambda config: _raise(BUSY))
    assert BUSY.cause in errors(at.run())[0]


def _raise(error: Exception) -> Any:
    raise error


def test_apply_sends_the_change_and_the_load(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    at.select_slider(key=SEQS).set_value("8 requests")
    at.toggle(key="tune_enable_prefix_caching_1_0").set_value(False)
    at.number_input(key="tune_apply_users").set_value(5)
    press(at.run(), APPLY)
    assert not at.exception and not at.error
    assert study_of(lab) == StudyConfig(
        StudyKind.APPLY,
        ServerConfig(),
        replace(SHORT_LOAD, users=(5,)),
        candidates=({"max_num_seqs": 8, "enable_prefix_caching": False},),
    )


def test_a_knob_can_be_left_to_vllm_again(open_page: OpenPage) -> None:
    running = ServerConfig(max_num_batched_tokens=512, enforce_eager=True, kv_cache_gib=3)
    lab, at = opened(open_page, server=replace(fakes.READY, config=running))
    assert at.select_slider(key="tune_kv_cache_gib_1_0").value == "3 GiB"
    at.select_slider(key="tune_max_num_batched_tokens_1_0").set_value("vLLM's own")
    at.selectbox(key="tune_enforce_eager_1_0").set_value("compiled, with graphs")
    press(at.run(), APPLY)
    assert study_of(lab).candidates == ({"max_num_batched_tokens": None, "enforce_eager": False},)


def test_it_can_restart_without_measuring(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    at.select_slider(key=SEQS).set_value("8 requests")
    at.toggle(key="tune_measure").set_value(False)
    press(at.run(), "Apply")
    assert study_of(lab).measure is False


def test_how_long_it_takes_is_said_before(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    lab.tuning.expected = Estimate(1, 25.0, 12.0, 49.0)
    at.select_slider(key=SEQS).set_value("8 requests").run()
    assert "Measured with 20 users for 10 s, 64 prompt and 50 output tokens. About 50 s." in said(at)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (fakes.READY, "Nothing is changed: turn a knob first."),
        (fakes.STARTING, "Waits until the start or the stop is over."),
        (fakes.ATTACHED, "attached to a server that it can't restart"),
        (fakes.READY_RESERVED, fakes.MEASURING[:-1]),
    ],
)
def test_a_button_that_is_off_says_why(open_page: OpenPage, server: ServerSnapshot, words: str) -> None:
    _, at = opened(open_page, server=server)
    assert not at.exception
    assert words in at.button(key="tune_apply").help.replace("\\", "")
    assert at.button(key="tune_apply").disabled


def test_without_a_server_it_starts_and_measures_one(open_page: OpenPage) -> None:
    lab, at = opened(open_page, server=fakes.STOPPED)
    press(at, "Start and measure")
    assert study_of(lab).candidates == ({},)


def test_the_knobs_go_back_to_what_runs(open_page: OpenPage) -> None:
    _, at = opened(open_page)
    at.select_slider(key=SEQS).set_value("8 requests").run()
    press(at, "As it runs")
    assert at.select_slider(key="tune_max_num_seqs_1_1").value == "32 requests"
    assert "As it runs" not in labels(at)


def test_a_start_by_anybody_sets_the_knobs_to_what_runs(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    at.select_slider(key=SEQS).set_value("8 requests").run()
    lab.supervisor.current = replace(fakes.READY, generation=2, config=ServerConfig(max_num_seqs=64))
    at.run()
    assert at.select_slider(key="tune_max_num_seqs_2_1").value == "64 requests"


def test_a_refused_start_is_a_message(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    lab.tuning.error = BUSY
    at.select_slider(key=SEQS).set_value("8 requests").run()
    press(at, APPLY)
    assert BUSY.cause in errors(at)[0] and BUSY.remedy in errors(at)[0]
    assert_no_live_markup(at)


# -- an apply at every moment


def test_while_it_applies_it_shows_the_step_and_the_phases(open_page: OpenPage) -> None:
    lab, at = opened(open_page, tuned.APPLYING, replace(fakes.STARTING, reserved=TRYING))
    words = said(at)
    for step in ("✓ Measure as it was", "2 Restart", "3 Measure again"):
        assert step in " ".join(words.split())
    assert "max_num_seqs 32: Restarting the server · 21 s · about 40 s left" in words
    assert "Load the weights" in part(at, "tune_phases")
    assert labels(at) == {"Cancel"}
    press(at, "Cancel")
    assert lab.tuning.names() == ["cancel"]


def test_the_difference_is_told_in_words_and_numbers_before_and_after(open_page: OpenPage) -> None:
    _, at = opened(open_page, tuned.APPLIED)
    assert not at.exception
    outcome = " ".join(part(at, "tune_outcome").split())
    assert "Applied: max_num_seqs 32" in outcome
    assert "TTFT p95 fell from 1.3 s to 400 ms" in outcome
    assert "1.3 s → 400 ms ▲ −69% better" in outcome
    assert "180 → 310 tok/s ▲ +72% better" in outcome
    assert "18.0 → 24.0 ms ▼ +33% worse" in outcome
    assert "waited 900 ms on average until the server took it up" in outcome


def test_predicted_stands_against_actual(open_page: OpenPage) -> None:
    _, at = opened(open_page, tuned.APPLIED)
    rows = " ".join(table(at).split())
    assert "Blocks 728 blocks 728 blocks exact" in rows
    assert "Restart 24 s 26 s —" in rows
    assert "exactly the KV cache that was predicted" in part(at, "tune_outcome")


def test_a_prediction_that_was_off_says_by_how_much(open_page: OpenPage) -> None:
    off = replace(tuned.AFTER, actual=replace(tuned.ACTUAL, num_blocks=700, tokens=89_600, max_concurrency=None))
    study = tuned.apply_study(StudyState.DONE, tuned.BEFORE, off)
    _, at = opened(open_page, replace(tuned.APPLIED, study=study))
    assert "Blocks 728 blocks 700 blocks +4.0%" in " ".join(table(at).split())
    assert "off by 4.0% at most" in part(at, "tune_outcome")
    assert "Full-length requests 45.5× — —" in " ".join(table(at).split())


def test_one_click_goes_back(open_page: OpenPage) -> None:
    lab, at = opened(open_page, tuned.APPLIED)
    assert "max_num_seqs 8" in at.button(key="tune_back").help.replace("\\", "")
    press(at, BACK)
    assert lab.tuning.made == [("go_back", None)]


def test_a_failed_restart_says_why_and_that_the_last_good_one_runs(open_page: OpenPage) -> None:
    _, at = opened(open_page, tuned.WENT_BACK)
    assert "the last good configuration runs again" in said(at)
    assert "The KV cache is too small for one request of the full length." in errors(at)[0]
    assert "tune_outcome" not in keys(at) and BACK not in labels(at)


def test_an_apply_that_was_not_measured_before_has_no_difference(open_page: OpenPage) -> None:
    study = tuned.apply_study(StudyState.DONE, replace(tuned.AFTER, number=0))
    _, at = opened(open_page, replace(tuned.APPLIED, study=study, difference=None))
    outcome = part(at, "tune_outcome")
    assert "310 tok/s" in outcome and "→" not in outcome
    bare = tuned.apply_study(StudyState.DONE, replace(tuned.AFTER, number=0, level=None), measure=False)
    _, at = opened(open_page, replace(tuned.APPLIED, study=bare, difference=None))
    assert "tok/s" not in part(at, "tune_outcome") and "exact" in table(at)


def test_text_from_outside_is_text(open_page: OpenPage) -> None:
    died = replace(tuned.DIED, error=f"Died. {HOSTILE}", remedy=HOSTILE)
    study = tuned.apply_study(StudyState.FAILED, tuned.BEFORE, died)
    for error in (None, f"Lost. {HOSTILE}"):
        _, at = opened(open_page, replace(tuned.WENT_BACK, study=study, error=error, went_back=HOSTILE))
        assert not at.exception
        assert_no_live_markup(at)


# -- experiments


def test_the_workshops_set_is_ready_to_start(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    lab.tuning.expected = Estimate(6, 25.0, 12.0, 240.0)
    go_to(at, EXPERIMENTS)
    assert "6 configurations. About 4 min." in said(at)
    assert all(one.note in table(at) for one in WORKSHOP)
    press(at, START)
    config = study_of(lab)
    assert config.kind == StudyKind.SET and config.workload == WORKSHOP_LOAD
    assert config.labels == tuple(one.name for one in WORKSHOP)


def test_a_grid_is_every_combination_of_the_chosen_values(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    go_to(at, EXPERIMENTS)
    at.segmented_control(key="tune_kind").set_value("Grid").run()
    at.pills(key="tune_values_max_num_seqs").set_value(["4", "8"])
    at.multiselect(key="tune_knobs").set_value(["max_num_seqs", "enable_prefix_caching"]).run()
    at.number_input(key="tune_slo_slo_ttft_ms").set_value(400.0).run()
    assert "4 configurations" in said(at)
    press(at, START)
    config = study_of(lab)
    assert config.kind == StudyKind.GRID
    assert config.space == {"max_num_seqs": (4, 8), "enable_prefix_caching": (True, False)}
    assert config.slo.ttft_ms == 400.0


def test_a_search_says_its_budget_before_it_starts(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    lab.tuning.expected = Estimate(5, 25.0, 12.0, 185.0, at_least=True)
    go_to(at, EXPERIMENTS)
    at.segmented_control(key="tune_kind").set_value("Search").run()
    at.number_input(key="tune_budget").set_value(5)
    at.selectbox(key="tune_sampler").set_value("Latency against throughput (NSGA-II)").run()
    assert "5 configurations of 9. At least 3 min." in said(at)
    press(at, START)
    config = study_of(lab)
    assert (config.kind, config.budget, config.sampler) == (StudyKind.SEARCH, 5, Sampler.NSGA2)


def test_what_can_not_start_is_counted_before(open_page: OpenPage) -> None:
    lab, at = opened(open_page)
    lab.tuning.predicted = Prediction(refusals=(Refusal("Too long.", ""),))
    go_to(at, EXPERIMENTS)
    assert "6 of them can't start and will be skipped, such as: Too long." in said(at)


def test_nothing_chosen_is_a_reason_not_to_start(open_page: OpenPage) -> None:
    _, at = opened(open_page)
    go_to(at, EXPERIMENTS)
    at.pills(key="tune_presets").set_value([]).run()
    assert START not in labels(at)
    assert "No configuration to try was given." in said(at)


def test_a_running_experiment_shows_its_queue(open_page: OpenPage) -> None:
    lab, at = opened(open_page, tuned.SEARCHING, replace(fakes.READY, reserved=TRYING))
    assert not at.exception
    assert "enable_prefix_caching on: Measuring · 2 min 40 s · about 4 min left" in said(at)
    assert "Measuring" in table(at)
    press(at, "Pause")
    press(at, "Cancel")
    assert lab.tuning.names() == ["pause", "cancel"]
    lab.tuning.current = replace(tuned.SEARCHING, pausing=True)
    assert "Pause" not in labels(at.run())
    assert "pauses after this one" in said(at)


def test_profiles_can_be_read_while_an_experiment_runs(open_page: OpenPage, tmp_path: Path) -> None:
    lab, at = opened(open_page, tuned.SEARCHING)
    lab.store = RunStore(tmp_path / "runs.db")  # type: ignore[assignment]
    go_to(at, PROFILES)
    assert not at.exception
    assert "Balanced" in said(at)


def test_a_paused_one_can_be_resumed_or_ended(open_page: OpenPage) -> None:
    lab, at = opened(open_page, tuned.PAUSED)
    assert "4 of 10 tried" in said(at)
    assert START not in labels(at)
    press(at, "Resume")
    press(at, "End it here")
    assert lab.tuning.names() == ["resume", "cancel"]


def test_a_paused_apply_can_be_resumed_too(open_page: OpenPage) -> None:
    study = tuned.apply_study(StudyState.PAUSED, *tuned.APPLYING.trials)
    lab, at = opened(open_page, replace(tuned.APPLYING, state=StudyState.PAUSED, study=study))
    assert not at.exception
    press(at, "Resume")
    assert lab.tuning.names() == ["resume"]


def test_the_recommendation_comes_with_lines_to_copy(open_page: OpenPage) -> None:
    _, at = opened(open_page, tuned.FOUND)
    recommended = part(at, "tune_recommended")
    assert "308" in recommended and tuned.RECOMMENDED.words in recommended
    assert tuned.RECOMMENDED.command in said(at) and "max-num-seqs: 32" in said(at)
    assert "★ ◆" in table(at)


def test_the_recommended_configuration_sets_the_knobs(open_page: OpenPage) -> None:
    found = replace(tuned.RECOMMENDED, config=ServerConfig(max_num_seqs=64))
    lab, at = opened(open_page, replace(tuned.FOUND, recommendation=found))
    press(at, "Use it")
    assert not at.exception
    assert at.select_slider(key="tune_max_num_seqs_1_1").value == "64 requests"
    press(at, APPLY)
    assert study_of(lab).candidates == ({"max_num_seqs": 64},)


@pytest.mark.parametrize("view", ["Bars", "Pareto front", "What matters"])
def test_every_view_has_words_for_its_picture(open_page: OpenPage, view: str) -> None:
    _, at = opened(open_page, tuned.FOUND)
    at.segmented_control(key="tune_view_Recommendation").set_value(view).run()
    assert not at.exception
    words = said(at)
    assert ("max_num_seqs): 94%" if view == "What matters" else "308 tok/s, TTFT p95 410 ms") in words


def test_a_measurement_that_was_used_again_says_its_age(open_page: OpenPage) -> None:
    _, at = opened(open_page, tuned.APPLIED)
    assert "earlier, on the same start" not in said(at)
    study = tuned.apply_study(StudyState.DONE, replace(tuned.BEFORE, measured_ago_s=125.0), tuned.AFTER)
    _, at = opened(open_page, replace(tuned.APPLIED, study=study))
    assert "Measured 2 min 05 s earlier, on the same start of the server: “as it was”." in said(at)


def test_one_is_one_request() -> None:
    seqs = next(knob for knob in KNOBS if knob.name == "max_num_seqs")
    assert [seqs.show(value) for value in (1, 2)] == ["1 request", "2 requests"]
    load = replace(SHORT_LOAD, users=(1,), requests=1, duration_s=None)
    assert tune_load.in_words(load).startswith("1 user, 1 request, ")


def test_trials_that_failed_or_were_refused_say_why_and_are_in_no_chart(open_page: OpenPage) -> None:
    study = tuned.FOUND.study
    assert study is not None
    died = replace(tuned.DIED, number=len(study.trials), error=f"Too small. {HOSTILE}")
    _, at = opened(open_page, replace(tuned.FOUND, study=replace(study, trials=(*study.trials, died))))
    assert f"max_num_seqs 32: Too small. {HOSTILE}" in said(at)
    assert "Failed" in table(at)
    assert died not in tune_figures.measured([*study.trials, died])
    assert_no_live_markup(at)


def test_without_any_measurement_there_is_no_recommendation_and_no_zero(open_page: OpenPage) -> None:
    config = StudyConfig(StudyKind.GRID, space={"max_num_seqs": (32,)})
    study = replace(tuned.searched(0), config=config, trials=(replace(tuned.DIED, number=0),))
    _, at = opened(open_page, TuneSnapshot(StudyState.DONE, study))
    assert not at.exception
    assert "tune_recommended" not in keys(at)
    assert not has_a_lone_zero(table(at))


def test_a_cancelled_and_a_failed_experiment_say_so(open_page: OpenPage) -> None:
    _, at = opened(open_page, replace(tuned.FOUND, state=StudyState.CANCELLED))
    measured = len(tune_figures.measured(tuned.FOUND.trials))
    assert f"Cancelled. Measured before, shown below and saved: {measured} configurations." in said(at)
    study = replace(tuned.searched(0), trials=(Trial(0, {"max_num_seqs": 8}, state=TrialState.CANCELLED),))
    _, at = opened(open_page, TuneSnapshot(StudyState.CANCELLED, study))
    assert "Cancelled before anything was measured." in said(at) and "saved" not in said(at)
    _, at = opened(open_page, replace(tuned.FOUND, state=StudyState.FAILED, error=f"Lost. {HOSTILE}", remedy="Look."))
    assert f"Lost. {HOSTILE}" in errors(at)[0]
    assert_no_live_markup(at)


@pytest.mark.parametrize(
    "config",
    [
        StudyConfig(StudyKind.GRID, space={"max_num_seqs": (4, 8), "enable_prefix_caching": (True, False)}),
        StudyConfig(
            StudyKind.GRID, space={"max_num_batched_tokens": (None, 512), "gpu_memory_utilization": (0.5, 0.9)}
        ),
        StudyConfig(
            StudyKind.SEARCH,
            ServerConfig(model="owner/name"),
            replace(SHORT_LOAD, users=(5,), duration_s=7.5, slo_ttft_ms=500.0, slo_e2e_ms=5000.0),
            space={"max_num_seqs": (4, 8)},
            budget=7,
            sampler=Sampler.NSGA2,
        ),
        StudyConfig(
            StudyKind.SET,
            workload=replace(WORKSHOP_LOAD, max_tokens=16),
            candidates=tuple(dict(one.changes) for one in WORKSHOP),
            labels=tuple(one.name for one in WORKSHOP),
        ),
    ],
)
def test_the_shown_command_is_the_same_experiment(config: StudyConfig) -> None:
    assert tune_results.has_command(config)
    again = config_of(build_parser().parse_args(shlex.split(tune_results.command(config))[3:]))
    assert again == (replace(config, budget=again.budget) if config.kind != StudyKind.SEARCH else config)


def test_no_command_is_shown_for_what_the_command_line_can_not_do() -> None:
    space: dict[str, tuple[Any, ...]] = {"max_num_seqs": (4, 8)}
    assert not tune_results.has_command(StudyConfig(StudyKind.GRID, ServerConfig(dtype="half"), space=space))
    same = replace(SHORT_LOAD, same_prompt=True)
    assert not tune_results.has_command(StudyConfig(StudyKind.GRID, workload=same, space=space))


# -- profiles


@pytest.fixture
def kept(open_page: OpenPage, tmp_path: Path) -> tuple[fakes.FakeLab, Profiles, AppTest]:
    lab, at = opened(open_page, server=replace(fakes.READY, config=ServerConfig(max_num_seqs=64, port=8123)))
    lab.store = RunStore(tmp_path / "runs.db")  # type: ignore[assignment]
    return lab, Profiles(lab.store), go_to(at, PROFILES)  # type: ignore[arg-type]


Kept = tuple[fakes.FakeLab, Profiles, AppTest]


def own(profiles: Profiles) -> dict[str, ServerConfig]:
    return {profile.name: profile.config for profile in profiles.list() if not profile.preset}


def test_the_workshops_presets_are_there(kept: Kept) -> None:
    _, _, at = kept
    assert not at.exception
    assert all(one.name in said(at) and one.note in said(at) for one in WORKSHOP)
    assert not any(key.startswith("tune_delete") for key in keys(at))


def test_what_runs_is_saved_under_a_name_without_its_port(kept: Kept) -> None:
    _, profiles, at = kept
    at.text_input(key="tune_save_name").set_value("Mine")
    press(at, "Save")
    assert not at.exception and not at.error
    assert own(profiles) == {"Mine": ServerConfig(max_num_seqs=64)}
    assert "max_num_seqs 64" in part(at, "tune_profile_Mine")
    press(at, "Delete")
    assert own(profiles) == {}


def test_the_knobs_can_be_saved_as_they_stand(open_page: OpenPage, tmp_path: Path) -> None:
    lab, at = opened(open_page)
    lab.store = RunStore(tmp_path / "runs.db")  # type: ignore[assignment]
    at.select_slider(key=SEQS).set_value("8 requests").run()
    at.text_input(key="tune_save_name").set_value("Eight")
    press(at, "Save")
    assert own(Profiles(lab.store)) == {"Eight": ServerConfig(max_num_seqs=8)}  # type: ignore[arg-type]


def test_a_name_that_can_not_be_is_a_message(kept: Kept) -> None:
    _, profiles, at = kept
    at.text_input(key="tune_save_name").set_value("Balanced")
    press(at, "Save")
    assert "is one of the lab's own" in errors(at)[0]
    assert own(profiles) == {}


def test_loading_a_profile_sets_the_knobs_and_restarts_nothing(kept: Kept) -> None:
    lab, _, at = kept
    at.button(key="tune_load_Short context").click().run()
    assert not at.exception
    assert at.select_slider(key="tune_max_model_len_1_1").value == "64 tokens"
    assert "From the profile “Short context”." in said(at)
    assert lab.tuning.made == []
    press(at, APPLY)
    assert study_of(lab).candidates == ({"max_model_len": 64, "max_num_seqs": 8},)


def test_a_hostile_name_is_text(kept: Kept) -> None:
    _, profiles, at = kept
    profiles.save(HOSTILE, ServerConfig(), HOSTILE)
    at.run()
    assert not at.exception
    assert HOSTILE in said(at)
    assert_no_live_markup(at)


def test_profiles_are_exported_once_there_are_some(kept: Kept) -> None:
    _, profiles, at = kept
    assert "tune_export_json" not in keys(at)
    profiles.save("Mine", ServerConfig())
    assert {"tune_export_json", "tune_export_yaml"} <= keys(at.run())


def test_profiles_are_imported_and_a_wrong_file_is_a_message(kept: Kept) -> None:
    _, profiles, at = kept
    theirs = b"profiles: {Theirs: {settings: {max_num_seqs: 4}}}"
    bring_in(at, "profiles.yaml", theirs)
    assert not at.error
    assert own(profiles) == {"Theirs": ServerConfig(max_num_seqs=4)}
    bring_in(at, "profiles.json", b'{"profiles": {"X": {"settings": {"rm": 1}}}}')
    assert "has a setting 'rm'" in errors(at)[0]
    bring_in(at, "profiles.yml", bytes(range(256)))
    assert "neither JSON nor YAML" in errors(at)[0]
    assert set(own(profiles)) == {"Theirs"}


def bring_in(at: AppTest, name: str, content: bytes) -> None:
    at.file_uploader(key="tune_import_file").set_value((name, content, "text/plain"))
    next(button for button in at.button if button.form_id == "tune_import").click().run()


# -- a saved trial


def saved_trial(**trial: Any) -> Run:
    assert tuned.AFTER.level is not None
    results = LoadResults(levels=(tuned.AFTER.level,)).to_dict() | {"trial": tuned.AFTER.to_dict() | trial}
    config = {"study": "s", "trial": 1, "changes": {}, "server": {}, "workload": SHORT_LOAD.to_dict()}
    run = new_run("tune", "max_num_seqs 32: 310 tok/s", "done", config=config, environment={}, results=results)
    return replace(run, id="trial")


def test_a_saved_trial_shows_its_load_test_and_its_prediction(open_page: OpenPage) -> None:
    at = open_page(fakes.make_lab(runs=[saved_trial()]), "runs", run="trial")
    assert not at.exception
    assert "310" in part(at, "runs_load_result")
    assert "exactly the KV cache that was predicted" in part(at, "runs_tune")
    assert "Blocks 728 blocks 728 blocks exact" in " ".join(table(at).split())


@pytest.mark.parametrize("damage", [{"predicted": {"num_blocks": "many"}}, {"actual": {"x": 1}}, {"actual": None}])
def test_a_damaged_trial_still_shows_what_was_measured(open_page: OpenPage, damage: dict[str, Any]) -> None:
    at = open_page(fakes.make_lab(runs=[saved_trial(**damage)]), "runs", run="trial")
    assert not at.exception
    assert "runs_load_result" in keys(at) and "runs_tune" not in keys(at)


def test_load_is_told_in_words() -> None:
    from components.tune_load import in_words

    assert in_words(LoadTestConfig(users=(1,), duration_s=5)) == "1 user for 5 s, 64 prompt and 50 output tokens"
    rated = LoadTestConfig(profile="poisson", users=(), rates=(2.5,), requests=1000)
    assert in_words(rated) == "2.5 requests/s, 1,000 requests, 64 prompt and 50 output tokens"
