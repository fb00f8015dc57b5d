"""The tuning service over a fake server (a real process) and a scripted load: queue, pause, cancel, kill, going back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.config import Endpoint, LoadTestConfig, ServerConfig
from engine.errors import AlreadyRunning, ConfigError, DataFolderInUse, LabError, RequestInterrupted, StoreError
from engine.exclusive import told
from engine.load.measure import Cancelled
from engine.load.results import LevelResult, LoadResults
from engine.server.state import PHASE_LABELS, Phase, ServerState
from engine.tuning import runner as runner_module
from engine.tuning import studies, trying, way_back
from engine.tuning.runner import TuningRunner
from engine.tuning.study import StudyConfig, StudyKind, StudyState, TrialState, TuneSnapshot
from tests.supervised import Lab, eventually
from tests.tuned import level

BASE = ServerConfig(model="owner/name", max_num_seqs=4)
LOAD = LoadTestConfig(users=(4,), requests=4)
SPACE: dict[str, tuple[Any, ...]] = {"max_num_seqs": (2, 4, 8)}


def grid(**more: Any) -> StudyConfig:
    return StudyConfig(**({"kind": StudyKind.GRID, "base": BASE, "workload": LOAD, "space": SPACE} | more))


def apply(**changes: Any) -> StudyConfig:
    return StudyConfig(StudyKind.APPLY, BASE, LOAD, candidates=(changes,))


class ScriptedLoad:
    """Ten tok/s for each sequence that the server may run; ``before`` is called when a measurement begins."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.served: list[ServerConfig] = []
        self.before: Callable[[], None] = lambda: None
        self.result: Callable[[ServerConfig], LevelResult] = lambda served: level(10.0 * served.max_num_seqs)
        self.stopped: Callable[[], bool] = lambda: False

    def __call__(
        self,
        endpoint: Endpoint,
        config: LoadTestConfig,
        board: Any = None,
        cancelled: Any = None,
        watch_cores: Any = None,
    ) -> LoadResults:
        served = self.lab.snapshot().config
        assert served is not None and endpoint.model == "owner/name" and config == LOAD
        self.served.append(served)
        self.stopped = cancelled
        self.before()
        if cancelled():
            raise Cancelled
        return LoadResults(levels=(self.result(served),))


@pytest.fixture
def load(lab: Lab) -> ScriptedLoad:
    return ScriptedLoad(lab)


@pytest.fixture
def runner(lab: Lab, load: ScriptedLoad) -> Iterator[TuningRunner]:
    made = TuningRunner(lab.settings, lab.supervisor, lab.store, load=load)
    yield made
    made.close()


def again(lab: Lab, load: ScriptedLoad) -> TuningRunner:
    """As a later process finds it."""
    return TuningRunner(lab.settings, lab.supervisor, lab.store, load=load)


def ended(runner: TuningRunner) -> TuneSnapshot:
    runner.wait()
    assert not runner.snapshot().running
    return runner.snapshot()


def states(snapshot: TuneSnapshot) -> list[TrialState]:
    return [trial.state for trial in snapshot.trials]


# -- a grid


def test_every_configuration_is_measured_saved_and_the_best_recommended(
    lab: Lab, load: ScriptedLoad, runner: TuningRunner
) -> None:
    lab.start_and_wait(BASE)
    runner.start(grid())
    found = ended(runner)
    assert (found.state, found.error) == (StudyState.DONE, None)
    assert states(found) == [TrialState.DONE] * 3
    assert [served.max_num_seqs for served in load.served] == [2, 4, 8]
    assert found.recommendation is not None and found.recommendation.trial == 2 and found.recommendation.meets_slo
    assert "choose max_num_seqs 8: 80 tok/s" in found.recommendation.words
    assert "100% more throughput than before" in found.recommendation.words
    assert found.pareto == (2,)
    runs = lab.store.list("tune")
    assert {run.id for run in runs} == {trial.run_id for trial in found.trials}
    assert runs[0].config["server"]["max_num_seqs"] == 8 and runs[0].results["levels"][0]["throughput_tok_s"] == 80.0
    eventually(lambda: lab.snapshot().ready)
    assert lab.snapshot().config == BASE  # as it was


def test_actual_numbers_of_each_start_are_kept(lab: Lab, runner: TuningRunner) -> None:
    runner.start(grid(space={"max_num_seqs": (2,)}), restore=False)
    (trial,) = ended(runner).trials
    assert trial.actual is not None and trial.actual.tokens == 93_184
    assert trial.restart_s is not None and trial.restart_s > 0 and trial.measure_s is not None
    assert trial.attempts == 1


