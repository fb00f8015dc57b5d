"""The Hugging Face baseline: the app's side over a scripted child, and the real child once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from engine import baseline
from engine.baseline import HfBaseline, baseline_environment
from engine.config import DEFAULT_MODEL, PROJECT_ROOT, Device, Settings
from engine.environment import Gpu, Hardware, detect_hardware
from engine.errors import BaselineError
from engine.metrics import summarize
from engine.models import ModelOrigin, find_ready
from tests.fake_baseline import TOKEN_S
from tests.supervised import CPU

FAKE = (sys.executable, "-m", "tests.fake_baseline")
PROMPT = [1, 2, 3]


def opened(tmp_path: Path, *words: str) -> HfBaseline:
    return HfBaseline(tmp_path, CPU, tmp_path / "logs", command=(*FAKE, *words))


def test_loading_tells_what_was_loaded_and_how_long_it_took(tmp_path: Path) -> None:
    with opened(tmp_path) as child:
        loaded = child.load()
    assert (loaded.import_s, loaded.weights_s, loaded.weights_bytes, loaded.max_length) == (0.5, 0.25, 1000, 64)
    assert loaded.load_s > 0


def test_prompts_one_after_another_share_one_clock(tmp_path: Path) -> None:
    with opened(tmp_path) as child:
        child.load()
        done = child.generate([PROMPT, PROMPT], 5)
    assert [trace.ok for trace in done.traces] == [True, True]
    assert (done.steps, done.memory_bytes, done.peak_memory_bytes) == (10, 1500, 2000)
    summary = summarize(done.traces)
    assert summary.output_tokens == 10
    assert summary.wall_s == pytest.approx(10 * TOKEN_S)
    assert summary.throughput_tok_s == pytest.approx(1 / TOKEN_S)
    assert done.traces[0].ttft_ms == pytest.approx(TOKEN_S * 1000)
    assert done.traces[0].tpot_ms == pytest.approx(TOKEN_S * 1000)


def test_a_static_batch_shares_its_steps(tmp_path: Path) -> None:
    with opened(tmp_path) as child:
        child.load()
        done = child.generate([PROMPT] * 4, 5, batch=True)
    assert done.steps == 5
    assert summarize(done.traces).throughput_tok_s == pytest.approx(4 / TOKEN_S)


def test_text_is_told_while_it_comes(tmp_path: Path) -> None:
    told: list[tuple[int, str, float]] = []
    with opened(tmp_path) as child:
        child.load()
        child.generate([PROMPT, PROMPT], 2, on_text=lambda index, text, at_s: told.append((index, text, at_s)))
    assert [(index, text) for index, text, _ in told] == [(0, "w0 "), (0, "w1 "), (1, "w0 "), (1, "w1 ")]


@pytest.mark.parametrize(
    ("how", "words"),
    [("error", "it broke"), ("memory", "out of memory"), ("exit", "the last words"), ("kill", "memory ran out")],
)
@pytest.mark.parametrize("phase", ["load", "generate"])
def test_a_fault_of_the_child_is_told_with_a_remedy(tmp_path: Path, phase: str, how: str, words: str) -> None:
    with opened(tmp_path, "--fail-at", phase, "--how", how) as child, pytest.raises(BaselineError) as caught:
        child.load()
        child.generate([PROMPT], 2)
    assert words in caught.value.cause and caught.value.remedy


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="can't be started"):
        HfBaseline(tmp_path, CPU, tmp_path / "logs", command=(str(tmp_path / "nothing"),))


def test_a_silent_child_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "SILENCE_TIMEOUT_S", 0.2)
    with opened(tmp_path, "--fail-at", "generate", "--how", "hang") as child:
        child.load()
        with pytest.raises(BaselineError, match="said nothing"):
            child.generate([PROMPT], 2)
        psutil.Process(child.pid).wait(10) if psutil.pid_exists(child.pid) else None


def test_kill_from_another_thread_ends_the_wait_and_the_process(tmp_path: Path) -> None:
    with opened(tmp_path, "--fail-at", "generate", "--how", "hang") as child:
        child.load()
        killer = threading.Timer(0.1, child.kill)
        killer.start()
        with pytest.raises(BaselineError, match="was ended"):
            child.generate([PROMPT], 2)
        killer.join()
    assert not psutil.pid_exists(child.pid)


def test_the_real_child_ends_with_its_input() -> None:
    process = subprocess.Popen(baseline.CHILD_COMMAND, cwd=PROJECT_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()


def test_the_child_inherits_no_setting_of_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = {"PATH": "/bin", "STREAMLIT_X": "1", "LAB_DATA_DIR": "/x", "OMP_NUM_THREADS": "64", "VLLM_X": "1"}
    env = baseline_environment(CPU, inherited)
    assert env["PATH"] == "/bin" and env["OMP_NUM_THREADS"] == "1" and env["CUDA_VISIBLE_DEVICES"] == ""
    assert not {"STREAMLIT_X", "LAB_DATA_DIR", "VLLM_X"} & set(env)


def test_on_a_gpu_the_child_counts_gpus_as_the_server_does() -> None:
    on_gpu = Hardware(Device.CUDA, None, (0,), 1, frozenset(), 1, 1, (Gpu(0),))
    env = baseline_environment(on_gpu, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("1", "PCI_BUS_ID")


# A model that brings its own code; running it leaves a file behind.
CUSTOM_CONFIG = {
    "model_type": "lab-custom",
    "auto_map": {"AutoConfig": "custom.CustomConfig", "AutoModelForCausalLM": "custom.CustomModel"},
}


@pytest.mark.slow
def test_a_models_own_code_is_refused_and_never_asked_about(tmp_path: Path) -> None:
    """Asking would read the answer from the pipe of the commands."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CUSTOM_CONFIG))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "custom.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with (
        HfBaseline(folder, detect_hardware(Settings(tmp_path)), tmp_path / "logs") as child,
        pytest.raises(BaselineError, match="can't run this model") as caught,
    ):
        child.load()
    assert caught.value.remedy
    assert not (tmp_path / "ran").exists()
    assert "[y/N]" not in child.log_path.read_text()


