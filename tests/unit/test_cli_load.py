"""``load`` on the command line: its words, its document, and what Ctrl-C leaves."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import cli
from engine.cli.load import config_of
from engine.config import PROJECT_ROOT, LoadTestConfig, Settings
from engine.store import RunStore
from tests.fake_openai import FakeOpenAI, Script

SHORT = ("--max-tokens", "10", "--requests", "4")
METRICS = "vllm:num_requests_running 0\n"


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """The command line takes signals for itself; the test run wants them back."""
    taken = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in taken]
    yield
    for number, handler in zip(taken, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def fake() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(Script(ttft_s=0.01, gap_s=0.002)) as server:
        server.metrics_text = METRICS
        yield server


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a verb; returns exit code and standard output."""

    def run(*words: str) -> tuple[int, str]:
        code = cli.main(["load", *words])
        return code, capfd.readouterr().out

    return run


def parsed(*words: str) -> LoadTestConfig:
    return config_of(cli.build_parser().parse_args(["load", *words]))


# -- words


def test_without_words_it_is_the_workshop() -> None:
    assert parsed() == LoadTestConfig()


def test_every_word_reaches_the_config() -> None:
    assert parsed("--users", "1,5", "--duration", "30", "--slo", "ttft=500,tpot=100,e2e=9000") == LoadTestConfig(
        users=(1, 5), duration_s=30, slo_ttft_ms=500, slo_tpot_ms=100, slo_e2e_ms=9000
    )
    assert parsed("--rate", "2,4.5") == LoadTestConfig(profile="poisson", rates=(2, 4.5))
    assert parsed("--rate", "2", "--profile", "constant").profile == "constant"
    assert parsed("--profile", "ramp", "--users", "1,64").users == (1, 64)
    assert parsed("--trace", "a.csv", "--trace-speed", "10") == LoadTestConfig(
        profile="trace", trace="a.csv", trace_speed=10
    )
    assert parsed("--prompt-file", "a.jsonl") == LoadTestConfig(prompts="file", prompt_file="a.jsonl")
    flags = parsed("--same-prompt", "--no-nonce", "--no-force-length", "--no-warm-up", "--timeout", "9", "--seed", "3")
    assert flags == LoadTestConfig(
        same_prompt=True, nonce=False, force_length=False, warm_up=False, timeout_s=9, seed=3
    )
    lengths = parsed("--prompt-shape", "uniform", "--prompt-spread", "0.5", "--prompt-tokens", "200")
    assert (lengths.prompt_shape, lengths.prompt_spread, lengths.prompt_tokens) == ("uniform", 0.5, 200)


@pytest.mark.parametrize(
    "words",
    [
        ("--users", "0"),
        ("--users", "10001"),
        ("--users", "one"),
        ("--rate", "0"),
        ("--rate", "2", "--users", "3"),
        ("--duration", "0"),
        ("--slo", "ttft"),
        ("--slo", "speed=3"),
        ("--slo", "ttft=-1"),
        ("--slo", "ttft=nan"),
        ("--profile", "poisson"),
        ("--prompts", "file"),
        ("--prompt-tokens", "0"),
    ],
)
def test_words_that_make_no_load_test_are_one_error_with_a_remedy(
    run: Callable[..., tuple[int, str]], words: tuple[str, ...]
) -> None:
    code, out = run(*words, "--json")
    answer = json.loads(out)
    assert code == 1 and answer["error"] and answer["remedy"]


def test_a_server_that_is_not_there_is_an_error(run: Callable[..., tuple[int, str]]) -> None:
    code, out = run("--base-url", "http://127.0.0.1:9/v1", "--json")
    assert code == 1 and "No server answers" in json.loads(out)["error"]


# -- what comes out


