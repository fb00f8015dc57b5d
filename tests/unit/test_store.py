"""The database of runs: threads, order, migrations, damage, a full disk, a killed writer, and exports."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import store as store_module
from engine.config import PROJECT_ROOT
from engine.errors import ConfigError, DiskFull, LabError, StoreError
from engine.server import log
from engine.store import Run, RunStore, RunSummary, new_run, run_to_json, runs_to_csv
from engine.store_errors import lab_error

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "runs.db"


@pytest.fixture
def store(path: Path) -> RunStore:
    return RunStore(path)


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A folder that this process may read but not write, also when the tests run as root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        as_root = os.geteuid() == 0
        if as_root:
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            if as_root:
                os.seteuid(0)
            folder.chmod(0o755)


def full_run(title: str = "A comparison") -> Run:
    return new_run(
        "compare",
        title,
        duration_s=12.5,
        config={"users": [1, 5], "prompt": "Why?"},
        environment={"python": "3.11", "packages": {"vllm": None}},
        model={"model_id": "owner/name"},
        command="vllm serve owner/name",
        results={"ratio": 3.5, "engines": {"vllm": {"ttft_ms": 30.25}}},
    )


def write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def kept_aside(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.corrupt-*"))


# -- runs


def test_a_run_comes_back_as_it_was_saved(store: RunStore) -> None:
    run = full_run()
    store.add(run)
    assert store.get(run.id) == run
    assert store.list() == [run]


def test_an_unknown_run_is_none_and_deleting_it_says_so(store: RunStore) -> None:
    assert store.get("missing") is None
    assert store.delete("missing") is False


def test_a_deleted_run_is_gone_and_the_others_stay(store: RunStore) -> None:
    kept, gone = full_run(), full_run()
    store.add(kept)
    store.add(gone)
    assert store.delete(gone.id) is True
    assert store.list() == [kept]


def test_saving_again_replaces_the_run(store: RunStore) -> None:
    run = full_run("first")
    store.add(run)
    again = Run(**(run.to_dict() | {"title": "second"}))
    store.add(again)
    assert store.list() == [again]


def test_the_newest_run_comes_first_even_within_one_second(store: RunStore) -> None:
    runs = [full_run(str(number)) for number in range(20)]
    for run in reversed(runs):
        store.add(run)
    assert [run.title for run in store.list()] == [str(number) for number in reversed(range(20))]


def test_the_list_is_limited_and_filtered_by_kind(store: RunStore) -> None:
    for kind in ("compare", "chat", "compare"):
        store.add(new_run(kind, kind))
    newest = store.list()[0]
    assert [run.kind for run in store.list("compare")] == ["compare", "compare"]
    assert store.list("nothing") == []
    assert store.list(limit=1) == [newest]


def test_every_run_is_listed_where_no_limit_is_given(store: RunStore, path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.executemany(
            "INSERT INTO runs VALUES (?, 'compare', 't', 'done', '', NULL, '{}', '{}', '{}', '', '{}')",
            [(f"{number:05}",) for number in range(501)],
        )
    assert len(store.list()) == 500
    assert len(store.list(limit=None)) == len(store.summaries()) == 501


def test_a_summary_is_a_run_without_what_is_large(store: RunStore) -> None:
    run = new_run("compare", "t", "cancelled", duration_s=3.5, environment={"summary": "A CPU"}, results={"ratio": 2.5})
    store.add(run)
    assert store.summaries() == [
        RunSummary(run.id, "compare", "t", "cancelled", run.created_at, 3.5, machine="A CPU", ratio=2.5)
    ]


def test_summaries_come_newest_first_by_kind_and_limited(store: RunStore) -> None:
    for title, kind in (("1", "compare"), ("2", "chat"), ("3", "compare")):
        store.add(new_run(kind, title))
    assert [run.title for run in store.summaries()] == ["3", "2", "1"]
    assert [run.title for run in store.summaries("compare", limit=1)] == ["3"]


@pytest.mark.parametrize("saved", ["{", "[]", "null", '"text"', '{"ratio": "fast"}', '{"ratio": {"a": 1}}', "{}"])
def test_a_summary_of_a_damaged_run_leaves_out_what_is_damaged(store: RunStore, path: Path, saved: str) -> None:
    store.add(new_run("compare", "odd"))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE runs SET results = ?1, environment = ?1", (saved,))
    (summary,) = store.summaries()
    assert (summary.title, summary.ratio, summary.machine) == ("odd", None, "")


def test_many_threads_add_read_and_delete_at_once(store: RunStore) -> None:
    def work(number: int) -> str:
        kept, gone = full_run(f"kept {number}"), full_run(f"gone {number}")
        store.add(kept)
        store.add(gone)
        assert store.get(kept.id) == kept
        assert kept in store.list()
        assert store.delete(gone.id)
        return kept.id

    with ThreadPoolExecutor(16) as pool:
        ids = list(pool.map(work, range(64)))
    assert {run.id for run in store.list()} == set(ids)
    assert len(set(ids)) == 64


def test_what_is_saved_is_there_after_opening_again(store: RunStore, path: Path) -> None:
    run = full_run()
    store.add(run)
    assert RunStore(path).list() == [run]


# -- expected times of a start


def test_expected_start_is_the_median_of_each_phase(store: RunStore) -> None:
    for seconds in (10.0, 30.0, 20.0):
        store.add_start("a", {"import": seconds, "weights": seconds / 10}, seconds * 1.1)
    assert store.expected_start("a") == {"import": 20.0, "weights": 2.0}


def test_expected_start_looks_only_at_the_last_five_and_at_its_own_key(store: RunStore) -> None:
    for seconds in (1000.0, 1000.0, 1000.0, 1.0, 2.0, 3.0, 4.0, 5.0):
        store.add_start("a", {"import": seconds}, seconds)
    store.add_start("b", {"import": 77.0}, 77.0)
    assert store.expected_start("a") == {"import": 3.0}
    assert store.expected_start("b") == {"import": 77.0}
    assert store.expected_start("c") == {}


def test_a_phase_that_only_some_starts_had_is_the_median_of_those(store: RunStore) -> None:
    store.add_start("a", {"import": 4.0, "warm_up": 9.0}, 13.0)
    store.add_start("a", {"import": 6.0}, 6.0)
    assert store.expected_start("a") == {"import": 5.0, "warm_up": 9.0}


# -- migrations


def user_version(path: Path) -> int:
    db = sqlite3.connect(path)
    try:
        return int(db.execute("PRAGMA user_version").fetchone()[0])
    finally:
        db.close()


def test_a_new_database_has_the_present_version(store: RunStore, path: Path) -> None:
    assert user_version(path) == len(store_module.MIGRATIONS)
    assert store.notice is None


def test_an_empty_file_is_version_zero_and_becomes_a_database(path: Path) -> None:
    write_file(path, b"")
    store = RunStore(path)
    store.add(full_run())
    assert (len(store.list()), store.notice) == (1, None)


def test_an_older_schema_is_migrated_and_keeps_its_runs(
    store: RunStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run()
    store.add(run)
    script = "ALTER TABLE starts ADD COLUMN note TEXT; CREATE TABLE extra (id INTEGER);"
    before = len(store_module.MIGRATIONS)
    monkeypatch.setattr(store_module, "MIGRATIONS", (*store_module.MIGRATIONS, script))
    assert RunStore(path).list() == [run]
    assert user_version(path) == before + 1
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(note) FROM starts").fetchone() == (0,)
    db.close()


def test_a_migration_that_fails_leaves_the_older_version_whole(
    store: RunStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run()
    store.add(run)
    before = len(store_module.MIGRATIONS)
    broken = "CREATE TABLE extra (id INTEGER); NONSENSE;"
    monkeypatch.setattr(store_module, "MIGRATIONS", (*store_module.MIGRATIONS, broken))
    with pytest.raises(StoreError, match="syntax error"):
        RunStore(path)
    assert user_version(path) == before
    monkeypatch.undo()
    assert RunStore(path).list() == [run]


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_newer_database_is_refused_and_left_untouched(path: Path, journal: str) -> None:
    path.parent.mkdir(parents=True)
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA journal_mode={journal}")
    db.execute("CREATE TABLE runs (future TEXT)")
    db.execute("PRAGMA user_version = 999")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="newer vLLM Lab") as caught:
        RunStore(path)
    assert "LAB_DATA_DIR" in caught.value.remedy
    assert path.read_bytes() == before
    assert kept_aside(path) == []


def test_many_openers_of_a_new_database_at_once_all_succeed(path: Path) -> None:
    barrier = threading.Barrier(8)

    def open_and_add(number: int) -> None:
        barrier.wait()
        RunStore(path).add(full_run(str(number)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(open_and_add, range(8)))
    assert sorted(run.title for run in RunStore(path).list()) == [str(number) for number in range(8)]


# -- damage


def damaged_header(path: Path) -> bytes:
    data = b"this was never a database" * 400
    write_file(path, data)
    return data


def damaged_pages(path: Path) -> bytes:
    store = RunStore(path)
    for number in range(50):
        store.add(new_run("compare", str(number), results={"text": "x" * 2000}))
    data = bytearray(path.read_bytes())
    data[8192:-4096] = os.urandom(len(data) - 8192 - 4096)
    write_file(path, bytes(data))
    return bytes(data)


def cut_short(path: Path) -> bytes:
    store = RunStore(path)
    for number in range(50):
        store.add(new_run("compare", str(number), results={"text": "x" * 2000}))
    data = path.read_bytes()[:20_000]
    write_file(path, data)
    return data


@pytest.mark.parametrize("damage", [damaged_header, damaged_pages, cut_short])
def test_a_damaged_database_is_kept_aside_and_a_new_one_begun(path: Path, damage: Callable[[Path], bytes]) -> None:
    data = damage(path)
    store = RunStore(path)
    (aside,) = kept_aside(path)
    assert aside.read_bytes() == data
    assert store.notice is not None and aside.name in store.notice
    run = full_run()
    store.add(run)
    assert RunStore(path).list() == [run]


def test_every_damaged_database_is_kept_not_only_the_last(path: Path) -> None:
    for number in range(5):
        write_file(path, f"damaged {number} ".encode() * 100)
        RunStore(path)
    kept = {part.read_bytes() for part in kept_aside(path)}
    assert kept == {f"damaged {number} ".encode() * 100 for number in range(5)}


def test_a_sound_database_beside_a_damaged_one_gives_no_notice(path: Path) -> None:
    damaged_header(path)
    RunStore(path)
    assert RunStore(path).notice is None
    assert len(kept_aside(path)) == 1


# -- no permission, no room


def test_a_read_only_folder_is_a_config_error(read_only_folder: Path) -> None:
    with pytest.raises(ConfigError, match="can't be opened") as caught:
        RunStore(read_only_folder / "runs.db")
    assert "LAB_DATA_DIR" in caught.value.remedy


def test_a_data_folder_that_can_not_be_made_is_a_config_error(read_only_folder: Path) -> None:
    with pytest.raises(ConfigError, match="can't be written") as caught:
        RunStore(read_only_folder / "data" / "runs.db")
    assert "LAB_DATA_DIR" in caught.value.remedy


def test_a_full_disk_is_shown_as_such_and_loses_nothing(
    store: RunStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = full_run()
    store.add(first)
    connect = sqlite3.connect

    def connect_with_limit(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        db = connect(*args, **kwargs)
        db.execute("PRAGMA max_page_count = 1")  # no less than it has now
        return db

    monkeypatch.setattr(sqlite3, "connect", connect_with_limit)
    with pytest.raises(DiskFull, match="No room on the disk") as caught:
        store.add(new_run("compare", "large", results={"text": "x" * 200_000}))
    assert caught.value.remedy
    monkeypatch.undo()
    assert store.list() == [first]


CALLS: dict[str, Callable[[RunStore], object]] = {
    "add": lambda store: store.add(full_run()),
    "list": lambda store: store.list(),
    "summaries": lambda store: store.summaries(),
    "get": lambda store: store.get("x"),
    "delete": lambda store: store.delete("x"),
    "add_start": lambda store: store.add_start("a", {"import": 1.0}, 1.0),
    "expected_start": lambda store: store.expected_start("a"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_database_that_is_damaged_later_is_an_error_with_a_remedy(
    store: RunStore, path: Path, call: Callable[[RunStore], object]
) -> None:
    damaged_header(path)
    with pytest.raises(StoreError, match="damaged") as caught:
        call(store)
    assert "Restart the lab" in caught.value.remedy


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_database_that_loses_its_tables_is_an_error_with_a_remedy(
    store: RunStore, path: Path, call: Callable[[RunStore], object]
) -> None:
    with sqlite3.connect(path) as db:
        db.executescript("DROP TABLE runs; DROP TABLE starts;")
    with pytest.raises(StoreError, match="isn't as this lab makes it: no such table") as caught:
        call(store)
    assert "Move it elsewhere" in caught.value.remedy


def test_a_database_that_stays_locked_is_an_error_that_says_so(
    store: RunStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = lock(path, monkeypatch)
    with pytest.raises(StoreError, match="locked") as caught:
        store.add(full_run())
    assert "try again" in caught.value.remedy
    assert store.list() == []  # reading goes on
    holder.close()
    store.add(full_run())
    assert len(store.list()) == 1


def lock(path: Path, monkeypatch: pytest.MonkeyPatch, how: str = "BEGIN IMMEDIATE") -> sqlite3.Connection:
    """Another program in the middle of a change; nobody waits for it."""
    connect = sqlite3.connect
    holder = connect(path, isolation_level=None)
    holder.execute(how)
    monkeypatch.setattr(sqlite3, "connect", lambda name, **_: connect(name, timeout=0))
    return holder


def test_a_new_database_that_another_program_locks_is_an_error_that_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir(parents=True)
    holder = lock(path, monkeypatch, "BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="Another program keeps .* locked") as caught:
        RunStore(path)
    assert "try again" in caught.value.remedy and "permissions" not in caught.value.remedy
    assert kept_aside(path) == []
    holder.close()
    assert RunStore(path).list() == []


def test_opening_to_read_needs_no_lock(store: RunStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(full_run())
    holder = lock(path, monkeypatch)
    assert len(RunStore(path).list()) == 1
    holder.close()


def test_the_database_of_another_program_is_refused_and_left_untouched(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE runs (theirs TEXT)")
    with pytest.raises(StoreError, match="already exists") as caught:
        RunStore(path)
    assert "Move it elsewhere" in caught.value.remedy
    assert user_version(path) == 0 and kept_aside(path) == []


def test_a_folder_in_the_place_of_the_database_is_a_config_error(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match="can't be opened"):
        RunStore(path)


@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        (sqlite3.SQLITE_FULL, DiskFull, "Free some space"),
        (sqlite3.SQLITE_BUSY, StoreError, "Close it there"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreError, "Close it there"),
        (sqlite3.SQLITE_LOCKED, StoreError, "Close it there"),
        (sqlite3.SQLITE_CORRUPT, StoreError, "keeps the damaged file aside"),
        (sqlite3.SQLITE_NOTADB, StoreError, "keeps the damaged file aside"),
        (sqlite3.SQLITE_CANTOPEN, LabError, "permissions"),
        (sqlite3.SQLITE_READONLY, LabError, "permissions"),
        (sqlite3.SQLITE_READONLY_DIRECTORY, LabError, "permissions"),
        (sqlite3.SQLITE_IOERR_WRITE, StoreError, "network drive"),
        (sqlite3.SQLITE_IOERR_SHMMAP, StoreError, "network drive"),
        (sqlite3.SQLITE_TOOBIG, StoreError, "fewer users"),
        (sqlite3.SQLITE_ERROR, StoreError, "Move it elsewhere"),
        (None, StoreError, "fault of the lab"),
    ],
)
def test_every_kind_of_failure_has_a_remedy_of_its_own(
    code: int | None, kind: type[LabError], remedy: str, opening: bool
) -> None:
    error = sqlite3.OperationalError("words that may change")
    if code is not None:
        error.sqlite_errorcode = code
    told = lab_error(Path("/data/runs.db"), error, opening=opening)
    assert isinstance(told, kind) and remedy in told.remedy and told.cause


def test_a_database_whose_folder_is_gone_is_an_error_with_a_remedy(store: RunStore, path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    with pytest.raises(StoreError, match="can't be read or written") as caught:
        store.list()
    assert caught.value.remedy


def test_damaged_history_of_starts_is_no_history(store: RunStore, path: Path) -> None:
    store.add_start("a", {"import": 4.0}, 4.0)
    store.add_start("a", {"import": 8.0}, 8.0)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE starts SET phases = '{' WHERE total_s = 8.0")
    assert store.expected_start("a") == {"import": 4.0}


WRITER = """
import sys
from pathlib import Path
from engine.store import RunStore, new_run
store = RunStore(Path(sys.argv[1]))
while True:
    run = new_run("compare", "t", results={"text": "x" * 5000})
    store.add(run)
    print(run.id, flush=True)
