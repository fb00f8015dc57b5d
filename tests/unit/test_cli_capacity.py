"""``python -m engine capacity``: the document, the text, and what it says to bad input."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from engine.cli import main
from engine.kv import facts
from engine.kv.cards import CARDS, RESERVE_GIB, UTILIZATION, Card, budget
from engine.kv.facts import parameters
from engine.kv.shape import read_config

CONFIGS = Path(__file__).resolve().parent.parent / "fixtures/configs"
GIB = 1024**3
SIZES = ["--layers", "30", "--kv-heads", "3", "--head-size", "64"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No hub, no cache, a machine without a GPU."""
    monkeypatch.setenv("LAB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("LAB_DEVICE", "cpu")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def folder(tmp_path: Path, name: str, **more: Any) -> str:
    """A folder with nothing but a config.json."""
    place = tmp_path / name
    place.mkdir()
    config = json.loads((CONFIGS / f"{name}.json").read_text()) | more
    (place / "config.json").write_text(json.dumps(config))
    return str(place)


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["capacity", "--json", *words]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_the_document_has_bytes_blocks_tokens_and_concurrency(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--memory-gib", "5", "--max-model-len", "2048", "--block-size", "128")
    found = asked(capsys, "--model", "HuggingFaceTB/SmolLM2-135M-Instruct", *words)
    assert found["kv_bytes_per_token"] == 23_040
    assert (found["block_size"], found["num_blocks"], found["tokens"]) == (128, 1820, 232_960)
    assert found["max_concurrency"] == 113.75
    assert found["memory_source"] == "as given"
    assert not found["memory_is_estimate"]
    assert found["formula"] == "30 layers × 3 KV heads × 2 (key and value) × 64 numbers × 2 bytes = 23,040 bytes"


def test_sizes_by_hand_give_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--memory-gib", "1", "--max-model-len", "2048", "--kv-dtype", "fp8_per_token_head")
    found = asked(capsys, *SIZES, *words)
    assert (found["model"], found["kv_bytes_per_token"]) == (None, 30 * 3 * 2 * (64 + 4))
    assert "bytes of scale" in found["formula"]
    assert found["num_blocks"] == GIB // (16 * 12_240)


@pytest.mark.parametrize(
    ("name", "kv_dtype", "expected", "words"),
    [
        ("deepseek-v3", "auto", 70_272, "1 latent vector × 576 numbers × 2 bytes"),
        ("deepseek-v3", "fp8_ds_mla", 40_016, "656 bytes (fp8_ds_mla)"),
        ("falcon-7b", "auto", 8_192, "1 KV head × 2"),
        ("gemma-3-27b", "fp8", 253_952, "16 KV heads × 2 (key and value) × 128 numbers × 1 byte"),
    ],
)
def test_any_folder_with_a_config_will_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, kv_dtype: str, expected: int, words: str
) -> None:
    place = folder(tmp_path, name)
    found = asked(
        capsys, "--model", place, "--memory-gib", "40", "--max-model-len", "2048", "--kv-cache-dtype", kv_dtype
    )
    assert found["kv_bytes_per_token"] == expected
    assert words in found["formula"]
    assert found["origin"] == f"config.json in {place}"


def test_a_card_is_an_estimate_that_says_where_the_memory_goes(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "--model", "meta-llama/Meta-Llama-3-8B-Instruct", "--card", "l4")
    left = found["budget"]
    assert found["memory_is_estimate"] and found["memory_source"].startswith("estimated")
    assert left["weights"] == 2 * 8_030_261_248
    assert left["kv"] == left["requested"] - left["weights"] - left["reserve"] == found["memory_bytes"]
    assert found["paged_users"] > found["contiguous_users"] == found["memory_bytes"] // (8192 * 131_072)


def test_weights_are_shared_out_among_the_devices(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "meta-llama/Meta-Llama-3-70B-Instruct", "--card", "h100", "--tensor-parallel-size", "4")
    found = asked(capsys, *words)
    assert found["budget"]["weights"] == 2 * 70_553_706_496 // 4
    assert found["kv_bytes_per_token"] == 327_680 // 4
    main(["capacity", *words])
    assert "KV cache per token on each device: 80 layers × 2 KV heads" in capsys.readouterr().out


def test_weights_that_fill_the_card_leave_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "--model", "facebook/opt-13b", "--card", "t4")
    assert (found["memory_bytes"], found["num_blocks"], found["paged_users"]) == (0, 0, 0)
    assert not found["starts"] and found["longest_len"] is None
    main(["capacity", "--model", "facebook/opt-13b", "--card", "t4"])
    assert "no memory is left" in capsys.readouterr().out