@pytest.mark.slow
def test_the_real_child_generates_exactly_what_is_asked(tmp_path: Path) -> None:
    """The real model: forced length, and the same answer alone as in a batch (where rounding leaves it alone)."""
    source = find_ready(DEFAULT_MODEL, Settings(PROJECT_ROOT / "data"))
    assert source is not None, "run make setup first"
    assert source.origin in (ModelOrigin.BUNDLED, ModelOrigin.HUB)
    with HfBaseline(source.path, detect_hardware(Settings(tmp_path)), tmp_path / "logs", "float32") as child:
        loaded = child.load()
        ids = child.tokenize([{"role": "user", "content": "Say hello."}])
        alone = child.generate([ids], 12)
        batch = child.generate([ids, ids, ids], 12, batch=True)
    assert (loaded.dtype, loaded.threads) == ("float32", len(os.sched_getaffinity(0)))
    assert loaded.load_s >= loaded.import_s + loaded.weights_s
    trace = alone.traces[0]
    assert trace.ok and (trace.prompt_tokens, trace.output_tokens, alone.steps) == (len(ids), 12, 12)
    assert trace.text == batch.traces[0].text and len(trace.text) > 10
    assert len(batch.traces) == 3 and batch.steps == 12
    assert list(trace.chunk_times_s) == sorted(trace.chunk_times_s) and alone.wall_s >= trace.chunk_times_s[-1]
    assert loaded.weights_bytes is not None and source.weights_bytes is not None
    assert loaded.weights_bytes < (alone.memory_bytes or 0) <= (batch.peak_memory_bytes or 0)