"""


def test_a_writer_killed_in_the_middle_leaves_every_finished_run(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        finished = [writer.stdout.readline().strip() for _ in range(40)]
        writer.send_signal(signal.SIGKILL)
        finished += [line.strip() for line in writer.stdout if line.endswith("\n")]
    assert writer.returncode == -signal.SIGKILL
    store = RunStore(path)
    assert store.notice is None
    saved = {run.id for run in store.list(limit=100_000)}
    assert len(finished) >= 40 and set(finished) <= saved
    assert len(saved - set(finished)) <= 1
    store.add(full_run())


# -- exports


def test_numbers_that_are_none_are_saved_as_unknown(store: RunStore) -> None:
    run = new_run("compare", "t", results={"a": math.nan, "b": [math.inf, 1.0], "c": {"d": -math.inf, "e": (2.5,)}})
    store.add(run)
    saved = store.get(run.id)
    assert saved is not None
    assert saved.results == {"a": None, "b": [None, 1.0], "c": {"d": None, "e": [2.5]}}


def test_json_has_neither_nan_nor_infinity() -> None:
    run = new_run("compare", "t", results={"a": math.nan, "b": [math.inf], "c": 1.5})

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in the document")

    document = json.loads(run_to_json(run), parse_constant=refuse)
    assert document["results"] == {"a": None, "b": [None], "c": 1.5}
    assert document["id"] == run.id


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_csv_cell_can_become_a_formula(start: str) -> None:
    evil = f"{start}cmd|' /C calc'!A0"
    run = new_run("compare", evil, config={"prompt": evil}, command=evil)
    (row,) = read_csv(runs_to_csv([run]))
    assert row["title"] == row["config.prompt"] == row["command"] == f"'{evil}"


def test_csv_has_one_line_a_run_and_the_columns_of_all() -> None:
    first = new_run("compare", "a, with a comma", results={"ratio": -2.5, "list": [1, None]})
    second = new_run("chat", "b\nsecond line", results={"ttft_ms": math.nan, "deep": {"er": 1}})
    rows = read_csv(runs_to_csv([first, second]))
    assert [row["title"] for row in rows] == ["a, with a comma", "b\nsecond line"]
    assert (rows[0]["results.ratio"], rows[0]["results.list"], rows[0]["results.deep.er"]) == ("-2.5", "[1, null]", "")
    assert (rows[1]["results.ratio"], rows[1]["results.ttft_ms"], rows[1]["results.deep.er"]) == ("", "", "1")


def test_csv_of_no_runs_has_no_rows() -> None:
    assert read_csv(runs_to_csv([])) == []


def test_a_damaged_cell_hides_no_other_run_and_nothing_else_of_its_own(path: Path) -> None:
    store = RunStore(path)
    good, bad = new_run("compare", "good"), new_run("compare", "bad", config={"a": 1}, results={"ratio": 2})
    store.add(good)
    store.add(bad)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE runs SET results = '{' WHERE id = ?", (bad.id,))
    assert store.get(bad.id) == replace(bad, results={})
    assert {run.id for run in store.list()} == {good.id, bad.id}


# -- the log beside it


def test_log_search_finds_the_first_line_of_a_long_log(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("Traceback: the FIRST error\n" + "INFO nothing to see\n" * 100_000)
    assert path.stat().st_size > 2 * log.TAIL_BYTES
    assert log.tail(path, 400, "first ERROR") == ["Traceback: the FIRST error"]
    assert log.tail(path, 3, "nothing") == ["INFO nothing to see"] * 3
    assert log.tail(path, 2) == ["INFO nothing to see"] * 2


def test_log_search_takes_a_line_without_an_end_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("x" * log.LINE_LIMIT * 3 + "needle")
    assert log.tail(path, 400, "needle") == ["needle"]


def test_log_search_reads_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"\xff\xfe error one\r\nloading 10%\rloading 20%\nerror \xc3\xa9\n")
    assert log.tail(path, 10, "error") == ["\ufffd\ufffd error one", "error é"]
    assert log.tail(path, 10, "loading 20") == ["loading 20%"]


def test_a_row_with_values_of_other_kinds_hides_no_other_run(path: Path) -> None:
    store = RunStore(path)
    good, bad = new_run("compare", "good"), new_run("compare", "bad")
    store.add(good)
    store.add(bad)
    with sqlite3.connect(path) as db:
        db.execute(
            "UPDATE runs SET duration_s = 'soon', title = x'ff00', results = ? WHERE id = ?", ("[" * 100_000, bad.id)
        )
    damaged = store.get(bad.id)
    assert damaged is not None and damaged.duration_s is None and isinstance(damaged.title, str)
    assert damaged.results == {}
    assert {run.id for run in store.summaries()} == {good.id, bad.id}
    json.loads(run_to_json(damaged))
