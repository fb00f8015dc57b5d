"""Recordings: what the animation is told agrees, cell by cell, with the simulator's own counts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import ALLOCATORS, SIMULATION_LIMITS, SimulationConfig
from engine.errors import ConfigError
from engine.kv.presets import ANIMATIONS
from engine.kv.recording import MOST_REQUESTS, record
from engine.kv.simulate import simulate
from tests.unit.kv_replay import Payload, frames, kinds

KINDS = ("tokens", "reserved", "internal", "external", "free")
SHARING = {"paged_prefix", "paged_parallel"}

lines = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=12)


@st.composite
def configs(draw: st.DrawFn) -> SimulationConfig:
    memory = draw(st.integers(40, 300))
    return SimulationConfig(
        workload="typed",
        typed="\n".join(" ".join(map(str, line)) for line in draw(lines)),
        memory_tokens=memory,
        max_model_len=draw(st.integers(2, 80)),
        block_size=draw(st.integers(1, 32)),
        buddy_unit=draw(st.integers(1, 16)),
        max_num_seqs=draw(st.integers(3, 20)),
        watermark=draw(st.sampled_from((0.0, 0.1))),
        samples=draw(st.integers(1, 3)),
        allocators=tuple(draw(st.lists(st.sampled_from(ALLOCATORS), min_size=2, max_size=2, unique=True))),
    )


@st.composite
def prefix_configs(draw: st.DrawFn) -> SimulationConfig:
    return SimulationConfig(
        workload="shared_prefix",
        requests=draw(st.integers(1, 12)),
        memory_tokens=draw(st.integers(150, 600)),
        block_size=draw(st.integers(1, 40)),
        prefix_tokens=draw(st.integers(0, 80)),
        prefix_groups=draw(st.integers(1, 3)),
        samples=draw(st.integers(1, 3)),
        arrivals_per_100_steps=draw(st.sampled_from((None, 20))),
        seed=draw(st.integers(0, 100)),
        allocators=("paged_prefix", "paged"),
    )


@st.composite
def parallel_configs(draw: st.DrawFn) -> SimulationConfig:
    return SimulationConfig(
        workload="typed",
        typed="\n".join(" ".join(map(str, line)) for line in draw(lines)),
        memory_tokens=draw(st.integers(100, 400)),
        block_size=draw(st.integers(2, 16)),
        samples=draw(st.integers(2, 4)),
        allocators=("paged_parallel", "paged_prefix"),
    )


def check_cells(payload: Payload) -> None:
    """Every frame's cells, counted from the holds alone, are the series; no unit has two owners it may not have."""
    for side in payload["sides"]:
        for frame, holders, context in frames(payload, side):
            assert kinds(payload, side, holders, context) == [side["series"][kind][frame] for kind in KINDS]
            check_owners(payload, side, holders, context)


def check_owners(payload: Payload, side: dict[str, Any], holders: dict[int, Any], context: dict[int, int]) -> None:
    for physical, owners in holders.items():
        assert 0 <= physical < side["blocks"]
        if len(owners) > 1:
            assert side["allocator"] in SHARING
            assert len({owner.logical for owner in owners}) == 1
            if side["allocator"] == "paged_prefix":
                end = (owners[0].logical + 1) * side["unit"]
                assert all(context[owner.stay] >= end for owner in owners)
            else:
                (request,) = {side["stays"]["request"][owner.stay] for owner in owners}
                end = (owners[0].logical + 1) * side["unit"]
                assert min(end, context[owners[0].stay]) <= payload["requests"]["prompt"][request]
    held = Counter(owner.stay for owners in holders.values() for owner in owners)
    for stay, tokens in context.items():
        assert held[stay] * side["unit"] >= tokens
        if side["allocator"].startswith("paged"):
            assert held[stay] * side["unit"] - tokens < side["unit"]


@settings(max_examples=150, deadline=None)
@given(config=configs())
def test_the_cells_of_any_recording_add_up_to_its_series(config: SimulationConfig) -> None:
    check_cells(record(config, most_steps=120))


@settings(max_examples=100, deadline=None)
@given(config=prefix_configs())
def test_the_cells_of_any_recording_with_shared_prefixes_add_up(config: SimulationConfig) -> None:
    check_cells(record(config, most_steps=120))


@settings(max_examples=100, deadline=None)
@given(config=parallel_configs())
def test_the_cells_of_any_recording_with_parallel_samples_add_up(config: SimulationConfig) -> None:
    check_cells(record(config, most_steps=120))


@settings(max_examples=50, deadline=None)
@given(config=configs())
def test_a_recording_ends_with_everything_free_and_agrees_with_the_simulation(config: SimulationConfig) -> None:
    payload, result = record(config), simulate(config)
    for side in payload["sides"]:
        series, values = side["series"], result.allocators[side["allocator"]]
        assert series["free"][-1] == side["blocks"] * side["unit"]
        assert series["running"][-1] == series["waiting"][-1] == 0
        assert (series["finished"][-1], series["preempted"][-1]) == (values.finished, values.preemptions)
        assert values.finished + values.rejected == result.requests
        assert len(series["running"]) == payload["steps"]


