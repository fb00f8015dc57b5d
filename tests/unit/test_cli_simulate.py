"""``python -m engine simulate``: the document, the presets, the words for bad input."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cli import build_parser, main
from engine.cli.simulate import config_of
from engine.config import ALLOCATORS, WORKLOADS, SimulationConfig
from engine.kv.command import simulate_command
from engine.kv.presets import ANIMATIONS, PRESETS, preset

KEYS = {
    "token_states_pct",
    "reserved_pct",
    "internal_fragmentation_pct",
    "external_fragmentation_pct",
    "utilisation_pct",
    "mean_running",
    "preemptions",
    "finished",
    "wall_s",
}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["simulate", *words, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out)


def config(*words: str) -> SimulationConfig:
    return config_of(build_parser().parse_args(["simulate", *words]))


def test_the_document_has_the_four_allocators_and_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, "--preset", "lab", "--requests", "100")
    assert code == 0
    assert list(answer["allocators"]) == ["contiguous_max", "contiguous_pow2", "contiguous_oracle", "paged"]
    for values in answer["allocators"].values():
        assert set(values) >= KEYS
        assert values["finished"] == 100


def test_a_papers_preset_has_published_values_and_differences(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, "--preset", "paper-sharegpt", "--requests", "100", "--allocators", "contiguous_max")
    assert code == 0
    (values,) = answer["allocators"].values()
    assert values["published"]["token_states_pct"] == 20.4
    assert values["difference_points"]["token_states_pct"] == pytest.approx(values["token_states_pct"] - 20.4)
    assert any("queue is always full" in note for note in answer["notes"])


def test_lab_is_the_default_and_flags_change_it() -> None:
    assert config() == PRESETS["lab"].config
    assert config("--block-size", "32", "--memory-tokens", "5000", "--seed", "7") == preset(
        "lab", block_size=32, memory_tokens=5000, seed=7
    )
    assert config("--allocators", "paged, paged_prefix").allocators == ("paged", "paged_prefix")


def test_a_trace_gets_a_memory_that_suits_it_unless_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,1000,500\n")
    fitted = config("--trace", str(path))
    assert (fitted.workload, fitted.max_model_len, fitted.memory_tokens) == ("trace", 2048, 16_384)
    assert config("--trace", str(path), "--memory-tokens", "3000").memory_tokens == 3000
    assert config("--preset", "paper-sharegpt", "--trace", str(path)).memory_tokens == 15_728


def test_as_text_it_is_a_table_and_the_notes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--typed", "600 1; 10 5"]) == 0
    out = capsys.readouterr().out
    assert "contiguous_oracle" in out
    assert "Prompts that leave no room" in out


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--block-size", "0"), "block_size is 0."),
        (("--block-size", "4096"), "block_size (4096) is larger than the memory (4000 tokens)."),
        (("--allocators", "none"), "There is no allocator 'none'."),
        (("--trace", "/none/such.csv"), "The trace such.csv can't be read: No such file or directory."),
        (("--typed", "five"), "Line 1 has 1 numbers."),
        (("--workload", "trace"), "No trace file was given."),
        (("--memory-tokens", "-5"), "memory_tokens is -5."),
        (("--watermark", "nan"), "watermark is nan."),
        (("--typed", "1 2", "--trace", "a.csv"), "Requests from trace and typed at once can't be simulated."),
        (("--typed", "1 2", "--workload", "lab"), "Requests from lab and typed at once can't be simulated."),
    ],
)
def test_bad_input_is_one_document_with_a_remedy(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], cause: str
) -> None:
    code, answer = run(capsys, *words)
    assert code == 1
    assert answer["error"] == cause
    assert answer["remedy"]


@pytest.mark.parametrize("known", [*(p.config for p in PRESETS.values()), *(p.config for p in ANIMATIONS.values())])
def test_the_shown_command_gives_the_same_simulation(known: SimulationConfig) -> None:
    assert config(*shlex.split(simulate_command(known))[4:]) == known
    changed = replace(known, seed=3, block_size=8, allocators=("paged",))
    assert config(*shlex.split(simulate_command(changed))[4:]) == changed


@given(
    workload=st.sampled_from(sorted(set(WORKLOADS) - {"trace", "typed"})),
    requests=st.integers(1, 300),
    block_size=st.integers(1, 256),
    rate=st.one_of(st.none(), st.floats(0.01, 1000)),
    share=st.floats(0, 1),
    allocators=st.lists(st.sampled_from(ALLOCATORS), min_size=1, unique=True),
)
def test_any_shown_command_gives_the_same_simulation(
    workload: str, requests: int, block_size: int, rate: float | None, share: float, allocators: list[str]
) -> None:
    known = SimulationConfig(
        workload=workload,
        requests=requests,
        block_size=block_size,
        arrivals_per_100_steps=rate,
        long_share=share,
        allocators=tuple(allocators),
    )
    assert config(*shlex.split(simulate_command(known))[4:]) == known


def test_a_trace_with_strange_characters_survives_the_shell(tmp_path: Path) -> None:
    path = tmp_path / "it's a $(trace); rm.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,100,50\n")
    known = SimulationConfig(workload="trace", trace=str(path), step_s=0.05)
    assert config(*shlex.split(simulate_command(known))[4:]) == known
