"""The page of all engines: words from the data file, numbers from the saved runs alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from components import engines_view
from engine.compare_results import CompareResults, EngineResult, Level, Mode
from engine.config import PEER_ENGINES
from engine.dialects.table import dialects
from engine.landscape import engines, measured_here
from engine.store import RunStore
from tests.ui import fakes
from tests.ui.conftest import OpenPage
from tests.ui.page import HOSTILE, said

LEVELS = (
    Level(1, Mode.CONCURRENT, "llamacpp", 90.0),
    Level(5, Mode.CONCURRENT, "llamacpp", 150.0),
    Level(5, Mode.SEQUENTIAL, "hf", 20.0),
    Level(5, Mode.STATIC_BATCH, "hf", 60.0),
)
RESULTS = CompareResults({"llamacpp": EngineResult(), "hf": EngineResult()}, LEVELS)


def test_without_runs_nothing_has_a_number(open_page: OpenPage) -> None:
    at = open_page(fakes.make_lab(fakes.READY), "engines")
    assert not at.exception
    for facts in engines():
        assert facts.name in said(at)
    assert said(at).count(engines_view.NOT_MEASURED) == len(engines())


def test_what_was_measured_here_is_shown_with_its_date(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.db")
    ours = fakes.saved_run(run_id="ours", results=RESULTS.to_dict())
    store.add(ours)
    machine = ours.environment["summary"]
    found = measured_here(store, machine)
    assert found["llamacpp"].throughput_tok_s == {1: 90.0, 5: 150.0}
    assert found["hf"].throughput_tok_s == {5: 60.0}, "the best way of Hugging Face counts"
    assert "vllm" not in found and not found["hf"].doubted
    assert measured_here(store, "another machine") == {}


def test_a_number_that_its_run_warned_of_is_shown_with_the_doubt(open_page: OpenPage) -> None:
    warned = replace(RESULTS, warnings=("Something else computed.",))
    lab = fakes.make_lab(fakes.READY, runs=[fakes.saved_run(results=warned.to_dict())])
    at = open_page(lab, "engines")
    assert "90 tok/s for one user, 150 tok/s for 5 at once" in said(at)
    assert "other programs disturbed it" in said(at)


def test_unfinished_and_damaged_runs_tell_nothing(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.db")
    ours = fakes.saved_run(run_id="one", results=RESULTS.to_dict(), status="cancelled")
    store.add(ours)
    store.add(replace(ours, id="two", status="done", results={"engines": HOSTILE}))
    assert measured_here(store, ours.environment["summary"]) == {}


def test_every_key_is_an_engine_that_the_lab_knows() -> None:
    known = {dialect.key for dialect in dialects()}
    assert {facts.key for facts in engines() if facts.key} <= known
    assert set(PEER_ENGINES) <= {facts.key for facts in engines()}
    assert all(facts.source.startswith("https://") for facts in engines())
