"""``runs`` on the command line: list, compare, export, import."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import cli
from engine.store import RunStore, run_to_json
from tests.reports import compare_run, load_run

A, B = compare_run("20261201-100000-aaaa", (30.0, 31.0, 32.0)), compare_run("20261201-110000-bbbb", (40.0, 41.0, 42.0))
Ran = Callable[..., tuple[int, Any]]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("LAB_DATA_DIR", str(tmp_path / "data"))
    store = RunStore(tmp_path / "data" / "runs.db")
    for run in (A, B):
        store.add(run)
    return store


@pytest.fixture
def ran(store: RunStore, capfd: pytest.CaptureFixture[str]) -> Ran:
    """Exit code and the one document on standard output."""

    def ran(*words: str) -> tuple[int, Any]:
        code = cli.main(["runs", *words, "--json"])
        return code, json.loads(capfd.readouterr().out)

    return ran


def test_the_list_and_one_run_as_before(ran: Ran) -> None:
    assert [run["id"] for run in ran()[1]["runs"]] == [B.id, A.id]
    assert ran(A.id)[1]["title"] == A.title


def test_a_run_is_latest_or_the_beginning_of_its_id(ran: Ran) -> None:
    code, answer = ran("compare", "20261201-10", "latest")
    assert code == 0
    assert [run["id"] for run in answer["runs"]] == [A.id, B.id]
    speeds = [row for row in answer["metrics"] if row["metric"] == "throughput_tok_s" and "vLLM" in row["point"]]
    assert speeds[0]["changes"] == [
        {"absolute": 10.0, "relative_pct": pytest.approx(32.26, abs=0.01), "beyond_spread": True, "chance_pct": 10.0}
    ]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("compare", "2026", "latest"), "beginning of 2 runs"),
        (("compare", "none", "latest"), "There is no run none."),
        (("compare", "latest"), "1 runs can't be compared."),
        (("export",), "nothing to export"),
        (("import",), "No file was given."),
        (("import", "/nowhere.json"), "can't be read"),
        (("ü\ud800",), "There is no run"),
        (("export", "latest", "--out", "/nowhere/x.html"), "can't be written"),
    ],
)
def test_what_cannot_be_is_said_with_a_remedy(ran: Ran, words: tuple[str, ...], cause: str) -> None:
    code, answer = ran(*words)
    assert code == 1
    assert cause in answer["error"] and answer["remedy"]


@pytest.mark.parametrize("kind", ["html", "csv", "json"])
def test_an_export_is_the_file(ran: Ran, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"out.{kind}"
    code, answer = ran("export", "latest", "20261201-10", "--format", kind, "--out", str(path))
    assert code == 0
    assert answer["exported"] == [B.id, A.id]
    assert path.stat().st_size == answer["bytes"]


def test_an_import_is_a_new_run_that_says_so(ran: Ran, store: RunStore, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(run_to_json(load_run()))
    code, answer = ran("import", str(path))
    assert code == 0
    (made,) = answer["imported"]
    assert made["kind"] == "imported-load"
    assert len(store.list()) == 3


def test_a_bad_file_among_good_ones_stores_nothing(ran: Ran, store: RunStore, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(run_to_json(load_run()))
    bad.write_text("{")
    assert ran("import", str(good), str(bad))[0] == 1
    assert len(store.list()) == 2