def test_the_document_has_a_level_for_each_load_and_is_a_saved_run(
    run: Callable[..., tuple[int, str]], fake: FakeOpenAI
) -> None:
    code, out = run("--base-url", fake.base_url, "--users", "1,2", *SHORT, "--slo", "ttft=5000", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["state"] == "done"
    assert [(level["users"], level["requests"], level["failed"]) for level in answer["levels"]] == [
        (1, 4, 0),
        (2, 4, 0),
    ]
    first = answer["levels"][0]
    assert first["output_tokens"] == 40 and first["goodput_pct"] == 100 and first["client_cpu_s"] > 0
    assert first["ttft_p50_ms"] > 9 and first["tpot_p50_ms"] > 0 and first["badges"][0]["code"] == "few_samples"
    assert set(first["conventions"]) == {"vllm_bench", "guidellm"} and "samples" not in first
    saved = RunStore(Settings.from_env().database).get(answer["run_id"])
    assert saved is not None and len(saved.results["levels"][0]["samples"]) == 4


def test_the_table_says_what_the_document_says(run: Callable[..., tuple[int, str]], fake: FakeOpenAI) -> None:
    code, out = run("--base-url", fake.base_url, "--users", "2", *SHORT)
    assert code == 0 and "2 users" in out and "TTFT p50" in out and "Few samples for" in out


def test_files_are_written_beside_it(run: Callable[..., tuple[int, str]], fake: FakeOpenAI, tmp_path: Path) -> None:
    table, bench = tmp_path / "a.csv", tmp_path / "a.json"
    words = ("--base-url", fake.base_url, "--users", "1,2", *SHORT)
    code, _ = run(*words, "--save-csv", str(table), "--save-vllm-bench", str(bench), "--json")
    assert code == 0
    assert [row["users"] for row in csv.DictReader(table.read_text().splitlines())] == ["1", "2"]
    assert [json.loads(line)["completed"] for line in bench.read_text().splitlines()] == [4, 4]
    code, out = run(*words, "--save-csv", str(tmp_path / "missing" / "a.csv"), "--json")
    answer = json.loads(out)
    assert code == 1 and "can't be written: No such file" in answer["error"]
    assert [level["requests_ok"] for level in answer["levels"]] == [4, 4]


def test_failures_are_counted_and_said(run: Callable[..., tuple[int, str]], fake: FakeOpenAI) -> None:
    asked: list[Any] = []

    def every_third(body: dict[str, Any]) -> Script:
        asked.append(body)
        return Script(status=500, body=b"{}", content_type="text/plain") if len(asked) % 3 == 0 else Script(gap_s=0.0)

    fake.script_for = every_third
    code, out = run("--base-url", fake.base_url, "--users", "2", "--max-tokens", "10", "--requests", "30", "--json")
    level = json.loads(out)["levels"][0]
    assert code == 0 and (level["requests_ok"], level["failed"]) == (20, 10)
    assert level["failures"][0]["count"] == 10 and "HTTP 500" in level["failures"][0]["reason"]


def test_ctrl_c_keeps_what_was_measured(fake: FakeOpenAI, data_dir: Path) -> None:
    fake.script_for = lambda _: Script(ttft_s=0.0, gap_s=0.0) if len(fake.sent) < 20 else Script(ttft_s=60.0)
    words = (
        "load",
        "--base-url",
        fake.base_url,
        "--users",
        "1,2",
        *SHORT,
        "--no-warm-up",
        "--requests",
        "16",
        "--json",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "engine", *words], cwd=PROJECT_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while fake.active < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    answer = json.loads(out)
    assert process.returncode == 1 and answer["state"] == "cancelled"
    assert answer["levels"][0]["requests_ok"] == 16 and answer["levels"][0]["partial"] == ""
    assert answer["levels"][1]["cancelled"] == 2 and answer["levels"][1]["partial"]
    saved = RunStore(Settings(data_dir).database).get(answer["run_id"])
    assert saved is not None and saved.status == "cancelled"


def test_what_failed_half_way_is_an_error_with_what_was_measured(
    run: Callable[..., tuple[int, str]], fake: FakeOpenAI
) -> None:
    fine, broken = Script(ttft_s=0.0, gap_s=0.0), Script(status=503, body=b"", content_type="text/plain")
    fake.script_for = lambda _: fine if len(fake.sent) < 30 else broken
    words = ("--base-url", fake.base_url, "--users", "1", "--max-tokens", "10", "--requests", "100")
    code, out = run(*words, "--json")
    answer = json.loads(out)
    assert code == 1 and "failed one after another" in answer["error"] and answer["levels"][0]["requests_ok"] > 20
    fake.sent.clear()
    code, out = run(*words)
    assert code == 1 and "1 user" in out