def test_what_is_refused_is_not_tried_and_the_others_go_on(load: ScriptedLoad, runner: TuningRunner) -> None:
    runner.start(grid(space={"max_num_seqs": (8, 2), "max_num_batched_tokens": (4,)}), restore=False)
    found = ended(runner)
    assert states(found) == [TrialState.REFUSED, TrialState.DONE]
    assert "below max_num_seqs" in found.trials[0].error and found.trials[0].remedy
    assert [served.max_num_seqs for served in load.served] == [2]


def test_a_start_that_fails_is_told_and_the_others_go_on(lab: Lab, load: ScriptedLoad, runner: TuningRunner) -> None:
    load.before = lambda: lab.at(Phase.WEIGHTS, "die")
    runner.start(grid(), restore=False)
    found = ended(runner)
    assert states(found) == [TrialState.DONE, TrialState.FAILED, TrialState.FAILED]
    assert found.trials[1].error and found.state == StudyState.DONE


def test_a_load_of_which_nothing_is_answered_is_a_failed_trial(load: ScriptedLoad, runner: TuningRunner) -> None:
    load.result = lambda served: level(0, requests_ok=0, requests_failed=4, failures=(("It was refused.", 4),))
    runner.start(grid(space={"max_num_seqs": (2,)}), restore=False)
    (trial,) = ended(runner).trials
    assert (trial.state, trial.error) == (TrialState.FAILED, "It was refused.")
    assert trial.run_id is not None
    assert runner.snapshot().recommendation is None


def test_a_server_that_dies_under_the_load_is_named_with_its_cause(
    lab: Lab, load: ScriptedLoad, runner: TuningRunner
) -> None:
    def die() -> None:
        pid = lab.snapshot().pid
        assert pid is not None
        import os
        import signal

        os.killpg(pid, signal.SIGKILL)
        raise RequestInterrupted("The stream ended.", "Look.")

    load.before = die
    runner.start(grid(space={"max_num_seqs": (2,)}), restore=False)
    (trial,) = ended(runner).trials
    assert trial.state == TrialState.FAILED and trial.error != "The stream ended."


# -- a search


def test_a_search_tries_its_budget_and_says_what_matters(load: ScriptedLoad, runner: TuningRunner) -> None:
    space = {"max_num_seqs": (1, 2, 4, 8), "enable_prefix_caching": (True, False)}
    runner.start(grid(kind=StudyKind.SEARCH, space=space, budget=4), restore=False)
    found = ended(runner)
    assert states(found) == [TrialState.DONE] * 4
    assert found.trials[0].changes == {"max_num_seqs": 4, "enable_prefix_caching": True}  # what runs comes first
    assert sum(found.importance.values()) == pytest.approx(1)
    assert found.recommendation is not None


def test_the_slo_decides_what_is_recommended(load: ScriptedLoad, runner: TuningRunner) -> None:
    load.result = lambda served: level(10.0 * served.max_num_seqs, 100.0 * served.max_num_seqs)
    runner._bench.load = lambda endpoint, config, *rest: load(endpoint, LOAD, *rest)  # the load itself is the same
    two: dict[str, Any] = {"max_num_seqs": (2, 4)}
    runner.start(grid(workload=replace(LOAD, slo_ttft_ms=300.0), space=two), restore=False)
    found = ended(runner).recommendation
    assert found is not None and (found.trial, found.meets_slo) == (0, True)
    assert found.words.startswith("For TTFT p95 ≤ 300 ms choose max_num_seqs 2: 20 tok/s at TTFT p95 200 ms.")


# -- apply


def test_an_apply_measures_before_and_after_and_explains_the_difference(
    lab: Lab, load: ScriptedLoad, runner: TuningRunner
) -> None:
    lab.start_and_wait(BASE)
    runner.start(apply(max_num_seqs=8))
    found = ended(runner)
    assert [served.max_num_seqs for served in load.served] == [4, 8]
    assert found.difference is not None and "Throughput rose from 40 tok/s to 80 tok/s" in found.difference.headline
    assert found.previous == BASE and found.went_back == ""
    assert lab.snapshot().config == replace(BASE, max_num_seqs=8)


