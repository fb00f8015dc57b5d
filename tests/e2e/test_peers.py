"""Other engines for real: measured by the command line, with every token that was asked for, and gone afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.peers.launching import PEERS
from tests.e2e.lab import ROOT, cli, data_folder, environment, wait_for

TOKENS, USERS = 12, 3


@pytest.mark.parametrize("name", ["transformers", "llamacpp"])
def test_it_is_measured_with_every_token_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    if (missing := PEERS[name].missing()) is not None:
        pytest.skip(str(missing))
    words = ("--engines", name, "--max-tokens", str(TOKENS), "--repeats", "1", "--users", f"1,{USERS}")
    found, code = cli(data_folder(tmp_path / "lab"), "compare", *words)
    assert code == 0, found
    one, many = found["levels"]
    assert (one["users"], one["output_tokens"]) == (1, TOKENS)
    assert (many["users"], many["output_tokens"]) == (USERS, USERS * TOKENS)
    single = found["engines"][name]
    assert single["throughput_tok_s"] > 0 and single["load_s"] > 0 and single["memory_bytes"] > 0
    (repeat,) = single["repeats"]
    assert repeat["prompt_tokens"] > 0
    assert any(PEERS[name].label in note for note in found["notes"])
    assert servers(tmp_path) == []


def test_it_goes_when_whoever_started_it_is_killed(tmp_path: Path) -> None:
    folder = data_folder(tmp_path / "lab")
    words = (sys.executable, "-m", "engine", "compare", "--engines", "transformers")
    with subprocess.Popen(words, cwd=ROOT, env=environment(folder), stderr=subprocess.DEVNULL) as lab:
        wait_for("the engine's server", lambda: servers(tmp_path))
        lab.kill()
    wait_for("its end", lambda: not servers(tmp_path))


def servers(folder: Path) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["cmdline"]) if _is_of(process, folder)]


def _is_of(process: psutil.Process, folder: Path) -> bool:
    """Whether it was started for this test: the weights or the log are in its folder."""
    return any(str(folder) in word for word in process.info["cmdline"] or ())