@pytest.mark.parametrize("name", ANIMATIONS)
def test_the_presets_of_the_animation_have_a_story_and_end(name: str) -> None:
    payload = record(ANIMATIONS[name].config)
    left, right = (side["series"] for side in payload["sides"])
    assert payload["notes"] == []
    assert left["finished"][-1] == right["finished"][-1] == ANIMATIONS[name].config.requests
    assert max(right["running"]) > 2 * max(left["running"])
    kinds_told = {kind for side in payload["sides"] for kind in side["events"]["kind"]}
    wanted = {"lab": "wait", "shared_prefix": "share", "parallel": "copy", "tight": "preempt"}
    assert wanted[name] in kinds_told


def test_found_prefix_blocks_are_marked_while_they_are_free() -> None:
    payload = record(replace(ANIMATIONS["shared_prefix"].config, requests=20, arrivals_per_100_steps=3))
    side = payload["sides"][1]
    marked: dict[int, set[int]] = {}
    now: set[int] = set()
    changes = list(zip(*side["cached"].values(), strict=True))
    for frame in range(payload["steps"]):
        for _, physical, on in [change for change in changes if change[0] == frame]:
            (now.add if on else now.discard)(physical)
        marked[frame] = set(now)
    for frame, holders, _ in frames(payload, side):
        assert not marked[frame] & set(holders)
    assert marked[payload["steps"] - 1]


def test_a_preempted_request_has_several_stays_and_goes_on_where_it_was() -> None:
    payload = record(ANIMATIONS["tight"].config)
    stays = payload["sides"][1]["stays"]
    anchors = payload["sides"][1]["anchors"]
    again = [number for number, count in Counter(stays["request"]).items() if count > 1]
    assert again
    rows = [row for row, request in enumerate(stays["request"]) if request == again[0]]
    done = sum(stays["to"][row] - stays["from"][row] for row in rows)
    assert done == payload["requests"]["output"][again[0]]
    for before, after in zip(rows, rows[1:], strict=False):
        grown = stays["to"][before] - stays["from"][before]
        assert anchors["tokens"][after] == anchors["tokens"][before] + grown


def test_the_same_seed_gives_the_same_recording_and_another_seed_does_not() -> None:
    config = ANIMATIONS["lab"].config
    assert record(config) == record(config)
    assert record(config) != record(replace(config, seed=1))


def test_the_largest_recording_is_under_two_megabytes() -> None:
    config = replace(
        ANIMATIONS["lab"].config, requests=200, memory_tokens=4096, arrivals_per_100_steps=10, block_size=1
    )
    payload = record(config)
    assert payload["steps"] > 1500
    assert len(json.dumps(payload, separators=(",", ":"))) < 2_000_000


def test_what_would_be_larger_is_cut_at_an_earlier_step_and_it_is_said() -> None:
    samples = replace(ANIMATIONS["parallel"].config, requests=200, memory_tokens=4096, block_size=1)
    payload = record(samples)
    assert 500 < payload["steps"] < 2000
    assert len(json.dumps(payload, separators=(",", ":"))) < 2_000_000
    assert payload["notes"] == [
        f"The first {payload['steps']:,} steps are shown; some requests have not ended by then."
    ]


def test_requests_that_are_too_long_are_noted() -> None:
    config = replace(ANIMATIONS["lab"].config, workload="typed", typed="600 1; 10 5")
    assert record(config)["notes"] == [
        "Prompts that leave no room for an answer within max_model_len (512): 1 (rejected, as in vLLM)."
    ]


def test_a_long_workload_is_cut_and_it_is_said() -> None:
    payload = record(replace(ANIMATIONS["lab"].config, requests=500), most_steps=100)
    assert payload["steps"] == 100
    assert len(payload["requests"]["prompt"]) == MOST_REQUESTS
    assert [note.split(" of ")[0] for note in payload["notes"]] == [
        "The first 200",
        "The first 100 steps are shown; some requests have not ended by then.",
    ]
    for side in payload["sides"]:
        assert max(side["stays"]["to"]) == 100


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"allocators": ("paged",)}, "The animation has two sides, not 1."),
        ({"memory_tokens": 5000}, "5,000 slots can't be drawn."),
    ],
)
def test_what_can_not_be_drawn_is_refused(changes: dict[str, Any], cause: str) -> None:
    with pytest.raises(ConfigError) as caught:
        record(replace(ANIMATIONS["lab"].config, **changes))
    assert caught.value.cause == cause


def test_limits_cover_every_number_of_the_config() -> None:
    numbers = {name for name, value in SimulationConfig().to_dict().items() if isinstance(value, int | float)}
    assert numbers <= set(SIMULATION_LIMITS)
