"""The command of a server: what each hardware gets, what is refused, and that no secret shows."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from engine.config import Device, ServerConfig
from engine.environment import Gpu, Hardware
from engine.errors import ConfigError, ModelUnusable
from engine.kv.capacity import ModelShape
from engine.models import ModelOrigin, ModelSource
from engine.server import command
from engine.server.command import (
    GIB,
    Launch,
    block_sizes,
    build_launch,
    cpu_thread_environment,
    installed_options,
    kv_space_gib,
    resolved_dtype,
    uses_eager,
)

KEY = "the-very-secret-key"
SMOLLM2 = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "max_position_embeddings": 8192,
}
SHAPE = ModelShape.from_config(SMOLLM2)
EXTRAS = frozenset({"enable_per_request_metrics", "enable_prompt_tokens_details", "disable_uvicorn_access_log"})


def machine(*gpus: Gpu, cores: int = 2, free_gib: float = 16.0) -> Hardware:
    return Hardware(
        device=Device.CUDA if gpus else Device.CPU,
        cpu_model="A CPU",
        cpu_ids=tuple(range(cores)),
        physical_cores=cores,
        cpu_flags=frozenset({"avx2"}),
        ram_total_bytes=32 * GIB,
        ram_available_bytes=int(free_gib * GIB),
        gpus=gpus,
    )


def gpu(index: int, capability: tuple[int, int] | None) -> Gpu:
    return Gpu(index, name="A GPU", memory_total_bytes=16 * GIB, compute_capability=capability)


CPU = machine()
T4 = machine(gpu(0, (7, 5)))
A100 = machine(gpu(0, (8, 0)))
TWO_A100 = machine(gpu(0, (8, 0)), gpu(1, (8, 0)))
MIXED = machine(gpu(0, (9, 0)), gpu(1, (7, 5)))
UNKNOWN = machine(gpu(0, None))
ALL_HARDWARE = {"cpu": CPU, "t4": T4, "a100": A100, "two": TWO_A100, "mixed": MIXED, "unknown": UNKNOWN}


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMOLLM2))
    return ModelSource("owner/name", folder, ModelOrigin.LOCAL, "a folder", 1)


@pytest.fixture
def build(source: ModelSource) -> Any:
    def build(config: ServerConfig | None = None, hardware: Hardware = CPU, **kwargs: Any) -> Launch:
        given = {"port": 8123, "api_key": KEY, "options": EXTRAS, "python": "/venv/bin/python"}
        kwargs = given | {"built_for": hardware.device} | kwargs
        return build_launch(config or ServerConfig(), hardware, source, **kwargs)

    return build


def value_of(launch: Launch, flag: str) -> str | None:
    """The word after a flag; None where the flag is not there."""
    return launch.argv[launch.argv.index(flag) + 1] if flag in launch.argv else None


# -- by hardware


@pytest.mark.parametrize(
    ("hardware", "dtype", "backend", "eager"),
    [
        (CPU, "bfloat16", None, True),
        (T4, "float16", "TRITON_ATTN", False),
        (A100, "bfloat16", None, False),
        (TWO_A100, "bfloat16", None, False),
        (MIXED, "float16", "TRITON_ATTN", False),
        (UNKNOWN, "bfloat16", None, False),
    ],
    ids=ALL_HARDWARE,
)
def test_hardware_decides_what_is_left_open(
    build: Any, hardware: Hardware, dtype: str, backend: str | None, eager: bool
) -> None:
    launch = build(hardware=hardware)
    assert value_of(launch, "--dtype") == dtype
    assert value_of(launch, "--attention-backend") == backend
    assert ("--enforce-eager" in launch.argv) is eager
    assert ("--no-enforce-eager" in launch.argv) is not eager
    assert uses_eager(ServerConfig(), hardware) is eager


@pytest.mark.parametrize("hardware", ALL_HARDWARE.values(), ids=ALL_HARDWARE)
@pytest.mark.parametrize("eager", [True, False])
def test_what_is_chosen_wins_over_the_hardware(build: Any, hardware: Hardware, eager: bool) -> None:
    launch = build(ServerConfig(dtype="float32", attention_backend="FLEX_ATTENTION", enforce_eager=eager), hardware)
    assert value_of(launch, "--dtype") == "float32"
    assert value_of(launch, "--attention-backend") == "FLEX_ATTENTION"
    assert ("--enforce-eager" in launch.argv) is eager


GEMMA = {"model_type": "gemma2", "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("chosen", "hardware", "model", "dtype"),
    [
        ("auto", CPU, {"dtype": "float16"}, "bfloat16"),
        ("auto", A100, {"dtype": "bfloat16"}, "bfloat16"),
        ("auto", A100, {"torch_dtype": "float16"}, "float16"),
        ("auto", A100, {"torch_dtype": "torch.float16"}, "float16"),
        ("auto", A100, {"text_config": {"dtype": "float16"}}, "float16"),
        ("auto", A100, {"dtype": "float32"}, "bfloat16"),
        ("auto", A100, {"dtype": None}, "bfloat16"),
        ("auto", A100, {}, "bfloat16"),
        ("auto", A100, GEMMA | {"dtype": "float16"}, "bfloat16"),
        ("auto", T4, {"dtype": "bfloat16"}, "float16"),
        ("auto", T4, {"dtype": "float32"}, "float16"),
        ("auto", T4, GEMMA, "float32"),
        ("half", CPU, {}, "float16"),
        ("half", A100, {}, "float16"),
        ("bfloat16", A100, {"dtype": "float16"}, "bfloat16"),
        ("float32", T4, {}, "float32"),
    ],
)
def test_the_number_format_is_always_named(
    build: Any, source: ModelSource, chosen: str, hardware: Hardware, model: dict[str, Any], dtype: str
) -> None:
    """As vLLM would decide it, so that Hugging Face can be given the same."""
    (source.path / "config.json").write_text(json.dumps(SMOLLM2 | model))
    config = ServerConfig(dtype=chosen)
    assert resolved_dtype(config, hardware, source) == dtype
    assert value_of(build(config, hardware), "--dtype") == dtype


def test_every_choice_has_its_flag(build: Any, source: ModelSource) -> None:
    config = ServerConfig(
        max_model_len=1024,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        kv_cache_dtype="fp8",
        block_size=32,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.5,
        seed=7,
    )
    launch = build(config, A100)
    assert launch.argv[:3] == ("/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server")
    expected = {
        "--model": str(source.path),
        "--served-model-name": "owner/name",
        "--host": "127.0.0.1",
        "--port": "8123",
        "--max-model-len": "1024",
        "--max-num-seqs": "8",
        "--max-num-batched-tokens": "512",
        "--kv-cache-dtype": "fp8",
        "--block-size": "32",
        "--gpu-memory-utilization": "0.5",
        "--seed": "7",
    }
    assert {flag: value_of(launch, flag) for flag in expected} == expected
    assert "--no-enable-prefix-caching" in launch.argv and "--enable-prefix-caching" not in launch.argv


def test_what_is_left_open_has_no_flag(build: Any) -> None:
    launch = build(ServerConfig(max_model_len=None), A100)
    open_flags = {"--max-model-len", "--max-num-batched-tokens", "--block-size", "--kv-cache-dtype"}
    assert not open_flags & set(launch.argv)
    assert not [word for word in launch.argv if "parallel" in word or "executor" in word]


def test_gpu_memory_is_only_spoken_of_on_a_gpu(build: Any) -> None:
    assert value_of(build(hardware=CPU), "--gpu-memory-utilization") is None
    assert value_of(build(hardware=T4), "--gpu-memory-utilization") == "0.9"


def test_a_chosen_kv_cache_size_holds_on_both_kinds_of_machine(build: Any) -> None:
    config = ServerConfig(kv_cache_gib=3)
    assert value_of(build(config, T4), "--kv-cache-memory-bytes") == str(3 * GIB)
    on_cpu = build(config, CPU)
    assert value_of(on_cpu, "--kv-cache-memory-bytes") is None
    assert on_cpu.env["VLLM_CPU_KVCACHE_SPACE"] == "3"


# -- block sizes, parallel sizes, fp8


@pytest.mark.parametrize("hardware", [CPU, T4], ids=["cpu", "gpu"])
def test_every_offered_block_size_is_taken(build: Any, hardware: Hardware) -> None:
    for size in block_sizes(hardware):
        assert value_of(build(ServerConfig(block_size=size), hardware), "--block-size") == str(size)


@pytest.mark.parametrize(("hardware", "size"), [(CPU, 16), (CPU, 100), (A100, 96), (A100, 8)])
def test_another_block_size_is_refused(build: Any, hardware: Hardware, size: int) -> None:
    with pytest.raises(ConfigError, match=f"Block size {size}") as caught:
        build(ServerConfig(block_size=size), hardware)
    assert all(str(offered) in caught.value.remedy for offered in block_sizes(hardware))


def test_parallel_sizes_within_the_gpus_are_passed_on(build: Any) -> None:
    launch = build(ServerConfig(tensor_parallel_size=2), TWO_A100)
    assert value_of(launch, "--tensor-parallel-size") == "2"
    assert value_of(launch, "--pipeline-parallel-size") is None


@pytest.mark.parametrize(
    "sizes",
    [
        {"tensor_parallel_size": 4},
        {"pipeline_parallel_size": 3},
        {"data_parallel_size": 3},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    ],
)
def test_more_workers_than_gpus_are_refused_except_on_a_ray_cluster(build: Any, sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="there are 2 GPUs") as caught:
        build(ServerConfig(**sizes), TWO_A100)
    assert "ray" in caught.value.remedy
    launch = build(ServerConfig(**sizes, distributed_executor_backend="ray"), TWO_A100)
    assert value_of(launch, "--distributed-executor-backend") == "ray"
    for name, size in sizes.items():
        assert value_of(launch, f"--{name.replace('_', '-')}") == str(size)


def test_compiled_code_is_kept_for_the_next_start_on_a_cpu(build: Any, tmp_path: Path) -> None:
    kept = build(ServerConfig(enforce_eager=False), compiled=tmp_path).env
    assert kept["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert kept["VLLM_USE_AOT_COMPILE"] == "0"
    for env in (build(ServerConfig(enforce_eager=False)).env, build(hardware=TWO_A100, compiled=tmp_path).env):
        assert not {"TORCHINDUCTOR_CACHE_DIR", "VLLM_USE_AOT_COMPILE"} & set(env)


def test_every_worker_of_a_cpu_gets_cores_of_its_own(build: Any) -> None:
    four_cores = machine(cores=4)
    assert build(hardware=four_cores).env["VLLM_CPU_OMP_THREADS_BIND"] == "0,1,2,3"
    two = build(ServerConfig(tensor_parallel_size=2), four_cores)
    assert two.env["VLLM_CPU_OMP_THREADS_BIND"] == "0,1|2,3"
    with pytest.raises(ConfigError, match="there are 4 cores") as caught:
        build(ServerConfig(tensor_parallel_size=8), four_cores)
    assert caught.value.remedy


def test_an_fp8_cache_is_refused_on_an_old_gpu_only(build: Any) -> None:
    config = ServerConfig(kv_cache_dtype="fp8_e4m3")
    with pytest.raises(ConfigError, match="fp8") as caught:
        build(config, T4)
    assert "kv_cache_dtype" in caught.value.remedy
    assert value_of(build(config, A100), "--kv-cache-dtype") == "fp8_e4m3"


# -- what can't start is refused before it is tried


@pytest.mark.parametrize("hardware", [CPU, T4], ids=["cpu", "gpu"])
def test_more_tokens_than_the_model_takes_are_refused(build: Any, hardware: Hardware) -> None:
    assert value_of(build(ServerConfig(max_model_len=8192), hardware), "--max-model-len") == "8192"
    with pytest.raises(ConfigError, match="max_model_len is 8,193, and this model takes at most 8,192") as caught:
        build(ServerConfig(max_model_len=8193), hardware)
    assert caught.value.remedy == "Set max_model_len to 8192 or less."


def test_a_model_that_does_not_say_how_much_it_takes_may_get_any_length(build: Any, source: ModelSource) -> None:
    (source.path / "config.json").write_text(json.dumps(SMOLLM2 | {"max_position_embeddings": None}))
    assert value_of(build(ServerConfig(max_model_len=9000)), "--max-model-len") == "9000"


def test_a_cpu_without_avx2_is_refused_and_one_that_says_nothing_is_tried(build: Any) -> None:
    old = dataclasses.replace(CPU, cpu_flags=frozenset({"sse4_2", "avx"}))
    with pytest.raises(ConfigError, match="needs AVX2") as caught:
        build(hardware=old)
    assert "A CPU" in caught.value.cause and caught.value.remedy
    assert build(hardware=dataclasses.replace(CPU, cpu_flags=frozenset())).argv
    assert build(hardware=dataclasses.replace(T4, cpu_flags=frozenset({"sse4_2"}))).argv


@pytest.mark.parametrize(
    ("hardware", "built_for", "words"),
    [(CPU, Device.CUDA, "for an NVIDIA GPU, but is to run on the CPU"), (T4, Device.CPU, "without a GPU, but")],
)
def test_a_vllm_that_is_built_for_another_device_is_refused(
    build: Any, hardware: Hardware, built_for: Device, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        build(hardware=hardware, built_for=built_for)
    assert "make setup" in caught.value.remedy


def test_the_installed_vllm_is_looked_at_where_none_is_given(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for built, wrong, right in ((Device.CUDA, CPU, T4), (Device.CPU, T4, CPU)):
        monkeypatch.setattr(command, "installed_vllm", lambda built=built: built)
        assert build(hardware=right, built_for=None).argv
        with pytest.raises(ConfigError, match="is built for"):
            build(hardware=wrong, built_for=None)
    monkeypatch.setattr(command, "installed_vllm", lambda: None)
    assert build(built_for=None).argv


def test_bfloat16_is_refused_on_an_old_gpu(build: Any) -> None:
    with pytest.raises(ConfigError, match="bfloat16") as caught:
        build(ServerConfig(dtype="bfloat16"), T4)
    assert "auto" in caught.value.remedy


def test_float16_is_refused_for_models_whose_numbers_overflow(build: Any, source: ModelSource) -> None:
    (source.path / "config.json").write_text(json.dumps(SMOLLM2 | GEMMA))
    with pytest.raises(ConfigError, match="gemma2") as caught:
        build(ServerConfig(dtype="half"), A100)
    assert "auto" in caught.value.remedy


# -- the CPU's KV cache


@pytest.mark.parametrize(
    ("config", "free_gib", "gib"),
    [
        (ServerConfig(max_model_len=2048, max_num_seqs=32), 16, 2),  # 32 x 2048 x 23,040 B = 1.41 GiB
        (ServerConfig(max_model_len=2048, max_num_seqs=1), 16, 1),
        (ServerConfig(max_model_len=2048, max_num_seqs=1000), 16, 8),  # half of what is free
        (ServerConfig(max_model_len=None, max_num_seqs=8), 16, 2),  # the model's own 8192
        (ServerConfig(max_model_len=100, max_num_seqs=365), 16, 2),  # whole blocks: 128 tokens each
        (ServerConfig(max_model_len=100, max_num_seqs=364), 16, 1),
        (ServerConfig(max_model_len=100, max_num_seqs=364, block_size=96), 16, 2),  # 192 tokens each
        (ServerConfig(max_model_len=129, max_num_seqs=291), 16, 1),  # 291 x 160 tokens: just below 1 GiB
        (ServerConfig(max_model_len=129, max_num_seqs=292), 16, 2),
        (ServerConfig(max_model_len=2048, max_num_seqs=32), 1.9, 1),  # the GiB that is there
        (ServerConfig(max_model_len=2048, max_num_seqs=32), 1, 1),
        (ServerConfig(max_model_len=2048, max_num_seqs=1), 4, 1),
    ],
)
def test_the_kv_space_holds_every_sequence_within_half_of_the_free_memory(
    config: ServerConfig, free_gib: int, gib: int
) -> None:
    assert kv_space_gib(config, machine(free_gib=free_gib), SHAPE) == gib


def test_a_request_that_does_not_fit_into_memory_is_refused() -> None:
    large = ModelShape(layers=80, kv_heads=8, head_size=128)
    with pytest.raises(ConfigError, match="10.0 GiB of KV cache") as caught:
        kv_space_gib(ServerConfig(max_model_len=32768), machine(free_gib=16), large)
    assert "which may take 8 GiB of the 16.0 GiB of memory that are free" in caught.value.cause
    assert "max_model_len" in caught.value.remedy
    assert kv_space_gib(ServerConfig(max_model_len=32768), machine(free_gib=20), large) == 10


def test_less_than_one_free_gib_is_refused(build: Any) -> None:
    with pytest.raises(ConfigError, match="at least 1 GiB, and only 512 MiB of memory are free") as caught:
        build(hardware=machine(free_gib=0.5))
    assert caught.value.remedy
    assert build(hardware=machine(free_gib=1)).env["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_a_chosen_size_of_the_kv_cache_is_taken_if_it_is_free(build: Any) -> None:
    assert build(ServerConfig(kv_cache_gib=5), machine(free_gib=5)).env["VLLM_CPU_KVCACHE_SPACE"] == "5"
    with pytest.raises(ConfigError, match="4.9 GiB of memory are free") as caught:
        build(ServerConfig(kv_cache_gib=5), machine(free_gib=4.9))
    assert caught.value.remedy


@pytest.mark.parametrize("hardware", [CPU, T4], ids=["cpu", "gpu"])
def test_a_model_without_a_config_is_refused(build: Any, source: ModelSource, hardware: Hardware) -> None:
    (source.path / "config.json").unlink()
    with pytest.raises(ModelUnusable):
        build(hardware=hardware)


def test_a_float32_cache_is_twice_as_large(build: Any) -> None:
    config = ServerConfig(max_model_len=8192, max_num_seqs=16)
    assert build(config).env["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert build(dataclasses.replace(config, dtype="float32")).env["VLLM_CPU_KVCACHE_SPACE"] == "6"


def test_a_model_whose_cache_size_is_not_known_starts_with_a_chosen_one(build: Any, source: ModelSource) -> None:
    (source.path / "config.json").write_text(json.dumps(SMOLLM2 | {"sliding_window": 512}))
    with pytest.raises(ConfigError, match="sliding window"):
        build()
    assert build(ServerConfig(kv_cache_gib=2)).env["VLLM_CPU_KVCACHE_SPACE"] == "2"


# -- the environment


def test_a_cpu_server_uses_every_core_and_sees_no_gpu(build: Any) -> None:
    env = build().env
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "0,1"
    assert "OMP_NUM_THREADS" not in env  # else vLLM's other processes spin for work as well
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "2"


def test_a_gpu_server_needs_no_compiler_and_keeps_its_gpus(build: Any) -> None:
    env = build(hardware=T4).env
    assert env["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert not {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE"} & set(env)
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_the_gpus_that_were_chosen_for_the_app_are_the_servers(build: Any) -> None:
    chosen = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    env = build(hardware=T4).full_env(chosen)
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("1", "PCI_BUS_ID")


@pytest.mark.parametrize("hardware", [CPU, T4], ids=["cpu", "gpu"])
def test_no_server_calls_home_or_needs_the_hub(build: Any, hardware: Hardware) -> None:
    env = build(hardware=hardware).env
    assert (env["VLLM_NO_USAGE_STATS"], env["DO_NOT_TRACK"], env["HF_HUB_OFFLINE"]) == ("1", "1", "1")


def test_intels_openmp_is_preloaded_where_it_is_installed(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    assert "LD_PRELOAD" not in cpu_thread_environment(CPU, str(python))
    library = tmp_path / "lib" / "libiomp5.so"
    library.parent.mkdir()
    library.touch()
    assert cpu_thread_environment(CPU, str(python))["LD_PRELOAD"] == str(library)


def test_the_apps_own_settings_do_not_reach_the_server(build: Any) -> None:
    inherited = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "HF_TOKEN": "t",
        "STREAMLIT_SERVER_PORT": "1",
        "LAB_DATA_DIR": "/x",
        "PYTHONPATH": "/x",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "OMP_NUM_THREADS": "99",
        "LD_PRELOAD": "/x.so",
        "TMPDIR": "/x",
        "HF_HUB_OFFLINE": "0",
    }
    launch = build(hardware=T4)
    assert launch.full_env(inherited) == {"PATH": "/bin", "HOME": "/home/me", "HF_TOKEN": "t"} | launch.env


# -- secrets


@pytest.mark.parametrize("hardware", ALL_HARDWARE.values(), ids=ALL_HARDWARE)
def test_the_key_is_neither_in_the_arguments_nor_in_the_shown_line(build: Any, hardware: Hardware) -> None:
    launch = build(hardware=hardware)
    assert launch.env["VLLM_API_KEY"] == KEY
    assert KEY not in " ".join(launch.argv)
    assert KEY not in launch.shell_line()
    assert "VLLM_API_KEY=…" in launch.shell_line()


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_no_secret_variable_shows_its_value(name: str) -> None:
    assert Launch(("x",), {name: "s3cret"}).shell_line() == f"{name}=… x"


def test_the_shown_line_is_the_same_command_in_a_shell(build: Any, source: ModelSource) -> None:
    launch = build()
    words = shlex.split(launch.shell_line())
    variables = dict(word.split("=", 1) for word in words[: len(launch.env)])
    assert tuple(words[len(launch.env) :]) == launch.argv
    assert variables == launch.env | {"VLLM_API_KEY": "…"}
    assert " " in str(source.path)


# -- decided by what is given, and fit for the installed vLLM


def test_the_same_inputs_give_the_same_command_whatever_the_environment(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(os.environ)
    first = build()
    assert dict(os.environ) == before
    monkeypatch.setenv("VLLM_API_KEY", "another")
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert build() == first


def test_options_that_the_installed_vllm_lacks_are_left_out(build: Any) -> None:
    extras = {f"--{name.replace('_', '-')}" for name in EXTRAS}
    assert extras <= set(build(options=EXTRAS).argv)
    assert not extras & set(build(options=frozenset()).argv)
    one = build(options=frozenset({"enable_per_request_metrics"}))
    assert extras & set(one.argv) == {"--enable-per-request-metrics"}


def test_every_flag_exists_in_the_installed_vllm(build: Any) -> None:
    known = installed_options()
    if not known:
        pytest.skip("vLLM is not installed")
    config = ServerConfig(
        max_num_batched_tokens=512,
        kv_cache_dtype="fp8",
        block_size=32,
        kv_cache_gib=1,
        attention_backend="TRITON_ATTN",
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        data_parallel_size=2,
        distributed_executor_backend="ray",
    )
    flags = {word for word in build(config, A100, options=known).argv if word.startswith("--")}
    names = {flag.removeprefix("--").removeprefix("no-").replace("-", "_") for flag in flags}
    assert len(names) > 20
    assert names - known == set()
    assert "no_such_option" not in known


# -- KV events


def test_kv_events_are_asked_for_where_somebody_listens_and_vllm_knows_them(build: Any) -> None:
    told = build(kv_events='{"enable_kv_cache_events":true}', options=frozenset({"kv_events_config"}))
    assert value_of(told, "--kv-events-config") == '{"enable_kv_cache_events":true}'
    assert value_of(build(options=frozenset({"kv_events_config"})), "--kv-events-config") is None
    assert value_of(build(kv_events="{}", options=frozenset()), "--kv-events-config") is None


def test_a_cpu_has_blocks_that_a_short_conversation_fills(build: Any) -> None:
    assert value_of(build(), "--block-size") == str(command.DEFAULT_CPU_BLOCK)
    assert value_of(build(ServerConfig(block_size=128)), "--block-size") == "128"
    assert value_of(build(hardware=A100), "--block-size") is None
