"""Tuning on the real vLLM: predicted is what comes, a killed grid goes on, and the recommended file means the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.config import DEFAULT_MODEL, Device, ServerConfig, Settings
from engine.environment import detect_hardware
from engine.models import find_ready
from engine.server.command import build_launch
from engine.store import RunStore
from engine.tuning import studies
from engine.tuning.recommend import serve_yaml
from engine.tuning.study import StudyState, Trial, TrialState
from tests.e2e.lab import ROOT, App, cli, data_folder, environment, gone, wait_for

LOAD = ("--users", "4", "--requests", "4", "--max-tokens", "8")
TRIAL_S = 200.0
# Both spellings, as vLLM itself reads them; where it serves and its key are nobody's business.
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
def read(words):
    return {name: repr(value) for name, value in vars(parser.parse_args(words)).items()}
line, file = read(json.loads(sys.argv[1])), read(["--config", sys.argv[2]])
print(json.dumps({name: [line[name], file[name]] for name in line if line[name] != file[name]}))
"""


def test_a_grid_that_is_killed_in_the_middle_goes_on_in_the_next_process(tmp_path: Path) -> None:
    """A smaller max_num_seqs has another KV cache on a CPU: predicted and actual are the same for both."""
    folder = data_folder(tmp_path / "data")
    words = ("tune", "--max-num-seqs", "4,48", *LOAD)
    command = [sys.executable, "-m", "engine", *words, "--json"]
    first = subprocess.Popen(command, cwd=ROOT, env=environment(folder), stdout=subprocess.DEVNULL)
    try:
        wait_for("the first trial", lambda: first.poll() is None and measured(folder), TRIAL_S)
        record = App.__new__(App)
        record.data_dir = folder
        server = wait_for("the second server", record.record, 60)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    wait_for("its server to be gone", lambda: gone(server), 30)

    answer, code = cli(folder, "tune", "--resume", timeout_s=TRIAL_S)

    assert code == 0, answer
    trials = answer["trials"]
    assert [one["changes"] for one in trials] == [{"max_num_seqs": 4}, {"max_num_seqs": 48}]
    assert all(one["state"] == "done" and one["level"]["throughput_tok_s"] > 0 for one in trials)
    for one in trials:
        assert {row["name"]: row["off_pct"] for row in one["outcomes"]} == dict.fromkeys(
            ("kv_bytes", "block_size", "num_blocks", "tokens", "max_concurrency"), 0
        )
    assert trials[0]["actual"]["num_blocks"] < trials[1]["actual"]["num_blocks"]
    assert {run.config["trial"] for run in RunStore(Settings(folder).database).list("tune")} == {0, 1}
    assert answer["recommendation"]["config"]["max_num_seqs"] in (4, 48)


def measured(folder: Path) -> bool:
    """Whether the first trial is measured and the second begun."""
    if not Settings(folder).database.exists():
        return False
    found = studies.kept(RunStore(Settings(folder).database))
    trials: tuple[Trial, ...] = found[0].trials if found else ()
    return len(trials) == 2 and trials[0].done and trials[1].state == TrialState.RESTARTING


def test_the_app_goes_on_by_itself_with_a_study_that_a_kill_interrupted(tmp_path: Path) -> None:
    folder = data_folder(tmp_path / "data")
    answer, _ = cli(folder, "tune", "--plan", "--max-num-seqs", "4", *LOAD)
    assert answer["plan"][0]["starts"] and answer["plan"][0]["exact"]
    store = RunStore(Settings(folder).database)
    left = studies.new_study(small_grid(), (Trial(0, {"max_num_seqs": 4}, state=TrialState.MEASURING, attempts=1),))
    studies.keep(store, left)
    app = App(folder)
    try:
        done = wait_for("the study", lambda: (now := studies.kept(store)[0]).state == StudyState.DONE and now, TRIAL_S)
        assert done.trials[0].done and done.trials[0].attempts == 2
    finally:
        app.close()


def small_grid() -> Any:
    from engine.cli import build_parser
    from engine.cli.tune import config_of

    return config_of(build_parser().parse_args(["tune", "--max-num-seqs", "4", *LOAD]))


@pytest.mark.parametrize(
    "config",
    [
        ServerConfig(max_num_seqs=8, enable_chunked_prefill=False, enable_prefix_caching=False),
        ServerConfig(kv_cache_dtype="fp8", block_size=64, max_num_batched_tokens=512, enforce_eager=False),
    ],
)
def test_the_recommended_file_means_the_same_to_vllm_as_the_command(config: ServerConfig, tmp_path: Path) -> None:
    settings = Settings.from_env(os.environ | {"LAB_DATA_DIR": str(ROOT / "data")})
    source = find_ready(DEFAULT_MODEL, settings)
    assert source is not None
    hardware = detect_hardware(settings)
    launch = build_launch(config, hardware, source, port=8000, api_key="")
    file = tmp_path / "lab.yaml"
    file.write_text(serve_yaml(launch))
    words = list(launch.argv[3:])
    done = subprocess.run(
        [sys.executable, "-c", PARSE, json.dumps(words), str(file)],
        env=os.environ | launch.env,
        capture_output=True,
        text=True,
        timeout=TRIAL_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    differing = json.loads(done.stdout.splitlines()[-1])
    # The file has the memory itself, which the command takes from a variable on a CPU.
    expected = {"host"} | ({"kv_cache_memory_bytes"} if hardware.device == Device.CPU else set())
    assert set(differing) - {"config"} == expected, differing
