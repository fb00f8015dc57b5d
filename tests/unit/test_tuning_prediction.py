"""What a restart is said to do: knobs for a machine, the KV cache of a start, refusals, and predicted against actual."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config import DEFAULT_MODEL, DTYPES, Device, ServerConfig
from engine.environment import GIB, Gpu, Hardware
from engine.errors import ConfigError
from engine.kv.shape import ModelShape
from engine.models import ModelOrigin, ModelSource
from engine.server.command import installed_options
from engine.server.state import KvCapacity, ServerSnapshot, ServerState
from engine.store import RunStore
from engine.tuning import knobs as knobs_module
from engine.tuning import prediction as prediction_module
from engine.tuning.knobs import KNOBS, NAMES, changed, in_words, knob, knobs
from engine.tuning.prediction import Known, Prediction, known_now, outcomes, predict

SMOLLM = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
CPU = Hardware(Device.CPU, "A CPU", (0, 1), 2, frozenset({"avx2"}), 16 * GIB, 12 * GIB)
H200 = Gpu(
    0, name="NVIDIA H200", memory_total_bytes=143_771 * 1024**2, memory_free_bytes=2**37, compute_capability=(9, 0)
)
T4 = Gpu(0, name="Tesla T4", memory_total_bytes=15_360 * 1024**2, memory_free_bytes=2**33, compute_capability=(7, 5))


def gpus(*cards: Gpu) -> Hardware:
    return replace(CPU, device=Device.CUDA, gpus=cards)


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM))
    return ModelSource(DEFAULT_MODEL, tmp_path, ModelOrigin.LOCAL, "a folder", 269_000_000)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs.db")


@pytest.fixture(autouse=True)
def built_for_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.server.command.installed_vllm", lambda: None)


@pytest.fixture
def known(source: ModelSource, store: RunStore) -> Known:
    return Known(CPU, source, store)


# -- knobs


def test_every_knob_is_a_setting_of_the_server_with_a_flag_and_a_sentence() -> None:
    settings = ServerConfig().to_dict()
    assert set(NAMES) <= set(settings)
    for one in KNOBS:
        assert one.flag == "--" + one.name.replace("_", "-") or one.name == "kv_cache_gib"
        assert one.trades.endswith(".") and one.label


def test_the_installed_vllm_knows_every_flag() -> None:
    options = installed_options()
    assert options
    assert {one.flag.removeprefix("--").replace("-", "_") for one in KNOBS} <= options


def test_values_are_those_of_the_machine_and_the_model() -> None:
    shape = ModelShape.from_config(SMOLLM)
    found = {one.name: one for one in knobs(CPU, shape)}
    assert found["max_model_len"].values[-1] == 8192
    assert found["block_size"].values == (None, 32, 64, 96, 128)
    assert found["kv_cache_gib"].values == (None, 1, 2, 4, 8)
    for name in ("gpu_memory_utilization", "attention_backend", "tensor_parallel_size", "data_parallel_size"):
        assert found[name].refused and not found[name].offered
    assert "GPU" in found["gpu_memory_utilization"].refused


def test_an_old_gpu_is_offered_neither_bfloat16_nor_fp8_nor_flash_attention() -> None:
    found = {one.name: one for one in knobs(gpus(T4), ModelShape.from_config(SMOLLM))}
    assert "bfloat16" not in found["dtype"].values
    assert not found["kv_cache_dtype"].offered
    assert "FLASH_ATTN" not in found["attention_backend"].values and "TRITON_ATTN" in found["attention_backend"].values


def test_a_new_gpu_is_offered_what_the_installed_vllm_lists() -> None:
    found = {one.name: one for one in knobs(gpus(H200, replace(H200, index=1)), ModelShape.from_config(SMOLLM))}
    assert found["dtype"].values == DTYPES
    assert "fp8" in found["kv_cache_dtype"].values
    assert found["attention_backend"].values[:2] == (None, "FLASH_ATTN")
    assert found["tensor_parallel_size"].values == (1,) and not found["tensor_parallel_size"].offered  # nine heads
    assert found["data_parallel_size"].values == (1, 2)


def test_words_that_the_installed_vllm_does_not_list_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs_module, "accepted_words", lambda name: frozenset({"auto", "FLASHINFER"}))
    found = {one.name: one for one in knobs(gpus(H200), None)}
    assert found["attention_backend"].values == (None, "FLASHINFER")
    assert not found["kv_cache_dtype"].offered


def test_an_option_that_the_installed_vllm_lacks_is_refused() -> None:
    options = frozenset(installed_options() - {"enable_chunked_prefill"})
    assert "--enable-chunked-prefill" in knob("enable_chunked_prefill", CPU, None, options).refused
    with pytest.raises(ConfigError, match="no knob 'colour'"):
        knob("colour", CPU, None)


def test_a_value_that_runs_is_always_among_those_offered() -> None:
    lengths = knob("max_model_len", CPU, ModelShape.from_config(SMOLLM))
    assert 1000 in lengths.with_value(1000).values
    assert list(lengths.with_value(1000).values) == sorted((*lengths.values, 1000))
    blocks = knob("block_size", CPU, None)
    assert blocks.with_value(48).values == (None, 32, 48, 64, 96, 128)
    assert blocks.with_value(None) is blocks


def test_values_and_changes_are_shown_in_words() -> None:
    assert knob("max_model_len", CPU, None).show(2048) == "2,048 tokens"
    assert knob("enable_prefix_caching", CPU, None).show(False) == "off"
    assert knob("enforce_eager", CPU, None).show(False) == "compiled, with graphs"
    assert knob("block_size", CPU, None).show(None) == "the lab's own"
    after = replace(ServerConfig(), max_num_seqs=8, enable_prefix_caching=False)
    assert changed(ServerConfig(), after) == {"max_num_seqs": 8, "enable_prefix_caching": False}
    assert in_words(changed(ServerConfig(), after)) == "max_num_seqs 8, enable_prefix_caching off"
    assert in_words({}) == "as it was"


# -- the KV cache of a start


def test_on_a_cpu_the_cache_is_exact_and_sized_as_the_command_says(known: Known) -> None:
    found = predict(ServerConfig(), {"max_num_seqs": 8}, known)
    assert found.starts and found.exact
    # 23,040 bytes a token, blocks of 32, one GiB: what a real server said (tests/fixtures).
    assert (found.kv_bytes, found.num_blocks, found.tokens, found.max_concurrency) == (GIB, 1456, 46_592, 22.75)
    assert found.requests_at_once == 8
    assert "VLLM_CPU_KVCACHE_SPACE=1 " in found.command


def test_memory_that_the_running_server_gives_back_counts(known: Known) -> None:
    tight = replace(known, hardware=replace(CPU, ram_available_bytes=2 * GIB))
    config = ServerConfig(max_model_len=8192)
    found = predict(config, {}, tight)
    assert found.kv_bytes == GIB and not found.exact and "RAM" in found.memory_words
    assert predict(config, {}, replace(tight, held_bytes=6 * GIB)).kv_bytes == 4 * GIB
    roomy = predict(config, {}, replace(tight, held_bytes=12 * GIB))
    assert roomy.kv_bytes == 6 * GIB and roomy.exact


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_model_len": 9000}, "at most 8,192 tokens"),
        ({"max_num_batched_tokens": 16}, r"max_num_batched_tokens \(16\) is below max_num_seqs \(32\)"),
        ({"max_num_seqs": 4096}, "would be 2,048, which is below"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 512}, "without chunked prefill"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 512, "max_model_len": None}, "prompt of 8,192"),
        ({"block_size": 16}, "Block size 16"),
        ({"kv_cache_gib": 500}, "500 GiB"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "no KV cache in int8_per_token_head"),
        ({"tensor_parallel_size": 3}, "3 workers"),
        ({"model": " "}, "not a model name"),
    ],
)
def test_what_can_not_start_is_refused_with_reason_and_remedy(
    known: Known, changes: dict[str, Any], words: str
) -> None:
    found = predict(ServerConfig(), changes, known)
    assert not found.starts
    refusal = found.refusals[0]
    assert refusal.remedy
    assert re.search(words, refusal.cause), refusal


def test_too_few_blocks_for_one_request_is_refused_with_the_length_that_fits(store: RunStore, tmp_path: Path) -> None:
    large = SMOLLM | {"num_hidden_layers": 80, "num_key_value_heads": 9, "hidden_size": 9 * 128}
    (tmp_path / "config.json").write_text(json.dumps(large))
    source = ModelSource("a/b", tmp_path, ModelOrigin.LOCAL, "", 1)
    found = predict(ServerConfig(kv_cache_gib=1), {"max_model_len": 8192}, Known(CPU, source, store))
    (refusal,) = found.refusals
    assert "needs 256 KV blocks" in refusal.cause
    longest = int(refusal.remedy.split("to ")[1].split(" or")[0].replace(",", ""))
    assert predict(ServerConfig(kv_cache_gib=1), {"max_model_len": longest}, Known(CPU, source, store)).starts
    assert not predict(ServerConfig(kv_cache_gib=1), {"max_model_len": longest + 32}, Known(CPU, source, store)).starts


def test_switching_chunked_prefill_off_makes_the_step_as_long_as_a_prompt_and_warns(known: Known) -> None:
    found = predict(ServerConfig(max_model_len=4096), {"enable_chunked_prefill": False}, known)
    assert found.starts and found.max_num_batched_tokens == 4096
    assert "officially" in found.warnings[0]


def test_a_model_that_is_not_here_is_not_predicted_but_not_refused_either(store: RunStore) -> None:
    found = predict(ServerConfig(), {}, Known(CPU, None, store))
    assert found.starts and found.tokens is None and found.requests_at_once is None
    assert "not on this machine" in found.warnings[0]


def test_a_cache_that_is_not_understood_is_not_predicted_but_not_refused_either(
    store: RunStore, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM | {"mamba_d_state": 16}))
    source = ModelSource("a/b", tmp_path, ModelOrigin.LOCAL, "", 1)
    found = predict(ServerConfig(kv_cache_gib=1), {}, Known(CPU, source, store))
    assert found.starts and found.tokens is None and "not predicted" in found.warnings[0]


# -- a GPU: estimates


def test_on_a_gpu_the_first_estimate_is_within_five_percent_of_a_measured_start(
    source: ModelSource, store: RunStore
) -> None:
    """An H200 said 127.8 GiB and 5,956,560 tokens for this model with the default share of 0.92 (shared GPU notes)."""
    found = predict(ServerConfig(gpu_memory_utilization=0.92), {}, Known(gpus(H200), source, store))
    assert not found.exact and "reserve" in found.memory_words
    assert found.tokens == pytest.approx(5_956_560, rel=0.05)


def test_a_running_server_of_the_same_weights_makes_the_estimate_exact_for_another_share(
    source: ModelSource, store: RunStore
) -> None:
    running = ServerConfig(gpu_memory_utilization=0.9)
    capacity = KvCapacity(num_blocks=350_000)
    snapshot = ServerSnapshot(state=ServerState.READY, config=running, source=source, capacity=capacity)
    known = known_now(gpus(H200), source, store, snapshot)
    same = predict(running, {}, known)
    assert same.num_blocks == 350_000 and "running server" in same.memory_words and not same.exact
    less = predict(running, {"gpu_memory_utilization": 0.8}, known)
    assert less.kv_bytes is not None and same.kv_bytes is not None
    assert same.kv_bytes - less.kv_bytes == pytest.approx(0.1 * (H200.memory_total_bytes or 0), rel=0.001)
    wide = predict(running, {"dtype": "float32"}, known)
    assert wide.kv_bytes is not None and same.kv_bytes - wide.kv_bytes == source.weights_bytes
    assert "reserve" in predict(running, {"tensor_parallel_size": 3}, more_gpus(known)).memory_words


def more_gpus(known: Known) -> Known:
    return replace(known, hardware=gpus(*(replace(H200, index=index) for index in range(3))))


def test_what_may_not_fit_on_a_gpu_is_a_warning_because_it_is_an_estimate(source: ModelSource, store: RunStore) -> None:
    tiny = gpus(replace(T4, memory_total_bytes=3 * GIB))
    found = predict(ServerConfig(), {"max_model_len": 8192, "gpu_memory_utilization": 0.75}, Known(tiny, source, store))
    assert found.starts and "It may not start" in found.warnings[-1]


# -- time


def test_the_time_of_a_restart_is_that_of_starts_in_the_same_mode(known: Known, store: RunStore) -> None:
    assert predict(ServerConfig(), {}, known).restart_s is None
    store.add_start(f"{DEFAULT_MODEL}|eager=None", {"import": 20.0, "warm_up": 1.0}, 21.0)
    assert predict(ServerConfig(), {}, known).restart_s == 21.0
    assert predict(ServerConfig(), {"enforce_eager": True}, known).restart_s == 21.0  # what a CPU does by itself
    compiled = predict(ServerConfig(), {"enforce_eager": False}, known)
    assert compiled.restart_s is None and "not known" in compiled.warm_up_words
    store.add_start(f"{DEFAULT_MODEL}|eager=False", {"import": 20.0, "warm_up": 61.0}, 81.0)
    compiled = predict(ServerConfig(), {"enforce_eager": False}, known)
    assert compiled.restart_s == 81.0 and "61 s" in compiled.warm_up_words


# -- afterwards


def test_predicted_against_actual() -> None:
    found = Prediction(num_blocks=100, block_size=32, block_bytes=1000, tokens=3200, max_concurrency=1.5)
    rows = {one.name: one for one in outcomes(found, KvCapacity(tokens=3200, block_size=32, num_blocks=80))}
    assert rows["tokens"].off_pct == 0
    assert rows["num_blocks"].off_pct == 25
    assert (rows["kv_bytes"].predicted, rows["kv_bytes"].actual) == (100_000, 80_000)
    assert rows["max_concurrency"].off_pct is None


def test_a_prediction_survives_json(known: Known) -> None:
    found = predict(ServerConfig(), {"max_num_seqs": 4096}, known)
    again = Prediction.from_dict(json.loads(json.dumps(found.to_dict())) | {"from a newer lab": 1})
    assert again == replace(found, config=None)


def test_memory_of_the_servers_processes_is_asked_for_on_a_cpu_only(
    source: ModelSource, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction_module, "group_members", lambda pid: [pid])
    monkeypatch.setattr(prediction_module, "proportional_bytes", lambda pids: 5 * GIB)
    ready = ServerSnapshot(state=ServerState.READY, pid=7)
    assert known_now(CPU, source, store, ready).held_bytes == 5 * GIB
    assert known_now(gpus(T4), source, store, ready).held_bytes == 0
    attached = known_now(CPU, source, store, replace(ready, attached=True))
    assert (attached.held_bytes, attached.running) == (0, None)


def test_the_command_says_whether_prefill_is_chunked(known: Known) -> None:
    assert "chunked-prefill" not in predict(ServerConfig(), {}, known).command
    assert " --enable-chunked-prefill" in predict(ServerConfig(), {"enable_chunked_prefill": True}, known).command
    off = predict(ServerConfig(), {"enable_chunked_prefill": False}, known).command
    assert " --no-enable-chunked-prefill" in off


def test_a_run_of_an_older_lab_is_readable() -> None:
    old = ServerConfig().to_dict()
    del old["enable_chunked_prefill"]
    assert ServerConfig.from_dict(old) == ServerConfig()
