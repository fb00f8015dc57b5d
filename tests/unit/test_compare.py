"""The comparison over a fake server and a fake baseline, both real processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine import compare, compare_server
from engine.baseline import HfBaseline
from engine.compare import CompareRunner
from engine.compare_plan import plan_by_ids
from engine.compare_results import APART_NOTE, CompareResults, CompareSnapshot, CompareState, LaneState, Mode
from engine.config import PROJECT_ROOT, CompareConfig, ServerConfig
from engine.errors import AlreadyRunning, ConfigError, LabError, RequestRejected, StoreError
from engine.exclusive import told
from engine.models import ModelOrigin, ModelSource
from engine.peers.launching import PEERS, Peer, Start
from engine.server.command import Launch, uses_eager
from engine.server.state import Phase, ServerState
from engine.telemetry.host import CoreWatch, OtherWork
from tests.fake_baseline import TOKEN_S
from tests.fake_openai import FakeOpenAI, Script
from tests.supervised import TIMEOUT_S, Lab, eventually

CONFIG = CompareConfig(prompt="why is it so", max_tokens=10, repeats=2)  # the fake server's answers have 10 tokens
Scripted = Callable[..., None]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Choose what the Hugging Face child does."""

    def choose(*words: str) -> None:
        command = (sys.executable, "-m", "tests.fake_baseline", *words)
        monkeypatch.setattr(compare, "HfBaseline", partial(HfBaseline, command=command))

    choose()
    return choose


@pytest.fixture
def runner(lab: Lab, scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompareRunner]:
    for module in (compare, compare_server):
        monkeypatch.setattr(module, "detect_hardware", lambda _: lab.hardware)
    made = CompareRunner(lab.settings, lab.supervisor, lab.store)
    yield made
    made.close()


def fake_peer() -> Peer:
    """llama.cpp as a process that answers like the fake server, with ten tokens."""

    def launch(start: Start) -> Launch:
        words = ("--port", str(start.port), "--model", start.source.model_id)
        env = {"VLLM_API_KEY": start.api_key, "PYTHONPATH": str(PROJECT_ROOT)}
        return Launch((sys.executable, "-m", "tests.fake_server", *words), env)

    return replace(PEERS["llamacpp"], missing=lambda: None, launch=launch, weights=lambda _: "a file")


def finished(runner: CompareRunner) -> CompareSnapshot:
    return eventually(lambda: None if runner.snapshot().running else runner.snapshot())  # type: ignore[no-any-return]


def results(snapshot: CompareSnapshot) -> CompareResults:
    assert snapshot.state == CompareState.DONE, snapshot.error
    assert snapshot.results is not None
    return snapshot.results


def test_both_engines_are_measured_alike_and_the_server_is_stopped_again(lab: Lab, runner: CompareRunner) -> None:
    runner.start(CONFIG)
    found = results(finished(runner))
    hf, vllm = found.engines["hf"], found.engines["vllm"]
    assert (hf.output_tokens, vllm.output_tokens) == (10, 10)
    assert hf.throughput_tok_s == pytest.approx(1 / TOKEN_S)
    assert len(hf.repeats) == len(vllm.repeats) == CONFIG.repeats
    assert vllm.throughput_tok_s and found.ratio == pytest.approx(vllm.throughput_tok_s * TOKEN_S)
    assert hf.load_s and vllm.load_s and vllm.memory_bytes
    assert lab.snapshot().state == ServerState.STOPPED


def test_a_server_that_ran_before_goes_on_running(lab: Lab, runner: CompareRunner) -> None:
    before = lab.start_and_wait()
    runner.start(CONFIG)
    results(finished(runner))
    assert (lab.snapshot().pid, lab.snapshot().ready) == (before.pid, True)