def test_unknown_weights_leave_the_memory_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, *SIZES, "--card", "a100-80")
    assert found["kv_bytes_per_token"] == 23_040
    for name in ("memory_bytes", "num_blocks", "tokens", "max_concurrency", "paged_users", "weights_bytes"):
        assert found[name] is None, name
    main(["capacity", *SIZES, "--card", "a100-80"])
    assert "not known" in capsys.readouterr().out


def test_this_machine_is_asked_where_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys)
    assert found["card"] == "This machine (CPU)"
    assert found["memory_bytes"] % GIB == 0
    assert found["memory_source"].startswith("half of this machine's free memory")
    assert found["serve_command"].startswith(f"VLLM_CPU_KVCACHE_SPACE={found['memory_bytes'] // GIB} python -m vllm.")


@pytest.mark.parametrize(
    "words",
    [
        ["--model", "openai/gpt-oss-20b", "--card", "h200", "--max-model-len", "9000", "--kv-dtype", "fp8"],
        [*SIZES, "--memory-gib", "2.5", "--max-model-len", "512", "--tensor-parallel-size", "3"],
        ["--model", "meta-llama/Meta-Llama-3-8B-Instruct", "--card", "a100-40", "--weights-gib", "8"],
        [*SIZES, "--card", "this", "--weights-gib", "1"],
        [],
    ],
)
def test_the_command_it_shows_asks_the_same_again(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    found = asked(capsys, *words)
    command = shlex.split(found["command"])
    assert command[:4] == ["python", "-m", "engine", "capacity"]
    again = asked(capsys, *command[4:])
    for name in ("kv_bytes_per_token", "block_size", "max_model_len", "paged_users", "contiguous_users"):
        assert again[name] == found[name], name


def test_a_part_of_a_gib_is_shown_as_the_bytes_that_were_reckoned_with(capsys: pytest.CaptureFixture[str]) -> None:
    """The environment variable takes whole GiB only."""
    found = asked(capsys, *SIZES, "--card", "this", "--memory-gib", "0.5")
    assert found["serve_command"].startswith("python -m vllm.")
    assert found["serve_command"].endswith(f"--kv-cache-memory-bytes {GIB // 2}")
    assert asked(capsys, *SIZES, "--card", "this", "--memory-gib", "1")["serve_command"].startswith(
        "VLLM_CPU_KVCACHE_SPACE=1 "
    )


def test_the_text_has_vllms_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", *SIZES, "--memory-gib", "5", "--max-model-len", "2048", "--block-size", "128"]) == 0
    text = capsys.readouterr().out
    assert "1,820 blocks of 128 tokens, 232,960 tokens" in text
    assert "Maximum concurrency for 2,048 tokens per request: 113.75x" in text
    assert "paged" in text and "where each reserves 2,048" in text


def test_a_length_that_does_not_fit_says_which_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", *SIZES, "--memory-gib", "0.01", "--max-model-len", "2048"]) == 0
    assert "set max_model_len to 448 or less" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["--model", "nobody/nothing"], "hub can't be reached"),
        (["--model", "/nowhere"], "no config.json"),
        (["--model", "not a name"], "neither a folder nor a hub id"),
        (["--layers", "3"], "layers, KV heads and head size"),
        ([*SIZES, "--model", "a/b"], "layers, KV heads and head size"),
        (["--layers", "0", "--kv-heads", "3", "--head-size", "64"], "layers is 0"),
        (["--layers", "9" * 30, "--kv-heads", "3", "--head-size", "64"], "layers is 999"),
        (["--memory-gib", "-1"], "memory_gib is -1"),
        (["--memory-gib", "nan"], "memory_gib is nan"),
        (["--memory-gib", "1e30"], "memory_gib is 1e+30"),
        (["--max-model-len", "0"], "max_model_len is 0"),
        (["--max-model-len", "99999"], "at most 8,192"),
        (["--block-size", "0"], "block_size is 0"),
        (["--kv-dtype", "fp9"], "fp9 is not known"),
        (["--card", "rtx"], "card 'rtx' is not known"),
        (["--card", "t4", "--kv-dtype", "fp8"], "no fp8 KV cache"),
        (["--kv-dtype", "fp8_per_token_head"], "CPU build"),
        (["--card", "l4", "--gpu-memory-utilization", "1.1"], "gpu_memory_utilization is 1.1"),
        (["--prompt-tokens", "9000"], "9,256 tokens, and max_model_len is 8,192"),
        (["--output-tokens", "0"], "output_tokens is 0"),
        (["--tensor-parallel-size", "2"], "can't be divided among 2"),
        (["--max-num-batched-tokens", "0"], "max_num_batched_tokens is 0"),
    ],
)
def test_bad_input_is_refused_with_a_cause(capsys: pytest.CaptureFixture[str], words: list[str], cause: str) -> None:
    model = [] if "--model" in words or "--layers" in words else ["--model", "HuggingFaceTB/SmolLM2-135M-Instruct"]
    found = asked(capsys, *model, *words, code=1)
    assert cause in found["error"]
    assert found["remedy"]


