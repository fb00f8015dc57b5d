"""What is recommended, the front, and a file for ``vllm serve --config``; profiles that are kept and taken along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.config import LoadTestConfig, ServerConfig
from engine.errors import ConfigError
from engine.load.results import LevelResult
from engine.server.command import Launch
from engine.store import RunStore
from engine.tuning.profiles import WORKSHOP, WORKSHOP_LOAD, Profiles, export, parse, presets
from engine.tuning.recommend import pareto, recommend, serve_yaml
from engine.tuning.study import Study, StudyConfig, StudyKind, StudyState, Trial
from engine.vllm_facts import MODULE
from tests.tuned import level, spread, trial

# -- what to choose


def study(*levels: LevelResult, **slo: float) -> Study:
    """One trial a level, with 1, 2, 4… sequences; the base has 2."""
    config = StudyConfig(
        StudyKind.GRID,
        ServerConfig(max_num_seqs=2),
        LoadTestConfig(users=(20,), **slo),  # type: ignore[arg-type]
        space={"max_num_seqs": tuple(2**n for n in range(len(levels)))},
    )
    trials = tuple(trial(n, {"max_num_seqs": 2**n}, one) for n, one in enumerate(levels))
    return Study("1", "", StudyState.DONE, config, trials)


def test_without_an_slo_the_most_throughput_is_recommended_and_what_it_gains() -> None:
    found = recommend(study(level(50), level(100), level(150)))
    assert found is not None and found.trial == 2 and found.config.max_num_seqs == 4
    assert found.words == (
        "For the most throughput choose max_num_seqs 4: 150 tok/s at TTFT p95 300 ms. "
        "That is 50% more throughput than before."
    )


def test_all_limits_must_be_met_at_p95() -> None:
    slow_tokens = level(150, 200, tpot_ms=spread(10, 90))
    found = recommend(study(level(50, 100), slow_tokens, slo_ttft_ms=300.0, slo_tpot_ms=50.0))
    assert found is not None and (found.trial, found.meets_slo) == (0, True)
    assert found.words.startswith("For TTFT p95 ≤ 300 ms and TPOT p95 ≤ 50 ms choose")


def test_what_was_not_measured_does_not_meet_a_limit() -> None:
    found = recommend(study(level(50, 250), level(500, ttft_ms=None), slo_ttft_ms=300.0))
    assert found is not None and found.trial == 0


def test_a_level_with_failed_requests_is_not_recommended_while_there_is_another() -> None:
    found = recommend(study(level(50), level(100, requests_failed=1)))
    assert found is not None and (found.trial, found.meets_slo) == (0, True)
    found = recommend(study(level(100, requests_failed=1)))
    assert found is not None and not found.meets_slo and "Requests failed in every trial" in found.words


def test_nothing_is_recommended_where_nothing_was_measured() -> None:
    assert recommend(Study("1", "", StudyState.DONE, study(level()).config)) is None


def test_the_front_has_what_none_beats_in_both() -> None:
    points = [(100.0, 100.0), (200.0, 300.0), (150.0, 400.0), (200.0, 300.0), (50.0, 90.0)]
    trials: list[Trial] = [trial(n, {}, level(*point)) for n, point in enumerate(points)]
    trials.append(trial(9, {}, level(900, ttft_ms=None)))
    assert pareto(trials) == (0, 1, 3, 4)


# -- the file


def test_the_file_has_every_flag_with_its_kind_and_memory_in_place_of_the_variable() -> None:
    argv = ("python", "-m", MODULE, "--model", "/a b/c", "--port", "8000", "--host", "127.0.0.1", "--max-num-seqs", "8")
    argv += ("--gpu-memory-utilization", "0.9", "--enforce-eager", "--no-enable-prefix-caching")
    env = {"VLLM_API_KEY": "secret", "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}
    text = serve_yaml(Launch(argv, env))
    assert yaml.safe_load(text) == {
        "model": "/a b/c",
        "max-num-seqs": 8,
        "gpu-memory-utilization": 0.9,
        "enforce-eager": True,
        "enable-prefix-caching": False,
        "kv-cache-memory-bytes": 2 * 1024**3,
    }
    assert text.startswith(f"# HF_HUB_OFFLINE=1 python -m {MODULE} --config this-file.yaml\n")
    assert "secret" not in text
    assert serve_yaml(Launch(argv, {})).startswith("# vllm serve --config")


# -- profiles


@pytest.fixture
def profiles(tmp_path: Path) -> Profiles:
    return Profiles(RunStore(tmp_path / "runs.db"))


def test_the_workshops_presets_are_there_and_can_not_be_replaced(profiles: Profiles) -> None:
    found = profiles.list()
    assert [one.name for one in found] == [one.name for one in WORKSHOP] and all(one.preset for one in found)
    short = next(one for one in found if one.name == "Short context")
    assert (short.config.max_model_len, short.config.max_num_seqs) == (64, 8)
    with pytest.raises(ConfigError, match="lab's own"):
        profiles.save("Short context", ServerConfig())


def test_the_workshops_load_fits_into_its_shortest_context() -> None:
    shortest = min(one.config.max_model_len or 10**6 for one in presets())
    assert WORKSHOP_LOAD.prompt_tokens + WORKSHOP_LOAD.max_tokens <= shortest


def test_a_profile_is_saved_replaced_and_deleted(profiles: Profiles) -> None:
    profiles.save("  for  the demo ", ServerConfig(max_num_seqs=3, port=9000), "In the small hall.")
    (mine,) = (one for one in profiles.list() if not one.preset)
    assert (mine.name, mine.note, mine.config) == ("for the demo", "In the small hall.", ServerConfig(max_num_seqs=3))
    profiles.save("for the demo", ServerConfig(max_num_seqs=5))
    (mine,) = (one for one in profiles.list() if not one.preset)
    assert mine.config.max_num_seqs == 5
    assert profiles.delete("for the demo") and not profiles.delete("for the demo")


@pytest.mark.parametrize("name", ["", "   ", "x" * 61, "a\x00b"])
def test_a_name_that_is_none_is_refused(profiles: Profiles, name: str) -> None:
    with pytest.raises(ConfigError, match="can't be a name"):
        profiles.save(name, ServerConfig())


@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_profiles_are_taken_along_and_brought_in(profiles: Profiles, kind: Any) -> None:
    config = ServerConfig(max_num_seqs=3, enforce_eager=False, attention_backend="TRITON_ATTN", block_size=None)
    saved = profiles.save("für morgen: a/b", config, "note")
    text = export([saved, *presets()], kind)
    found = parse(export([saved], kind))
    assert found == (saved,)
    assert profiles.add(found) == (saved,)
    with pytest.raises(ConfigError, match="lab's own"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no profiles"),
        ("{", "neither JSON nor YAML"),
        ("a: [", "neither JSON nor YAML"),
        ("[1]", "no profiles"),
        ("profiles: {}", "no profiles"),
        ("profiles: {a: 1}", "no settings"),
        ("profiles: {a: {settings: {colour: 1}}}", "setting 'colour'"),
        ("profiles: {a: {settings: {port: 8000}}}", "setting 'port'"),
        ("profiles: {a: {settings: {max_num_seqs: 8.5}}}", "max_num_seqs = 8.5"),
        ("profiles: {a: {settings: {max_num_seqs: true}}}", "max_num_seqs = True"),
        ("profiles: {a: {settings: {max_num_seqs: [1]}}}", "max_num_seqs"),
        ("profiles: {a: {settings: {model: 7}}}", "model = 7"),
        ("profiles: {a: {settings: {model: null}}}", "model = None"),
        ("profiles: {a: {settings: {enable_prefix_caching: 'on'}}}", "enable_prefix_caching"),
        ("profiles: {a: {settings: {max_num_seqs: 0}}}", "max_num_seqs is 0"),
        ("profiles: {a: {settings: {model: '--help'}}}", "not a model name"),
        ("!!python/object/apply:os.system ['true']", "neither JSON nor YAML"),
        ("x" * 1_000_001, "too large"),
        (json.dumps({"profiles": {str(n): {"settings": {}} for n in range(201)}}), "201 profiles"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse(text)
    assert caught.value.remedy


def test_a_damaged_profile_does_not_hide_the_others(profiles: Profiles) -> None:
    profiles.save("good", ServerConfig())
    profiles._store.put_document("profile", "bad", {"settings": {"max_num_seqs": "many"}})
    assert [one.name for one in profiles.list() if not one.preset] == ["good"]
