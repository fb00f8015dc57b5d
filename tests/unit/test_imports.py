"""Imports: what comes in says where from, and what can't be trusted is refused with a cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.config import PROJECT_ROOT, LoadTestConfig
from engine.errors import ConfigError
from engine.imports import MAX_BYTES, is_imported, origin_of, read_runs
from engine.imports.mark import as_measured
from engine.imports.reading import read_file
from engine.load.export import vllm_bench_lines
from engine.load.results import LoadResults
from engine.report.points import points_of
from engine.store import RunStore, run_to_json, to_json
from tests.reports import chat_run, compare_run, guidellm_report, hostile, load_run

RECORDINGS = PROJECT_ROOT / "recordings"

RUNS = [load_run(), compare_run("20261201-110000-bbbb", (30.0, 31.0, 32.0)), chat_run()]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.kind)
def test_a_run_comes_back_whole_under_a_new_id(run: Any) -> None:
    (back,) = read_runs(run_to_json(run).encode(), "run.json")
    assert back.id != run.id
    assert back.kind == f"imported-{run.kind}"
    assert (back.title, back.created_at, back.duration_s, back.command) == (
        run.title,
        run.created_at,
        run.duration_s,
        run.command,
    )
    assert back.results == json.loads(to_json(run.results))
    assert points_of(back) == points_of(run)
    origin = origin_of(back)
    assert origin is not None
    assert (origin.format, origin.file, origin.original_id) == ("lab", "run.json", run.id)


def test_what_was_measured_here_has_no_origin() -> None:
    assert origin_of(RUNS[0]) is None
    assert not is_imported("load")


def test_importing_never_replaces_a_run(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.db")
    store.add(RUNS[0])
    for _ in range(2):
        for run in read_runs(run_to_json(RUNS[0]).encode(), "run.json"):
            store.add(run)
    kept = store.get(RUNS[0].id)
    assert kept is not None and kept.environment == RUNS[0].environment
    assert len(store.list()) == 3
    assert [run.id for run in store.list("load")] == [RUNS[0].id]


def test_an_imported_run_keeps_who_measured_it_over_a_second_export() -> None:
    (first,) = read_runs(json.dumps(guidellm_report()).encode(), "benchmarks.json")
    (second,) = read_runs(run_to_json(first).encode(), "run.json")
    origin = origin_of(second)
    assert origin is not None and origin.format == "guidellm"
    assert points_of(second) == points_of(first)


def test_vllm_bench_levels_come_back_by_its_own_definitions() -> None:
    run = load_run()
    lines = vllm_bench_lines(LoadResults.from_dict(run.results), LoadTestConfig(), "org/model", "20261201-235959")
    (back,) = read_runs(lines.encode(), "bench.json")
    assert back.created_at == "2026-12-01T23:59:59"
    assert as_measured(back).kind == "load"
    assert [(point.name, point.load) for point in points_of(back)] == [("1 user", 1), ("10 users", 10)]
    assert [point.values["throughput_tok_s"] for point in points_of(back)] == [27.0, 108.0]
    assert points_of(back) != points_of(run)
    theirs, ours = points_of(back)[0].values, points_of(run, "vllm_bench")[0].values
    assert theirs["ttft_p95_ms"] == ours["ttft_p95_ms"] == 95.0
    assert theirs["ttft_p50_ms"] is None, "not in the file: unknown, not our own"


def test_one_object_of_save_result_is_a_run_of_one_level() -> None:
    found = {"duration": 2.0, "completed": 5, "request_throughput": 2.5, "output_throughput": 100.0, "p99_ttft_ms": 8.0}
    (run,) = read_runs(json.dumps(found | {"request_rate": 2.5, "max_concurrency": None}).encode(), "one.json")
    (point,) = points_of(run)
    assert (point.name, point.load) == ("2.5 requests/s", 2.5)
    assert point.values["ttft_p99_ms"] == 8.0
    assert point.values["failed"] is None


def test_guidellm_strategies_become_levels() -> None:
    (run,) = read_runs(json.dumps(guidellm_report()).encode(), "benchmarks.json")
    assert [point.name for point in points_of(run)] == ["1 user", "10 users", "2.5 requests/s"]
    values = points_of(run)[0].values
    assert values["throughput_tok_s"] == 100.0
    assert values["e2e_p95_ms"] == 2000.0, "its request latency is in seconds"
    assert values["itl_p95_ms"] is None, "zeros over nothing are unknown"
    assert (values["requests_ok"], values["failed"], values["output_tokens"]) == (10, 2, 500)
    assert run.model == {"model_id": "org/model"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"text",
        b"[1, 2]",
        b"{}",
        b'{"id": 1',
        b"[" * 100_000,
        b'{"benchmarks": []}',
        b'{"benchmarks": [{"metrics": 1}, 2]}',
        b'{"runs": []}',
        b'{"duration": 1, "completed": 1, "request_throughput": 1}',
        json.dumps({"id": "x", "kind": "magic", "results": {}}).encode(),
        json.dumps({"id": "x", "kind": "load", "results": []}).encode(),
        json.dumps({"id": "x", "kind": "load", "results": {}, "config": {}, "model": 1, "environment": {}}).encode(),
        json.dumps(load_run(results={"levels": [1]}).to_dict()).encode(),
        json.dumps(load_run(results={"levels": [{"badges": [{"code": 1}]}]}).to_dict()).encode(),
        json.dumps(compare_run("x", (1.0,), results={"engines": 1}).to_dict()).encode(),
        json.dumps({"runs": [load_run().to_dict()] * 51}).encode(),
    ],
    ids=lambda content: content[:40],
)
def test_what_is_no_run_is_refused_with_cause_and_remedy(content: bytes) -> None:
    with pytest.raises(ConfigError) as refused:
        read_runs(content, "file.json")
    assert refused.value.cause and refused.value.remedy


def test_a_file_that_is_too_large_is_not_even_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES * 3)
    with pytest.raises(ConfigError, match="larger than 32 MiB"):
        read_file(path)


def test_a_missing_file_is_a_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_file(tmp_path / "none.json")


def test_halves_of_characters_and_infinities_can_be_stored(tmp_path: Path) -> None:
    run = load_run(title="half \ud83d", duration_s=float("inf"), command="\udcff")
    (back,) = read_runs(json.dumps(run.to_dict()).encode(), "run.json")
    store = RunStore(tmp_path / "runs.db")
    store.add(back)
    assert back.duration_s is None
    assert store.get(back.id) is not None


@pytest.mark.parametrize("kind", ["load", "compare", "chat"])
def test_hostile_text_is_kept_as_text(kind: str) -> None:
    (back,) = read_runs(run_to_json(hostile(kind)).encode(), "x.json")
    assert back.title.startswith("<script>")
    assert back.status == "done", "an unknown status is none of ours"


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.json")), ids=lambda path: path.stem)
def test_a_recording_is_a_whole_run_with_where_it_was_measured(path: Path) -> None:
    (run,) = read_file(path)
    assert is_imported(run.kind)
    assert run.environment["hardware"]["gpus"][0]["name"] == "NVIDIA H200"
    assert run.environment["packages"]["vllm"] == "0.25.1"
    assert "vllm.entrypoints.openai.api_server" in run.command
    assert "/opt/" not in path.read_text("utf-8") and "/root/" not in path.read_text("utf-8")
    assert points_of(run)
