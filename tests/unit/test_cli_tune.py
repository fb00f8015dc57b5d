"""``python -m engine tune``: what its words mean, and what it answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.cli import build_parser, main
from engine.cli import tune as tune_module
from engine.cli.tune import SEARCHED, answer_of, config_of
from engine.config import ServerConfig
from engine.errors import ConfigError
from engine.services import LabServices
from engine.tuning.profiles import WORKSHOP, WORKSHOP_LOAD
from engine.tuning.study import (
    SHORT_LOAD,
    Recommendation,
    Sampler,
    Study,
    StudyConfig,
    StudyKind,
    StudyState,
    TrialState,
    TuneSnapshot,
)
from tests.tuned import level, trial


def config(*words: str) -> StudyConfig:
    return config_of(build_parser().parse_args(["tune", *words]))


def test_values_with_commas_make_a_grid_of_the_short_load() -> None:
    found = config("--max-model-len", "512,1024", "--max-num-seqs", "8,32")
    assert (found.kind, found.trials, found.workload) == (StudyKind.GRID, 4, SHORT_LOAD)
    assert found.space == {"max_model_len": (512, 1024), "max_num_seqs": (8, 32)}


def test_values_are_read_by_their_kind() -> None:
    words = ("--block-size", "auto,64", "--enable-prefix-caching", "on,off", "--gpu-memory-utilization", "0.8")
    found = config(*words, "--dtype", "auto,float32", "--enforce-eager", "auto,on")
    assert found.space == {
        "block_size": (None, 64),
        "enable_prefix_caching": (True, False),
        "gpu_memory_utilization": (0.8,),
        "dtype": ("auto", "float32"),
        "enforce_eager": (None, True),
    }


def test_a_search_has_a_budget_a_sampler_and_a_space_of_its_own() -> None:
    found = config("--search", "10", "--slo", "ttft=500,tpot=100", "--sampler", "nsga2", "--seed", "3")
    assert (found.kind, found.budget, found.sampler, found.seed) == (StudyKind.SEARCH, 10, Sampler.NSGA2, 3)
    assert found.space == SEARCHED
    assert (found.slo.ttft_ms, found.slo.tpot_ms, found.slo.e2e_ms) == (500.0, 100.0, None)


def test_the_load_is_chosen_as_for_a_load_test() -> None:
    found = config(
        "--max-num-seqs", "8", "--rate", "2", "--duration", "20", "--prompt-tokens", "99", "--max-tokens", "7"
    )
    load = found.workload
    assert (load.profile, load.rates, load.users, load.duration_s) == ("poisson", (2.0,), (), 20.0)
    assert (load.prompt_tokens, load.max_tokens) == (99, 7)
    counted = config("--max-num-seqs", "8", "--users", "5", "--requests", "10").workload
    assert (counted.users, counted.requests, counted.duration_s) == ((5,), 10, None)


def test_the_workshop_is_a_set_with_names_and_a_load_that_fits() -> None:
    found = config("--workshop", "--model", "a/b")
    assert found.kind == StudyKind.SET and found.workload == WORKSHOP_LOAD and found.base.model == "a/b"
    assert found.labels == tuple(one.name for one in WORKSHOP)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "No values"),
        (("--max-num-seqs", "8,many"), "'many' is no value of --max-num-seqs"),
        (("--max-num-seqs", "auto"), "'auto' is no value"),
        (("--max-num-seqs", ""), "no value"),
        (("--enable-prefix-caching", "perhaps"), "no value of --enable-prefix-caching"),
        (("--search", "0"), "0 trials"),
        (("--max-num-seqs", "8", "--slo", "ttft"), "no limit"),
        (("--max-num-seqs", "8", "--users", "5", "--rate", "2"), "Both users and a rate"),
        (("--max-num-seqs", "8", "--users", "0"), "users is 0"),
        (("--workshop", "--max-num-seqs", "8"), "workshop's configurations are fixed"),
    ],
)
def test_what_can_not_be_meant_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        config(*words)
    assert caught.value.remedy


def test_nothing_to_resume_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--resume", "--json"]) == 1
    assert "No study is paused" in json.loads(capsys.readouterr().out)["error"]


def test_a_plan_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--plan", "--max-num-seqs", "8,4096", "--max-num-batched-tokens", "64", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["starts"] for one in answer["plan"]] == [True, False]
    assert "below max_num_seqs" in answer["plan"][1]["refusals"][0]["cause"]
    assert answer["estimate"]["trials"] == 2


def ended(state: StudyState, *trials: Any) -> TuneSnapshot:
    study = Study("1", "", state, StudyConfig(StudyKind.GRID, ServerConfig(), space={"max_num_seqs": (8, 32)}), trials)
    return TuneSnapshot(state=state, study=study, elapsed_s=60.0)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    def choose(snapshot: TuneSnapshot) -> None:
        def tried(services: LabServices, config: StudyConfig | None) -> TuneSnapshot:
            return snapshot

        monkeypatch.setattr(tune_module, "_tried", tried)

    return choose


def test_a_study_that_is_done_answers_with_its_trials(scripted: Any, capsys: pytest.CaptureFixture[str]) -> None:
    done = ended(StudyState.DONE, trial(0, {"max_num_seqs": 8}, level(100)), trial(1, {"max_num_seqs": 32}, level(200)))
    scripted(done)
    assert main(["tune", "--max-num-seqs", "8,32", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["level"]["throughput_tok_s"] for one in answer["trials"]] == [100, 200]
    assert answer["trials"][0]["level"]["ttft_p95_ms"] == 300 and answer["trials"][0]["level"]["samples"] == []
    assert (answer["state"], answer["study"]) == ("done", "1")


def test_a_file_that_can_not_be_written_costs_no_result(
    scripted: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = Recommendation(0, "Choose it.", True, ServerConfig(), yaml="max-num-seqs: 8\n")
    scripted(replace(ended(StudyState.DONE, trial(0, {"max_num_seqs": 8}, level(100))), recommendation=found))
    words = ["tune", "--max-num-seqs", "8", "--json", "--save-yaml"]
    assert main([*words, str(tmp_path / "missing" / "a.yaml")]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert "can't be written" in answer["error"] and answer["recommendation"]["words"] == "Choose it."
    assert main([*words, str(tmp_path / "a.yaml")]) == 0
    assert (tmp_path / "a.yaml").read_text() == found.yaml


def test_a_plan_tells_of_every_configuration_of_a_grid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--plan", "--max-num-seqs", ",".join(map(str, range(1, 61)))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 61 and lines[7].startswith("max_num_seqs 8: ")
    assert ".0 tokens of KV cache" not in lines[7]


def test_an_interrupted_study_keeps_what_was_measured_and_says_how_to_go_on(
    scripted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(ended(StudyState.PAUSED, trial(0, {"max_num_seqs": 8}, level(100)), trial(1, {"max_num_seqs": 32})))
    assert main(["tune", "--max-num-seqs", "8,32", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["remedy"] == "Go on with --resume." and answer["trials"][0]["level"]["throughput_tok_s"] == 100


def test_ctrl_c_interrupts_the_study_which_is_answered_with(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        """A tuning service in whose midst somebody presses Ctrl-C."""

        interrupted = False

        def run_blocking(self, *_: Any, **__: Any) -> TuneSnapshot:
            raise KeyboardInterrupt

        def interrupt(self) -> None:
            self.interrupted = True

        def snapshot(self) -> TuneSnapshot:
            assert self.interrupted
            return ended(StudyState.PAUSED)

    services = SimpleNamespace(tuning=Interrupted())
    assert tune_module._tried(services, None).state == StudyState.PAUSED  # type: ignore[arg-type]


def test_a_study_of_which_nothing_was_measured_failed(scripted: Any, capsys: pytest.CaptureFixture[str]) -> None:
    failed = trial(0, {"max_num_seqs": 8}, state=TrialState.FAILED, error="It died.", remedy="Look.")
    scripted(ended(StudyState.DONE, failed))
    assert main(["tune", "--max-num-seqs", "8"]) == 1
    out = capsys.readouterr()
    assert "max_num_seqs 8: failed. It died." in out.out and "It died. Look." in out.err


def test_the_answer_is_json_all_through() -> None:
    answer = answer_of(ended(StudyState.DONE, trial(0, {"block_size": None}, level(100))))
    assert json.loads(json.dumps(answer)) == answer