def test_the_next_apply_measures_the_running_server_not_again(
    lab: Lab, load: ScriptedLoad, runner: TuningRunner
) -> None:
    lab.start_and_wait(BASE)
    runner.start(apply(max_num_seqs=8))
    ended(runner)
    runner.start(replace(apply(max_num_seqs=2), base=replace(BASE, max_num_seqs=8)))
    found = ended(runner)
    assert [served.max_num_seqs for served in load.served] == [4, 8, 2]
    assert found.difference is not None and "from 80 tok/s to 20 tok/s" in found.difference.headline


def test_a_measurement_is_used_again_only_while_it_is_young(
    lab: Lab, load: ScriptedLoad, runner: TuningRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.start_and_wait(BASE)
    runner.start(apply(max_num_seqs=8))
    assert [trial.measured_ago_s for trial in ended(runner).trials] == [None, None]
    following = replace(apply(max_num_seqs=8), base=replace(BASE, max_num_seqs=8))
    runner.start(following)
    young = ended(runner).trials
    assert len(load.served) == 2 and all(trial.measured_ago_s is not None for trial in young)
    kept = studies.kept(lab.store)[0].trials
    assert [one.measured_ago_s for one in kept] == [one.measured_ago_s for one in young]
    monkeypatch.setattr(trying, "MOST_AGE_S", -1.0)
    runner.start(following)
    assert len(load.served) == 2 and ended(runner).trials[0].measured_ago_s is None
    assert [served.max_num_seqs for served in load.served] == [4, 8, 8, 8]


def test_the_way_back_outlives_the_app(lab: Lab, load: ScriptedLoad, runner: TuningRunner) -> None:
    lab.start_and_wait(BASE)
    runner.start(replace(apply(max_num_seqs=8), measure=False))
    ended(runner)
    later = again(lab, load)
    assert later.snapshot().previous == BASE
    later.go_back()
    eventually(lambda: lab.snapshot().ready and lab.snapshot().config == BASE)
    assert again(lab, load).snapshot().previous == replace(BASE, max_num_seqs=8)
    lab.store.put_document(way_back.KIND, way_back.NAME, {"max_num_seqs": "many"})
    assert again(lab, load).snapshot().previous is None


def test_one_click_goes_back_and_forth(lab: Lab, runner: TuningRunner) -> None:
    with pytest.raises(ConfigError, match="no earlier configuration"):
        runner.go_back()
    lab.start_and_wait(BASE)
    runner.start(apply(max_num_seqs=8))
    ended(runner)
    runner.go_back()
    eventually(lambda: lab.snapshot().ready and lab.snapshot().config == BASE)
    assert runner.snapshot().previous == replace(BASE, max_num_seqs=8)


def test_an_apply_that_fails_goes_back_by_itself_and_says_so(
    lab: Lab, load: ScriptedLoad, runner: TuningRunner
) -> None:
    lab.start_and_wait(BASE)
    build = lab.supervisor._tools.build

    def break_the_second(config: ServerConfig, *args: Any, **more: Any) -> Any:
        lab.words = ["--at", "weights", "--do", "die"] if config.max_num_seqs == 8 else []
        return build(config, *args, **more)

    lab.supervisor._tools = replace(lab.supervisor._tools, build=break_the_second)
    runner.start(apply(max_num_seqs=8))
    found = ended(runner)
    assert states(found) == [TrialState.DONE, TrialState.FAILED]
    assert found.went_back == "The server did not run with max_num_seqs 8: the last good configuration runs again."
    assert lab.snapshot().ready and lab.snapshot().config == BASE
    assert found.previous is None


def test_an_apply_that_is_refused_leaves_the_server_alone(lab: Lab, runner: TuningRunner) -> None:
    before = lab.start_and_wait(BASE)
    runner.start(apply(max_num_batched_tokens=1))
    found = ended(runner)
    assert states(found) == [TrialState.DONE, TrialState.REFUSED] and found.went_back == ""
    assert lab.snapshot().pid == before.pid


def test_an_apply_without_measuring_only_restarts(lab: Lab, load: ScriptedLoad, runner: TuningRunner) -> None:
    lab.start_and_wait(BASE)
    runner.start(replace(apply(max_num_seqs=8), measure=False))
    found = ended(runner)
    assert states(found) == [TrialState.DONE] and load.served == []
    assert found.previous == BASE


# -- pause, cancel, the end of the process


def test_a_pause_waits_for_the_trial_and_can_be_resumed(lab: Lab, load: ScriptedLoad, runner: TuningRunner) -> None:
    load.before = runner.pause
    runner.start(grid())
    found = ended(runner)
    assert (found.state, states(found)) == (StudyState.PAUSED, [TrialState.DONE, TrialState.QUEUED, TrialState.QUEUED])
    assert not lab.snapshot().reserved
    load.before = lambda: None
    runner.resume()
    assert states(ended(runner)) == [TrialState.DONE] * 3
    assert len(load.served) == 3


def test_a_cancel_ends_at_once_and_keeps_what_was_measured(lab: Lab, load: ScriptedLoad, runner: TuningRunner) -> None:
    def cancel_in_the_second() -> None:
        if len(load.served) == 2:
            runner.cancel()

    load.before = cancel_in_the_second
    runner.start(grid(), restore=False)
    found = ended(runner)
    assert found.state == StudyState.CANCELLED
    assert states(found) == [TrialState.DONE, TrialState.CANCELLED, TrialState.CANCELLED]
    assert found.recommendation is not None and len(lab.store.list("tune")) == 1
    with pytest.raises(ConfigError, match="No study is paused"):
        runner.resume()


def test_a_cancel_while_the_server_starts_does_not_wait_for_it(lab: Lab, runner: TuningRunner) -> None:
    lab.at(Phase.WEIGHTS, "hang")
    runner.start(grid(), restore=False)
    eventually(lambda: lab.snapshot().message == PHASE_LABELS[Phase.WEIGHTS])
    runner.cancel()
    assert ended(runner).state == StudyState.CANCELLED


def test_a_paused_study_can_be_given_up(load: ScriptedLoad, runner: TuningRunner) -> None:
    load.before = runner.pause
    runner.start(grid(), restore=False)
    assert ended(runner).resumable
    runner.cancel()
    found = runner.snapshot()
    assert found.state == StudyState.CANCELLED
    assert states(found) == [TrialState.DONE, TrialState.CANCELLED, TrialState.CANCELLED]


def test_an_interrupt_begins_the_trial_again_when_resumed(lab: Lab, load: ScriptedLoad, runner: TuningRunner) -> None:
    interrupting = threading.Thread(target=runner.interrupt)

    def interrupt_in_the_second() -> None:
        if len(load.served) == 2:
            interrupting.start()
            eventually(load.stopped)

    load.before = interrupt_in_the_second
    runner.start(grid(), restore=False)
    found = ended(runner)
    interrupting.join()
    assert (found.state, states(found)) == (StudyState.PAUSED, [TrialState.DONE, TrialState.QUEUED, TrialState.QUEUED])
    later = again(lab, load)
    assert later.snapshot().resumable and not later.resume_interrupted()  # it was meant: nobody goes on by himself


def test_a_process_that_ends_in_the_middle_is_followed_by_one_that_goes_on(lab: Lab, load: ScriptedLoad) -> None:
    killed = TuningRunner(lab.settings, lab.supervisor, lab.store, load=load)

    def close_in_the_second() -> None:
        if len(load.served) == 2:
            killed._closing.set()
            killed._cancel.set()

    load.before = close_in_the_second
    killed.start(grid(), restore=False)
    killed.wait()
    later = again(lab, load)
    found = later.snapshot()
    assert found.resumable and found.message == "1 of 3 tried"
    assert states(found) == [TrialState.DONE, TrialState.QUEUED, TrialState.QUEUED]
    assert found.recommendation is not None and found.trials[0].level is not None
    assert later.resume_interrupted()
    assert states(ended(later)) == [TrialState.DONE] * 3
    assert [served.max_num_seqs for served in load.served] == [2, 4, 4, 8]
    assert not again(lab, load).snapshot().resumable


def test_what_the_lab_does_not_survive_twice_is_not_tried_a_third_time(lab: Lab, load: ScriptedLoad) -> None:
    study = studies.new_study(grid(), TuningRunner(lab.settings, lab.supervisor, lab.store)._first_trials(grid()))
    deadly = replace(study.trials[0], state=TrialState.RESTARTING, attempts=studies.ATTEMPTS)
    studies.keep(lab.store, replace(study, trials=(deadly, *study.trials[1:])))
    later = again(lab, load)
    assert later.resume_interrupted()
    found = ended(later)
    assert states(found) == [TrialState.FAILED, TrialState.DONE, TrialState.DONE]
    assert found.trials[0].error == studies.ENDED_TWICE


def test_a_search_goes_on_in_a_later_process_where_it_was(lab: Lab, load: ScriptedLoad, runner: TuningRunner) -> None:
    space = {"max_num_seqs": (1, 2, 4, 8, 16, 32)}
    search = grid(kind=StudyKind.SEARCH, space=space, budget=3)
    runner.start(search, restore=False)
    whole = [trial.changes for trial in ended(runner).trials]
    load.served.clear()
    load.before = lambda: runner.pause() if len(load.served) == 2 else None
    runner.start(search, restore=False)
    assert len(ended(runner).trials) == 2
    later = again(lab, load)
    later.resume(restore=False)
    assert [trial.changes for trial in ended(later).trials] == whole


def test_damaged_and_old_studies_do_not_hide_the_others(lab: Lab, load: ScriptedLoad) -> None:
    for number in range(studies.KEPT + 5):
        studies.keep(lab.store, replace(studies.new_study(grid(), ()), id=f"{number:03}", state=StudyState.DONE))
    studies.forget_old(lab.store)
    assert len(studies.kept(lab.store)) == studies.KEPT
    lab.store.put_document(studies.KIND, "999", {"config": 1})
    assert studies.kept(lab.store)[0].id == f"{studies.KEPT + 4:03}"
    assert again(lab, load).snapshot().state == StudyState.DONE


# -- one thing at a time


def test_a_study_that_is_still_ending_does_not_end_the_wait_for_the_next(
    lab: Lab, load: ScriptedLoad, runner: TuningRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, measuring, go_on = threading.Event(), threading.Event(), threading.Event()
    summed_up = runner_module.StudyBoard.sum_up

    def slow(self: Any, complete: Any) -> None:
        summed_up(self, complete)
        if not self.snapshot().running:
            over.wait(20)

    def hold() -> None:
        measuring.set()
        go_on.wait(20)

    monkeypatch.setattr(runner_module.StudyBoard, "sum_up", slow)
    lab.start_and_wait(BASE)
    runner.start(grid(space={"max_num_seqs": (4,)}))
    eventually(lambda: not runner.snapshot().running)
    load.before = hold
    runner.start(grid(space={"max_num_seqs": (8,)}))
    assert measuring.wait(20)
    waiting = threading.Thread(target=runner.wait)
    waiting.start()
    over.set()
    eventually(lambda: [one.name for one in threading.enumerate()].count("tuning") == 1)
    waiting.join(0.2)
    assert waiting.is_alive() and runner.snapshot().running
    go_on.set()
    waiting.join(20)
    assert not waiting.is_alive() and not runner.snapshot().running


def test_nothing_begins_while_something_else_runs(lab: Lab, load: ScriptedLoad, runner: TuningRunner) -> None:
    gate = threading.Event()
    load.before = lambda: gate.wait(30) and None
    runner.start(grid(space={"max_num_seqs": (2,)}), restore=False)
    eventually(lambda: load.served)
    with pytest.raises(AlreadyRunning, match="being tried"):
        runner.start(grid())
    with pytest.raises(AlreadyRunning, match="being tried"):
        runner.require_idle()
    with pytest.raises(AlreadyRunning, match="being tried"):
        lab.supervisor.stop()
    with pytest.raises(AlreadyRunning):
        runner.go_back()
    gate.set()
    ended(runner)
    runner.require_idle()


def test_a_study_does_not_begin_beside_a_chat_a_reservation_or_another_lab(lab: Lab, load: ScriptedLoad) -> None:
    chatting = TuningRunner(lab.settings, lab.supervisor, lab.store, lambda: "A chat answer is written.", load=load)
    with pytest.raises(AlreadyRunning, match="chat"):
        chatting.start(grid())
    assert chatting.snapshot().state == StudyState.IDLE
    beside = TuningRunner(lab.settings, lab.supervisor, lab.store, owner=False, load=load)
    with pytest.raises(DataFolderInUse):
        beside.start(grid())
    free = again(lab, load)
    with lab.supervisor.reserved("A comparison is being measured."), pytest.raises(AlreadyRunning, match="comparison"):
        free.start(grid())
    assert studies.kept(lab.store) == ()


def test_a_disk_that_is_full_at_the_start_begins_nothing(
    lab: Lab, load: ScriptedLoad, runner: TuningRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise StoreError("The disk is full.", "Free some space.")

    monkeypatch.setattr(runner_module.studies, "keep", full)
    with pytest.raises(StoreError):
        runner.start(grid())
    assert runner.snapshot().state == StudyState.IDLE and load.served == []


def test_a_disk_that_fills_up_ends_the_study_and_says_so(
    lab: Lab, load: ScriptedLoad, runner: TuningRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise StoreError("The disk is full.", "Free some space.")

    load.before = lambda: monkeypatch.setattr(studies, "keep", full)
    runner.start(grid(), restore=False)
    found = ended(runner)
    assert (found.state, found.error) == (StudyState.FAILED, "The disk is full.")


@pytest.mark.parametrize("problem", [StoreError("The disk is full.", "Free some space."), ValueError("a fault")])
def test_the_way_back_is_gone_whatever_fails_in_the_middle(
    lab: Lab, load: ScriptedLoad, runner: TuningRunner, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    lab.start_and_wait(BASE)
    keep = studies.keep

    def fail(*given: Any) -> None:
        if lab.snapshot().config != BASE and lab.snapshot().ready:
            raise problem
        keep(*given)

    monkeypatch.setattr(studies, "keep", fail)
    runner.start(apply(max_num_seqs=8))
    found = ended(runner)
    assert (found.state, found.error) == (StudyState.FAILED, told(problem)[0])
    assert found.went_back == "The study could not go on: the last good configuration runs again."
    assert lab.snapshot().ready and lab.snapshot().config == BASE
    runner.start(grid())
    assert ended(runner).state == StudyState.FAILED
    eventually(lambda: lab.snapshot().ready and lab.snapshot().config == BASE)


def test_a_way_back_that_fails_too_is_told_after_the_first_fault() -> None:
    first = runner_module._Ending(StudyState.FAILED, "The disk is full.", "Free some space.")
    both = first.and_then(LabError("The port is taken.", "Free it."))
    assert both.error == "The disk is full."
    assert both.remedy == "Free some space. The way back failed too: The port is taken. Free it."
    alone = runner_module._Ending(StudyState.DONE).and_then(LabError("The port is taken.", "Free it."))
    assert (alone.state, alone.error) == (StudyState.FAILED, "The port is taken.")


def test_a_fault_of_our_own_does_not_run_for_ever(load: ScriptedLoad, runner: TuningRunner) -> None:
    def broken() -> None:
        raise ValueError("a fault")

    load.before = broken
    runner.start(grid(), restore=False)
    found = ended(runner)
    assert (found.state, found.error) == (StudyState.FAILED, "ValueError: a fault")


def test_progress_and_time_left_are_shown(lab: Lab, load: ScriptedLoad, runner: TuningRunner) -> None:
    seen: list[TuneSnapshot] = []
    load.before = lambda: seen.append(runner.snapshot())
    lab.store.add_start("owner/name|eager=None", {"import": 3.0}, 3.0)
    study = grid(workload=LOAD)
    assert runner.estimate(study).total_s is None  # a load by requests that was never measured
    runner.start(study, restore=False)
    ended(runner)
    assert [now.progress for now in seen] == pytest.approx([0, 1 / 3, 2 / 3])
    assert seen[0].left_s is None and seen[1].left_s is not None and seen[0].load is not None
    expected = runner.estimate(study)
    assert expected.restart_s and expected.measure_s and "3 trials, about" in expected.words
    # One of the three runs already.
    assert expected.total_s == pytest.approx(2 * expected.restart_s + 3 * expected.measure_s)


def test_the_command_line_blocks_and_tells_messages(runner: TuningRunner) -> None:
    told: list[str] = []
    found = runner.run_blocking(grid(space={"max_num_seqs": (2,)}), told.append)
    assert found.state == StudyState.DONE and any("max_num_seqs 2" in message for message in told)
    with pytest.raises(LabError):
        runner.run_blocking(None, told.append)


def test_the_server_is_stopped_when_the_lab_closes_in_the_middle(
    lab: Lab, load: ScriptedLoad, runner: TuningRunner
) -> None:
    lab.at(Phase.KV_CACHE, "hang")
    runner.start(grid())
    eventually(lambda: lab.snapshot().message == PHASE_LABELS[Phase.KV_CACHE])
    runner.close()
    lab.supervisor.close()
    assert lab.snapshot().state == ServerState.STOPPED
    assert studies.kept(lab.store)[0].state == StudyState.RUNNING