def test_a_config_that_is_not_understood_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = folder(tmp_path, "deepseek-v3", index_topk=2048)
    assert "sparse attention" in asked(capsys, "--model", place, code=1)["error"]


def test_a_checkpoint_with_a_cache_format_of_its_own_is_not_guessed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = folder(tmp_path, "llama-3-8b", quantization_config={"kv_cache_scheme": {"num_bits": 8}})
    assert "format of its own" in asked(capsys, "--model", place, "--memory-gib", "4", code=1)["error"]
    found = asked(capsys, "--model", place, "--memory-gib", "4", "--kv-dtype", "fp8")
    assert found["kv_bytes_per_token"] == 65_536


# -- weights


@pytest.mark.parametrize(
    ("name", "count"),
    [("llama-3-8b", 8_030_261_248), ("smollm2-135m", 134_515_008), ("mistral-7b-v0.1", 7_241_732_096)],
)
def test_the_parameters_of_a_llama_are_counted_from_its_config(name: str, count: int) -> None:
    assert parameters(read_config(CONFIGS / f"{name}.json")) == count


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b", "gpt2", "opt-13b", "gemma-3-27b"])
def test_the_parameters_of_other_kinds_are_not_guessed(name: str) -> None:
    assert parameters(read_config(CONFIGS / f"{name}.json")) is None


def test_an_index_says_what_the_weights_take(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = folder(tmp_path, "deepseek-v3")
    (Path(place) / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 12 * GIB}}))
    found = asked(capsys, "--model", place, "--memory-gib", "4")
    assert (found["weights_bytes"], found["weights_source"]) == (12 * GIB, "its files")


def test_float32_weights_are_loaded_as_half_of_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = folder(tmp_path, "llama-3-8b", torch_dtype="float32")
    (Path(place) / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 32 * GIB}}))
    found = asked(capsys, "--model", place, "--card", "h100")
    assert found["weights_bytes"] == 16 * GIB
    assert "float32" in found["weights_source"]


@pytest.mark.parametrize("index", ["{}", '{"metadata": {"total_size": "big"}}', '{"metadata": 3}'])
def test_an_index_without_a_size_leaves_it_to_the_config(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, index: str
) -> None:
    place = folder(tmp_path, "llama-3-8b")
    (Path(place) / "model.safetensors.index.json").write_text(index)
    found = asked(capsys, "--model", place, "--card", "h100")
    assert found["weights_bytes"] == 2 * 8_030_261_248
    assert "reckoned" in found["weights_source"]