def test_many_users_are_measured_in_every_way(runner: CompareRunner) -> None:
    runner.start(replace(CONFIG, users=(4,)))
    found = results(finished(runner))
    measured = {(level.users, level.engine, level.mode) for level in found.levels}
    assert measured == {
        (1, "hf", Mode.SEQUENTIAL),
        (1, "vllm", Mode.CONCURRENT),
        (4, "hf", Mode.SEQUENTIAL),
        (4, "hf", Mode.STATIC_BATCH),
        (4, "vllm", Mode.CONCURRENT),
    }
    one_by_one, batch = found.level(4, Mode.SEQUENTIAL, "hf"), found.level(4, Mode.STATIC_BATCH, "hf")
    assert one_by_one and batch
    assert (one_by_one.output_tokens, one_by_one.steps) == (40, 40)
    assert (batch.output_tokens, batch.steps) == (40, 10)
    assert batch.throughput_tok_s == pytest.approx(4 / TOKEN_S)
    ratio = found.level_ratios[-1]
    assert ratio.users == 4 and ratio.against_sequential and ratio.against_static_batch
    assert ratio.against_sequential == pytest.approx(4 * ratio.against_static_batch)


def test_the_static_batch_can_be_left_out(runner: CompareRunner) -> None:
    runner.start(replace(CONFIG, users=(2,), static_batch=False))
    assert Mode.STATIC_BATCH not in {level.mode for level in results(finished(runner)).levels}


