"""The simulation as a whole: the paper's figure, the lab's picture, sums, notes and repeatability."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import ALLOCATORS, SIMULATION_LIMITS, SimulationConfig
from engine.errors import ConfigError
from engine.kv.figure_data import bars, page_sizes, running_requests
from engine.kv.presets import ANIMATIONS, PRESETS, SHARES, matching_preset, preset
from engine.kv.simulate import AllocatorResult, SimulationResult, simulate

UNTIMED = {"wall_s"}


def numbers(result: AllocatorResult) -> dict[str, Any]:
    return {name: value for name, value in result.to_dict().items() if name not in UNTIMED}


@pytest.fixture(scope="module")
def sharegpt() -> SimulationResult:
    return simulate(preset("paper-sharegpt"))


@pytest.mark.parametrize("allocator", ["contiguous_max", "contiguous_pow2", "contiguous_oracle", "paged"])
def test_the_papers_token_states_within_five_points(sharegpt: SimulationResult, allocator: str) -> None:
    result = sharegpt.allocators[allocator]
    assert result.published["token_states_pct"] > 0
    assert abs(result.difference_points["token_states_pct"]) <= 5
    for share, difference in result.difference_points.items():
        assert abs(difference) <= 5
        assert difference == pytest.approx(getattr(result, share) - result.published[share])


def test_the_papers_batches_and_the_one_that_is_not_reproduced(sharegpt: SimulationResult) -> None:
    differences = {name: result.difference_mean_running for name, result in sharegpt.allocators.items()}
    assert differences["contiguous_max"] == 0
    assert abs(differences["contiguous_pow2"] or 99) < 0.5
    assert abs(differences["contiguous_oracle"] or 99) < 0.5
    assert (differences["paged"] or 0) > 1
    assert any("30.42 depends on arrivals" in note for note in sharegpt.notes)


def test_the_contiguous_batches_of_alpaca() -> None:
    result = simulate(preset("paper-alpaca", requests=4000))
    for name in ("contiguous_pow2", "contiguous_oracle"):
        values = result.allocators[name]
        assert values.mean_running == pytest.approx(values.published["mean_running"], rel=0.1)
        assert values.difference_points == {}
    assert any("no test of the simulation" in note for note in result.notes)


@pytest.mark.parametrize("seed", range(5))
def test_the_labs_picture(seed: int) -> None:
    result = simulate(preset("lab", seed=seed))
    contiguous, paged = result.allocators["contiguous_max"], result.allocators["paged"]
    assert 15 <= (contiguous.utilisation_pct or 0) <= 25
    assert (paged.utilisation_pct or 0) >= 94
    assert (paged.mean_running or 0) >= 4 * (contiguous.mean_running or 99)


@settings(max_examples=60, deadline=None)
@given(
    workload=st.sampled_from(("lab", "shared_prefix", "parallel", "alpaca")),
    memory=st.integers(200, 3000),
    block_size=st.integers(1, 128),
    samples=st.integers(1, 3),
    rate=st.sampled_from((None, 5.0, 80.0)),
    seed=st.integers(0, 1000),
)
def test_shares_add_up_to_100_in_both_views_and_nothing_is_lost(
    workload: str, memory: int, block_size: int, samples: int, rate: float | None, seed: int
) -> None:
    config = SimulationConfig(
        workload=workload,
        requests=25,
        memory_tokens=memory,
        block_size=block_size,
        samples=samples,
        arrivals_per_100_steps=rate,
        seed=seed,
        allocators=ALLOCATORS,
    )
    result = simulate(config)
    again = simulate(config)
    for name, values in result.allocators.items():
        assert numbers(values) == numbers(again.allocators[name])
        assert values.finished + values.rejected + values.unfinished == result.requests == 25
        assert values.unfinished == 0
        if values.token_states_pct is None:
            assert values.rejected == 25
            continue
        four = [getattr(values, share) for share in SHARES]
        assert sum(four) == pytest.approx(100)
        assert min(four) >= 0
        assert values.external_gaps_pct + values.free_pct == pytest.approx(values.external_fragmentation_pct)
        assert name.startswith("paged") or values.preemptions == 0
        assert (values.mean_blocks_used is not None) == name.startswith("paged")
        if values.mean_blocks_used is not None:
            held_pct = values.token_states_pct + values.reserved_pct + values.internal_fragmentation_pct
            assert values.mean_blocks_used * block_size == pytest.approx(held_pct / 100 * memory)
        internal = values.internal_fragmentation_pct / 100 * memory
        assert not name.startswith("paged") or internal < block_size * samples * max(values.mean_running, 1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), allocator=st.sampled_from(ALLOCATORS))
def test_means_are_those_of_every_single_step(seed: int, allocator: str) -> None:
    """The timeline adds up whole stretches at once; here every step is looked at."""
    config = SimulationConfig(requests=40, memory_tokens=1500, seed=seed, allocators=(allocator,))
    values = simulate(config).allocators[allocator]
    every = values.timeline.at(np.arange(values.measured_from, values.measured_to))
    assert values.token_states_pct == pytest.approx(100 * every["tokens"].mean() / 1500)
    assert values.reserved_pct == pytest.approx(100 * every["reserved"].mean() / 1500)
    assert values.mean_running == pytest.approx(every["running"].mean())
    kinds = sum(every[kind] for kind in ("tokens", "reserved", "internal", "external", "free"))
    assert set(kinds.tolist()) == {1500}


def test_an_open_loop_is_averaged_over_the_whole_run() -> None:
    values = simulate(SimulationConfig(arrivals_per_100_steps=5)).allocators["paged"]
    assert (values.measured_from, values.measured_to) == (0, values.steps)


def test_finished_per_second_needs_a_step_time() -> None:
    values = simulate(SimulationConfig(step_s=0.05)).allocators["paged"]
    assert values.finished_per_s == pytest.approx(200 / (values.steps * 0.05))
    assert values.finished_per_100_steps == pytest.approx(100 * 200 / values.steps)
    assert simulate(SimulationConfig()).allocators["paged"].finished_per_s is None


def test_slots_beyond_whole_blocks_are_external_but_not_in_use() -> None:
    """One request of 4 slots in a block of 4; 3 of 7 slots can't hold a block."""
    config = SimulationConfig(
        workload="typed", typed="4 1", memory_tokens=7, block_size=4, buddy_unit=1, allocators=("paged",)
    )
    values = simulate(config).allocators["paged"]
    assert (values.utilisation_pct, values.mean_blocks_used) == (100, 1)
    assert values.external_gaps_pct == pytest.approx(100 * 3 / 7)


