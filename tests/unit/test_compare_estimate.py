"""How long a comparison will take: what earlier runs tell, and when they tell nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.compare_board import Board
from engine.compare_estimate import Estimate, Span, estimate
from engine.compare_plan import repeats_in_all, shapes
from engine.compare_results import APART_NOTE, CompareResults, EngineResult, Level, Mode
from engine.config import CompareConfig
from engine.store import Run, new_run

MACHINE, MODEL = "A CPU, 2 cores", "owner/name"
HF_LOAD_S, START_S = 4.0, 30.0
# Seconds of one repeat with 10 output tokens.
HF_ONE_S, HF_FIVE_S, BATCH_FIVE_S, VLLM_ONE_S, VLLM_FIVE_S = 2.0, 11.0, 3.0, 1.0, 1.5
CONFIG = CompareConfig(max_tokens=10, repeats=1, users=(1, 5))
LEVELS = (
    Level(1, Mode.SEQUENTIAL, "hf", generate_s=HF_ONE_S),
    Level(5, Mode.SEQUENTIAL, "hf", generate_s=HF_FIVE_S),
    Level(5, Mode.STATIC_BATCH, "hf", generate_s=BATCH_FIVE_S),
    Level(1, Mode.CONCURRENT, "vllm", generate_s=VLLM_ONE_S),
    Level(5, Mode.CONCURRENT, "vllm", generate_s=VLLM_FIVE_S),
)
ENGINES = {"hf": EngineResult(load_s=HF_LOAD_S), "vllm": EngineResult(load_s=START_S)}


def earlier(levels: Sequence[Level] = LEVELS, notes: tuple[str, ...] = (), **changes: Any) -> Run:
    results = CompareResults(engines=ENGINES, levels=tuple(levels), notes=notes)
    run = new_run(
        "compare",
        "earlier",
        config=CONFIG.to_dict() | {"server": {"model": MODEL}},
        environment={"summary": MACHINE},
        model={"model_id": MODEL},
        results=results.to_dict(),
    )
    return replace(run, **changes)


def of(config: CompareConfig, *runs: Run, server_ready: bool = True) -> Estimate | None:
    return estimate(runs, config, machine=MACHINE, model=MODEL, server_ready=server_ready)


def seconds(config: CompareConfig, *runs: Run, server_ready: bool = True) -> tuple[float, float]:
    found = of(config, *runs, server_ready=server_ready)
    assert found is not None
    return found.total.low_s, found.total.high_s


REPEATS_S = HF_ONE_S + HF_FIVE_S + BATCH_FIVE_S + VLLM_ONE_S + VLLM_FIVE_S


def test_the_same_again_takes_what_it_took() -> None:
    assert seconds(CONFIG, earlier()) == pytest.approx((HF_LOAD_S + 2 * REPEATS_S,) * 2)


def test_a_server_that_has_to_be_started_takes_its_load_time_more() -> None:
    assert seconds(CONFIG, earlier(), server_ready=False)[0] == pytest.approx(HF_LOAD_S + START_S + 2 * REPEATS_S)


def test_time_grows_with_repeats_and_tokens() -> None:
    more = replace(CONFIG, repeats=4, max_tokens=30)
    assert seconds(more, earlier())[0] == pytest.approx(HF_LOAD_S + 5 * 3 * REPEATS_S)


def test_one_engine_alone_takes_no_time_for_the_other() -> None:
    hf, vllm = replace(CONFIG, engines=("hf",)), replace(CONFIG, engines=("vllm",))
    assert seconds(vllm, earlier())[0] == pytest.approx(2 * (VLLM_ONE_S + VLLM_FIVE_S))
    assert seconds(hf, earlier(), server_ready=False)[0] == pytest.approx(
        HF_LOAD_S + 2 * (HF_ONE_S + HF_FIVE_S + BATCH_FIVE_S)
    )


def test_one_after_another_grows_with_the_users() -> None:
    ten = replace(CONFIG, engines=("hf",), users=(10,), static_batch=False)
    assert seconds(ten, earlier())[0] == pytest.approx(HF_LOAD_S + 2 * (HF_ONE_S + 2 * HF_FIVE_S))


@pytest.mark.parametrize(
    ("users", "low_s", "high_s"),
    [(3, VLLM_ONE_S, VLLM_FIVE_S), (10, VLLM_FIVE_S, 2 * VLLM_FIVE_S)],
)
def test_a_number_of_users_that_was_not_measured_makes_a_span(users: int, low_s: float, high_s: float) -> None:
    config = replace(CONFIG, engines=("vllm",), users=(users,))
    assert seconds(config, earlier()) == pytest.approx((2 * (VLLM_ONE_S + low_s), 2 * (VLLM_ONE_S + high_s)))


def test_a_static_batch_that_was_never_measured_is_bounded_by_one_request_and_by_all_of_them() -> None:
    alone = earlier(LEVELS[:1])
    config = replace(CONFIG, engines=("hf",), users=(5,))
    low_s, high_s = seconds(config, alone)
    assert low_s == pytest.approx(HF_LOAD_S + 2 * (HF_ONE_S + 5 * HF_ONE_S + HF_ONE_S))
    assert high_s == pytest.approx(HF_LOAD_S + 2 * (HF_ONE_S + 5 * HF_ONE_S + 5 * HF_ONE_S))


def test_the_newest_measurement_counts_and_older_ones_fill_the_gaps() -> None:
    newest = earlier([Level(1, Mode.CONCURRENT, "vllm", generate_s=9.0)])
    found = of(replace(CONFIG, engines=("vllm",)), newest, earlier(), earlier())
    assert found is not None
    assert found.total.high_s == pytest.approx(2 * (9.0 + VLLM_FIVE_S))
    assert found.runs == 2  # the third told nothing new


def test_both_modes_take_two_starts_more() -> None:
    levels = (*LEVELS, replace(LEVELS[3], engine="vllm_eager"), replace(LEVELS[4], engine="vllm_eager"))
    engines = ENGINES | {"vllm_eager": EngineResult(load_s=START_S / 2)}
    config = replace(CONFIG, eager_against_graphs=True)
    wanted = HF_LOAD_S + 1.5 * START_S + 2 * (REPEATS_S + VLLM_ONE_S + VLLM_FIVE_S)
    run = earlier(results=CompareResults(engines=engines, levels=levels).to_dict())
    assert seconds(config, run)[0] == pytest.approx(wanted)
    assert of(config, earlier()) is None


def test_where_both_did_not_fit_the_server_may_have_to_start_again() -> None:
    low_s, high_s = seconds(CONFIG, earlier(notes=(APART_NOTE,)))
    assert high_s - low_s == pytest.approx(START_S)


@pytest.mark.parametrize(
    "run",
    [
        earlier(environment={"summary": "Another machine"}),
        earlier(model={"model_id": "another/model"}),
        earlier(config=replace(CONFIG, prompt="x" * 5000).to_dict() | {"server": {}}),
        earlier(config=CONFIG.to_dict() | {"server": None}),  # vLLM's numbers are those of a foreign server
        earlier(levels=LEVELS[:4][1:3]),
        earlier(config=CONFIG.to_dict() | {"server": {"model": MODEL}, "max_tokens": "many"}),
        earlier(results={}),
        earlier(results={"engines": []}),
        earlier(config=[], environment="", model=None),
    ],
    ids=["machine", "model", "prompt", "foreign", "one engine", "tokens", "empty", "damaged", "no objects"],
)
def test_nothing_is_estimated_where_something_is_not_known(run: Run) -> None:
    assert of(CONFIG, run) is None
    assert of(CONFIG) is None


def test_a_server_start_that_is_not_known_is_not_guessed() -> None:
    results = CompareResults(engines={"hf": EngineResult(load_s=HF_LOAD_S)}, levels=LEVELS).to_dict()
    assert of(CONFIG, earlier(results=results)) is not None
    assert of(CONFIG, earlier(results=results), server_ready=False) is None


def test_every_repeat_is_a_step() -> None:
    found = of(CONFIG, earlier())
    assert found is not None
    assert len(found.steps) == 1 + repeats_in_all(CONFIG) == 1 + len(shapes(CONFIG)) * 2


def test_time_left_is_that_of_the_steps_to_come_and_of_what_is_left_of_this_one() -> None:
    found = Estimate((Span(5, 6), Span(2, 3), Span(1, 1)), runs=1)
    assert found.left(0, 2.0) == Span(6, 8)
    assert found.left(1, 2.5) == Span(1, 1.5)
    assert found.left(2, 10.0) == Span(0, 0)  # longer than expected: nothing is known any more
    assert found.left(7, 0.0) == Span(0, 0)


def test_a_running_comparison_tells_the_time_left_and_a_finished_one_does_not() -> None:
    board = Board(CONFIG, 2, Estimate((Span(1000, 1000), Span(100, 100), Span(100, 100)), runs=1))
    first = board.snapshot().left_s
    board.begin_repeat("hf", Mode.SEQUENTIAL, 1, 0)
    second = board.snapshot().left_s
    board.begin_repeat("hf", Mode.SEQUENTIAL, 1, 1)
    third = board.snapshot().left_s
    assert first and second and third
    assert 1000 < first[0] <= 1200 and 100 < second[0] <= 200 and 0 < third[0] <= 100
    assert Board(CONFIG, 2).snapshot().left_s is None