def test_hugging_face_alone_needs_no_server(
    lab: Lab, runner: CompareRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = ModelSource("a/b", tmp_path, ModelOrigin.LOCAL, "a folder", 1)
    monkeypatch.setattr(compare, "prepare", lambda *_: source)
    runner.start(replace(CONFIG, engines=("hf",)))
    found = results(finished(runner))
    assert set(found.engines) == {"hf"} and found.ratio is None
    assert lab.snapshot().generation == 0


def test_vllm_alone_starts_no_hugging_face(runner: CompareRunner, scripted: Scripted) -> None:
    scripted("--fail-at", "load", "--how", "error")
    runner.start(replace(CONFIG, engines=("vllm",)))
    assert set(results(finished(runner)).engines) == {"vllm"}


def test_every_prompt_is_another_and_all_are_of_one_length() -> None:
    asked: list[str] = []

    def ids_of(text: str) -> list[int]:
        asked.append(text)
        return list(range(len(text.split())))

    plan = plan_by_ids(replace(CONFIG, users=(1, 3)), ids_of, 100, check=lambda: None)
    assert sorted(plan) == [1, 3]
    assert [len(prompts) for prompts in plan[3]] == [3, 3, 3]  # a warm-up and two repeats
    assert {len(ids) for groups in plan.values() for prompts in groups for ids in prompts} == {5}
    assert len(set(asked)) == len(asked)


def test_the_run_is_saved_with_all_it_takes_to_repeat_it(lab: Lab, runner: CompareRunner) -> None:
    runner.start(CONFIG)
    done = finished(runner)
    run = lab.store.get(done.run_id or "")
    assert run is not None
    assert (run.kind, run.status, run.config["prompt"]) == ("compare", "done", CONFIG.prompt)
    assert run.results["context"]["dtype"] == "bfloat16" and run.results["weights_bytes"] == 1000  # what was loaded
    assert run.config["server"]["model"] and run.command and run.model["origin"] == "local"
    assert run.environment["packages"] and run.duration_s
    assert CompareResults.from_dict(run.results).ratio == results(done).ratio


@pytest.mark.parametrize("how", ["error", "memory", "exit", "kill"])
def test_a_fault_of_hugging_face_is_told_and_the_server_stopped(
    lab: Lab, runner: CompareRunner, scripted: Scripted, how: str
) -> None:
    scripted("--fail-at", "generate", "--how", how)
    runner.start(CONFIG)
    ended = finished(runner)
    assert ended.state == CompareState.FAILED and ended.error and ended.remedy
    assert ended.lane("hf") and ended.lane("hf").state == LaneState.FAILED  # type: ignore[union-attr]
    assert lab.snapshot().state == ServerState.STOPPED
    assert lab.store.list() == []


def test_a_server_that_does_not_come_up_is_told(lab: Lab, runner: CompareRunner) -> None:
    lab.at(Phase.READY, "die")
    runner.start(CONFIG)
    ended = finished(runner)
    assert ended.state == CompareState.FAILED and ended.error


def test_cancel_ends_a_hanging_child_and_keeps_nothing_half(
    lab: Lab, runner: CompareRunner, scripted: Scripted
) -> None:
    scripted("--fail-at", "generate", "--how", "hang")
    runner.start(CONFIG)
    eventually(lambda: runner.snapshot().lane("hf").state == LaneState.WARMING)  # type: ignore[union-attr]
    with pytest.raises(AlreadyRunning):
        runner.start(CONFIG)
    runner.cancel()
    ended = finished(runner)
    assert (ended.state, ended.error, ended.run_id) == (CompareState.CANCELLED, None, None)
    assert ended.lane("hf").state == LaneState.CANCELLED  # type: ignore[union-attr]
    assert lab.snapshot().state == ServerState.STOPPED


def test_cancel_during_the_start_stops_the_server(lab: Lab, runner: CompareRunner) -> None:
    lab.at(Phase.WEIGHTS, "hang")
    runner.start(CONFIG)
    lab.wait_for(ServerState.STARTING)
    lab.wait_for_phase(Phase.WEIGHTS)
    runner.cancel()
    assert finished(runner).state == CompareState.CANCELLED
    assert lab.snapshot().state == ServerState.STOPPED


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_measured(runner: CompareRunner) -> None:
    runner.start(replace(CONFIG, max_tokens=4000))
    ended = finished(runner)
    assert ended.state == CompareState.FAILED
    assert "context" in (ended.error or "") and ended.remedy


def test_where_both_do_not_fit_the_server_is_away_meanwhile(lab: Lab, runner: CompareRunner) -> None:
    lab.hardware = replace(lab.hardware, ram_available_bytes=0)
    lab.start_and_wait()
    runner.start(CONFIG)
    found = results(finished(runner))
    assert APART_NOTE in found.notes
    assert lab.snapshot().generation == 2 and lab.snapshot().ready
    assert found.ratio


def test_an_attached_server_without_weights_here_is_measured_alone_or_refused(lab: Lab, runner: CompareRunner) -> None:
    with FakeOpenAI() as fake:
        lab.supervisor.attach(fake.base_url)
        runner.start(CONFIG)
        ended = finished(runner)
        assert ended.state == CompareState.FAILED and "not on this machine" in (ended.error or "")
        runner.start(replace(CONFIG, engines=("vllm",)))
        assert set(results(finished(runner)).engines) == {"vllm"}
    assert lab.snapshot().attached


def test_the_command_line_gets_the_results_or_the_error(runner: CompareRunner, scripted: Scripted) -> None:
    said: list[str] = []
    assert runner.run_blocking(CONFIG, None, said.append).ratio
    assert said
    scripted("--fail-at", "load", "--how", "error")
    with pytest.raises(LabError, match="it broke"):
        runner.run_blocking(CONFIG, None, said.append)


def test_close_ends_what_runs(lab: Lab, runner: CompareRunner, scripted: Scripted) -> None:
    scripted("--fail-at", "load", "--how", "hang")
    runner.start(CONFIG)
    eventually(lambda: runner.snapshot().lane("hf").state == LaneState.LOADING)  # type: ignore[union-attr]
    runner.close()
    assert not runner.snapshot().running
    assert lab.snapshot().state == ServerState.STOPPED


def test_nobody_may_touch_the_server_meanwhile(lab: Lab, runner: CompareRunner, scripted: Scripted) -> None:
    scripted("--fail-at", "generate", "--how", "hang")
    lab.start_and_wait()
    runner.start(CONFIG)
    eventually(lambda: runner.snapshot().lane("hf").state == LaneState.WARMING)  # type: ignore[union-attr]
    assert lab.snapshot().reserved
    with pytest.raises(AlreadyRunning, match="measured"):
        lab.supervisor.stop()
    runner.cancel()
    finished(runner)
    assert lab.snapshot().reserved == "" and lab.snapshot().ready
    lab.supervisor.stop(wait=True)


def test_a_comparison_does_not_start_while_the_server_answers(lab: Lab, runner: CompareRunner) -> None:
    busy = CompareRunner(lab.settings, lab.supervisor, lab.store, answering=lambda: "The four are on their way.")
    with pytest.raises(AlreadyRunning, match="The four are on their way"):
        busy.start(CONFIG)
    assert not busy.snapshot().running


@pytest.mark.parametrize("error", [StoreError("The database is locked.", "Try again."), RuntimeError("worse")])
def test_a_result_that_can_not_be_saved_is_shown_all_the_same(
    lab: Lab, runner: CompareRunner, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(lab.store, "add", fail)
    runner.start(CONFIG)
    ended = finished(runner)
    assert results(ended).ratio and ended.run_id is None
    assert (ended.error, ended.remedy) == told(error)


def test_finished_repeats_survive_a_cancel(lab: Lab, runner: CompareRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    really = compare.CompareRunner._vllm_repeat
    done: list[int] = []

    def repeat(self: CompareRunner, *args: object) -> object:
        if len(done) == 2:  # the warm-up and one repeat
            runner.cancel()
        done.append(1)
        return really(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(compare.CompareRunner, "_vllm_repeat", repeat)
    runner.start(replace(CONFIG, repeats=3))
    ended = finished(runner)
    assert ended.state == CompareState.CANCELLED and ended.run_id
    run = lab.store.get(ended.run_id)
    assert run is not None and run.status == "cancelled"
    saved = CompareResults.from_dict(run.results)
    assert (len(saved.engines["hf"].repeats), len(saved.engines["vllm"].repeats)) == (3, 1)


def test_a_server_that_dies_in_the_middle_is_told_by_its_cause_and_what_was_measured_stays(
    lab: Lab, runner: CompareRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = compare.run_concurrently

    def kill_before(*args: Any) -> Any:
        os.kill(lab.snapshot().pid or 0, signal.SIGKILL)
        return really(*args)  # refused at once: long before the supervisor knows

    monkeypatch.setattr(compare, "run_concurrently", kill_before)
    lab.start_and_wait()
    runner.start(CONFIG)
    ended = finished(runner)
    diagnosis = lab.wait_for(ServerState.FAILED).diagnosis
    assert diagnosis is not None and (ended.error, ended.remedy) == (diagnosis.cause, diagnosis.remedy)
    run = lab.store.get(ended.run_id or "")
    assert run is not None and run.status == "failed" and run.results["error"] == diagnosis.cause
    assert set(run.results["engines"]) == {"hf"}


def test_a_request_that_the_server_refuses_is_told_at_once_as_it_is(lab: Lab, runner: CompareRunner) -> None:
    """Not as a death of the server, which would be waited for."""
    lab.start_and_wait()
    refusal = RequestRejected("No such model.", "Choose another.", 404)
    assert compare_server.MeasuredServer(lab.settings, lab.supervisor, fail, fail).cause_of(refusal) is refusal


def test_the_second_comparison_is_estimated_from_the_first(lab: Lab, runner: CompareRunner) -> None:
    lab.start_and_wait()
    assert runner.estimate(CONFIG) is None
    runner.start(CONFIG)
    results(finished(runner))
    expected = runner.estimate(CONFIG)
    assert expected is not None and expected.runs == 1
    runner.start(CONFIG)
    assert runner.snapshot().left_s is not None
    assert results(finished(runner)) and runner.snapshot().left_s is None


def test_a_foreign_server_is_not_estimated(lab: Lab, runner: CompareRunner) -> None:
    with FakeOpenAI() as fake:
        lab.supervisor.attach(fake.base_url)
        assert runner.estimate(CONFIG) is None


def fail(*_: object) -> None:
    raise AssertionError("It was not to be called.")


def test_a_server_that_can_not_tokenise_is_measured_with_hugging_faces_ids(
    lab: Lab, runner: CompareRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = ModelSource("a/b", tmp_path, ModelOrigin.LOCAL, "a folder", 1)
    monkeypatch.setattr(compare_server, "find_ready", lambda *_: source)
    with FakeOpenAI() as fake:
        fake.has_tokenize = False
        lab.supervisor.attach(fake.base_url)
        runner.start(CONFIG)
        found = results(finished(runner))
        assert found.ratio and compare.ATTACHED_NOTE in found.notes
        assert fake.sent[-1].body["prompt"] == list(range(5))
        runner.start(replace(CONFIG, engines=("vllm",)))
        results(finished(runner))
        assert CONFIG.prompt in fake.sent[-1].body["prompt"]


@pytest.mark.parametrize(("cached", "told"), [(None, False), (0, True), (3, True)])
def test_what_the_prefix_cache_gave_is_told_where_it_is_known(
    lab: Lab, runner: CompareRunner, cached: int | None, told: bool
) -> None:
    with FakeOpenAI(Script(cached=cached)) as fake:
        lab.supervisor.attach(fake.base_url)
        runner.start(replace(CONFIG, engines=("vllm",)))
        notes = results(finished(runner)).notes
    assert any(f"found {2 * (cached or 0)} of 14 prompt tokens" in note for note in notes) is told


@pytest.mark.parametrize(("others", "warnings"), [(0.1, 0), (0.9, 2)])
def test_a_machine_that_is_busy_with_something_else_is_told(
    lab: Lab, runner: CompareRunner, monkeypatch: pytest.MonkeyPatch, others: float, warnings: int
) -> None:
    monkeypatch.setattr(CoreWatch, "read", lambda _: OtherWork(others, 1))
    runner.start(CONFIG)
    found = results(finished(runner))
    assert len(found.warnings) == warnings
    assert all("0.9 of 1 cores" in warning for warning in found.warnings)
    assert CompareResults.from_dict(found.to_dict()).warnings == found.warnings


@pytest.mark.parametrize("before", [None, False])
def test_eager_is_measured_beside_compiled_and_the_servers_own_way_comes_back(
    lab: Lab, runner: CompareRunner, before: bool | None
) -> None:
    lab.start_and_wait(ServerConfig(enforce_eager=before))
    runner.start(replace(CONFIG, eager_against_graphs=True))
    found = results(finished(runner))
    assert set(found.engines) == {"hf", "vllm_eager", "vllm"}
    assert found.ratio and found.ratio_eager
    ready = lab.supervisor.wait_ready(TIMEOUT_S)
    assert ready.config is not None and uses_eager(ready.config, lab.hardware) == (before is None)
    run = lab.store.list()[0]
    assert len(run.command.splitlines()) == 2


def test_a_cancel_between_the_two_modes_brings_the_servers_own_way_back(
    lab: Lab, runner: CompareRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServerConfig(enforce_eager=False)
    lab.start_and_wait(config)
    measure = compare.CompareRunner._measure_vllm

    def measure_and_cancel(self: CompareRunner, *args: object) -> None:
        measure(self, *args)  # type: ignore[arg-type]
        runner.cancel()

    monkeypatch.setattr(compare.CompareRunner, "_measure_vllm", measure_and_cancel)
    runner.start(replace(CONFIG, eager_against_graphs=True))
    assert finished(runner).state == CompareState.CANCELLED
    assert lab.supervisor.wait_ready(TIMEOUT_S).config == config


def test_other_engines_are_measured_between_hugging_face_and_vllm(
    lab: Lab, runner: CompareRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their server is a fake one in a process of its own, that writes ten tokens."""
    monkeypatch.setitem(PEERS, "llamacpp", fake_peer())  # type: ignore[index]
    runner.start(replace(CONFIG, users=(1, 3), engines=("hf", "vllm", "llamacpp")))
    found = results(finished(runner))
    assert {"hf", "vllm", "llamacpp"} == set(found.engines)
    peer = found.level(3, Mode.CONCURRENT, "llamacpp")
    assert peer is not None and peer.output_tokens == 30
    assert {(ratio.users, ratio.engine) for ratio in found.peer_ratios} == {(1, "llamacpp"), (3, "llamacpp")}
    order = list(dict.fromkeys(level.engine for level in found.levels))
    assert order == ["hf", "llamacpp", "vllm"]
    assert "llama.cpp ran a file." in found.notes
    run = lab.store.list("compare")[0]
    assert "HF vs vLLM vs llama.cpp" in run.title and "tests.fake_server" in run.command


def test_one_that_is_not_installed_is_refused_before_anything_begins(
    runner: CompareRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = ConfigError("llama.cpp is not installed here.", "Build it.")
    monkeypatch.setitem(PEERS, "llamacpp", replace(fake_peer(), missing=lambda: missing))  # type: ignore[index]
    with pytest.raises(ConfigError, match="not installed"):
        runner.start(replace(CONFIG, engines=("vllm", "llamacpp")))
    assert not runner.snapshot().running