def test_what_is_larger_than_the_memory_is_rejected_counted_and_said() -> None:
    config = SimulationConfig(workload="typed", typed="300 20; 10 5", memory_tokens=256, max_model_len=512)
    result = simulate(config)
    assert [values.rejected for values in result.allocators.values()] == [2, 1, 1, 1]
    assert "Contiguous (max length): requests larger than the memory, rejected: 2." in result.notes
    assert result.allocators["contiguous_max"].token_states_pct is None
    assert result.allocators["paged"].finished == 1


def test_prompts_beyond_max_model_len_are_said() -> None:
    result = simulate(SimulationConfig(workload="typed", typed="600 1; 500 100; 10 5"))
    assert result.notes == (
        "Prompts that leave no room for an answer within max_model_len (512): 1 (rejected, as in vLLM).",
        "Answers that end at max_model_len (512), as in vLLM: 1.",
    )
    assert {values.rejected for values in result.allocators.values()} == {1}


def test_shared_prefixes_and_parallel_samples_hold_more_requests() -> None:
    prefix = SimulationConfig(workload="shared_prefix", allocators=("paged", "paged_prefix"))
    alone, shared = simulate(prefix).allocators.values()
    assert (shared.mean_running or 0) > 1.5 * (alone.mean_running or 99)
    parallel = SimulationConfig(workload="parallel", samples=4, allocators=("paged", "paged_parallel"))
    alone, shared = simulate(parallel).allocators.values()
    assert (shared.mean_running or 0) > 1.2 * (alone.mean_running or 99)


def test_a_preset_is_recognised_whatever_its_seed_and_not_when_its_memory_changes() -> None:
    assert matching_preset(preset("paper-sharegpt", seed=5, requests=7, allocators=("paged",))) == "paper-sharegpt"
    assert matching_preset(preset("paper-sharegpt", block_size=32)) is None
    changed = simulate(preset("paper-sharegpt", memory_tokens=8000, requests=50))
    assert changed.preset is None
    assert "published" not in changed.allocators["paged"].to_dict()


def test_presets_of_the_paper_have_the_papers_memory() -> None:
    for name in ("paper-sharegpt", "paper-alpaca"):
        config = PRESETS[name].config
        assert (config.memory_tokens, config.max_model_len, config.block_size) == (15_728, 2048, 16)


def test_data_of_the_figures() -> None:
    result = simulate(preset("paper-sharegpt", requests=100))
    assert [bar.published_token_states_pct for bar in bars(result)] == [20.4, 26.8, 38.2, 96.3]
    series = running_requests(result, points=50)
    assert len(series.steps) <= 50 and series.steps[0] == 0
    assert all(len(values) == len(series.steps) for values in series.running.values())
    assert max(series.running["contiguous_max"]) == 7
    sizes = page_sizes(preset("lab", requests=200, memory_tokens=100), (1, 16, 256))
    assert [size.block_size for size in sizes] == [1, 16]


def test_smaller_pages_waste_less_and_need_longer_tables() -> None:
    sizes = page_sizes(preset("lab", requests=400))
    used = [size.utilisation_pct or 0 for size in sizes]
    assert used == sorted(used, reverse=True)
    assert used[0] > 99.5
    tables = [size.blocks_per_request or 0 for size in sizes]
    assert tables == sorted(tables, reverse=True)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"block_size": 0}, "block_size is 0."),
        ({"block_size": 4001}, "block_size (4001) is larger than the memory (4000 tokens)."),
        ({"memory_tokens": 0}, "memory_tokens is 0."),
        ({"watermark": float("nan")}, "watermark is nan."),
        ({"seed": -1}, "seed is -1."),
        (
            {"samples": 4, "max_num_seqs": 2},
            "samples (4) is above max_num_seqs (2): no request could ever start.",
        ),
        ({"workload": "none"}, "There is no workload 'none'."),
        ({"allocators": ()}, "No allocator was chosen."),
        ({"allocators": ("paged", "x")}, "There is no allocator 'x'."),
        ({"arrivals_per_100_steps": float("inf")}, "arrivals_per_100_steps is inf."),
    ],
)
def test_settings_that_can_not_be_simulated(changes: dict[str, Any], cause: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(SimulationConfig(), **changes)
    assert caught.value.cause == cause
    assert caught.value.remedy


def test_unknown_presets_are_refused() -> None:
    with pytest.raises(ConfigError, match="There is no preset 'x'"):
        preset("x")


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n")
    with pytest.raises(ConfigError, match="no rows"):
        simulate(SimulationConfig(workload="trace", trace=str(path)))


def test_the_animations_are_valid_and_two_sided() -> None:
    assert {len(animation.config.allocators) for animation in ANIMATIONS.values()} == {2}
    assert set(SIMULATION_LIMITS) <= set(SimulationConfig().to_dict())
