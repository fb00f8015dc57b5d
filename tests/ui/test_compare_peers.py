"""Other engines on the Compare page: offered where they can run, and what follows from their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from components import compare_lesson
from components.race import race_data
from engine.compare_results import CompareResults, CompareSnapshot, CompareState, Lane, LaneState, Level, Mode
from engine.config import CompareConfig
from engine.peers import launching
from tests.ui import fakes
from tests.ui.conftest import OpenPage
from tests.ui.page import keys, press, said

START = "Start the race"
PROGRAM = Path("/built/llama-server")


def test_an_installed_engine_is_a_toggle_and_races(open_page: OpenPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "llama_program", lambda: PROGRAM)
    lab = fakes.make_lab(fakes.READY)
    at = open_page(lab, "compare")
    at.toggle(key="compare_llamacpp").set_value(True)
    press(at, START)
    assert not at.exception
    assert lab.compare.made == [("start", CompareConfig(users=(1, 5), engines=("hf", "vllm", "llamacpp")))]


def test_one_that_is_not_installed_is_a_line_and_no_control(
    open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "llama_program", lambda: None)
    at = open_page(fakes.make_lab(fakes.READY), "compare")
    assert "compare_llamacpp" not in keys(at) and "compare_transformers" in keys(at)
    assert "llama.cpp can race too." in said(at) and "make llama" in said(at)


def level(engine: str, users: int, speed: float, spread: float = 1.0) -> Level:
    return Level(users, Mode.CONCURRENT, engine, speed, (speed - spread, speed + spread))


def test_the_lesson_follows_from_the_numbers() -> None:
    levels = (level("llamacpp", 1, 90), level("llamacpp", 20, 200), level("vllm", 1, 30), level("vllm", 20, 300))
    (sentence,) = compare_lesson.sentences(CompareResults({}, levels))
    assert sentence == (
        "For one user llama.cpp writes 3.0× the tokens per second of vLLM; "
        "with 20 at once vLLM writes 1.5× the tokens per second of llama.cpp."
    )


def test_a_disturbed_measurement_says_that_its_lesson_may_be_wrong() -> None:
    levels = (level("llamacpp", 1, 90), level("vllm", 1, 30))
    disturbed = CompareResults({}, levels, warnings=("Something else computed.",))
    assert compare_lesson.sentences(disturbed)[-1] == compare_lesson.DISTURBED
    assert compare_lesson.sentences(CompareResults({}, (), warnings=("Something else computed.",))) == []


def test_overlapping_ranges_have_no_winner() -> None:
    levels = (level("transformers", 5, 100, 10), level("vllm", 5, 105, 10))
    assert compare_lesson.sentences(CompareResults({}, levels)) == [
        "With 5 at once vLLM and transformers serve are about as fast."
    ]


@pytest.mark.parametrize("levels", [(), (level("llamacpp", 1, 90),), (level("llamacpp", 1, 90), level("vllm", 5, 90))])
def test_without_a_pair_there_is_no_lesson(levels: tuple[Level, ...]) -> None:
    assert compare_lesson.sentences(CompareResults({}, levels)) == []


def test_every_engine_has_a_lane_in_the_race() -> None:
    lanes = tuple(Lane(name, name, LaneState.DONE, ((0.1, "a"),), 0.1) for name in ("hf", "vllm", "llamacpp"))
    snapshot = CompareSnapshot(CompareState.DONE, config=CompareConfig(max_tokens=2), lanes=lanes)
    assert [lane["label"] for lane in race_data(snapshot)["lanes"]] == ["Hugging Face", "llama.cpp", "vLLM"]