def test_the_hub_is_asked_for_the_config_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []

    def download(model: str, name: str) -> str:
        fetched.append((model, name))
        return str(CONFIGS / "llama-3-8b.json")

    class Hub:
        def model_info(self, model: str, files_metadata: bool) -> Any:
            file = type("File", (), {"rfilename": "model.safetensors", "size": 5 * GIB})
            return type("Info", (), {"siblings": [file]})

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(facts, "hub_answers", lambda: True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    found = asked(capsys, "--model", "some/model", "--card", "h100")
    assert fetched == [("some/model", "config.json")]
    assert (found["origin"], found["weights_bytes"]) == ("config.json from the hub", 5 * GIB)


# -- cards


def test_what_a_card_has_left_is_what_vllm_asks_for_less_the_rest() -> None:
    left = budget(1001, 0.5, 100, 50)
    assert (left.requested, left.kv, left.fits) == (501, 351, True)
    assert (budget(1000, 0.5, 400, 200).kv, budget(1000, 0.5, 400, 200).fits) == (0, False)


def test_the_batch_defaults_are_those_of_vllms_server() -> None:
    defaults = {card.key: card.batch_defaults for card in CARDS}
    assert defaults["t4"] == defaults["l4"] == defaults["a100-40"] == defaults["a100-80"] == (2048, 256)
    assert defaults["h100"] == defaults["h200"] == (8192, 1024)


def test_the_estimate_for_the_h200_that_was_measured_once_is_near_and_not_above() -> None:
    """tests/fixtures/logs/starts/start_default.log: "Available KV cache memory: 127.81 GiB"."""
    h200 = next(card for card in CARDS if card.key == "h200")
    left = budget(h200.memory_bytes, UTILIZATION, 269_060_552, int(RESERVE_GIB * GIB))
    assert f"{left.kv / GIB:.1f}" == "126.9"
    log = (CONFIGS.parent / "logs/starts/start_default.log").read_text()
    assert "Available KV cache memory: 127.81 GiB" in log


def test_a_cpu_gives_the_cache_half_of_what_is_free_or_what_the_weights_leave() -> None:
    machine = Card("this", "This machine (CPU)", 64 * GIB, free_bytes=33 * GIB)
    assert machine.cpu_kv_bytes(None) == machine.cpu_kv_bytes(10 * GIB) == 16 * GIB
    assert machine.cpu_kv_bytes(20 * GIB) == 13 * GIB
    assert machine.cpu_kv_bytes(40 * GIB) == 0
    small = Card("this", "", 4 * GIB, free_bytes=int(1.5 * GIB))
    assert small.cpu_kv_bytes(None) == small.cpu_kv_bytes(GIB // 4) == GIB  # as a start on this machine is given
    assert small.cpu_kv_bytes(GIB) == Card("this", "", GIB, free_bytes=GIB - 1).cpu_kv_bytes(None) == 0
    assert (machine.is_cpu, CARDS[0].is_cpu) == (True, False)


@pytest.mark.parametrize(
    ("config", "words", "tokens", "concurrency"),
    [
        (
            {"model_type": "mistral", "num_hidden_layers": 4, "sliding_window": 512},
            ["--block-size", "32", "--max-model-len", "4096"],
            1_369_568,
            "334.37",
        ),
        (
            {"model_type": "gemma3_text", "num_hidden_layers": 13, "sliding_window": 512},
            ["--block-size", "128", "--max-model-len", "8192"],
            472_597,
            "57.69",
        ),
    ],
    ids=["every layer", "five of six layers"],
)
def test_a_real_servers_log_says_the_same_of_sliding_windows(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    config: dict[str, Any],
    words: list[str],
    tokens: int,
    concurrency: str,
) -> None:
    """vLLM 0.32 on a CPU with 1 GiB for the cache, random weights: "KV cache size" and "Maximum concurrency"."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps(config | sizes))
    batch = ["--max-num-batched-tokens", "1024", "--card", "this", "--memory-gib", "1"]
    found = asked(capsys, "--model", str(tmp_path), *words, *batch)
    assert (found["tokens"], f"{found['max_concurrency']:.2f}") == (tokens, concurrency)
