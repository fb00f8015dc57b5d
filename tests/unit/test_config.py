"""Configurations: every refusal has a cause and a remedy, and what is saved comes back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from engine.config import PROJECT_ROOT, CompareConfig, Device, Endpoint, ServerConfig, Settings
from engine.errors import ConfigError

SERVER_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "model name"),
    ({"model": "   "}, "model name"),
    ({"model": "--trust-remote-code"}, "model name"),
    ({"max_num_seqs": 0}, "max_num_seqs"),
    ({"tensor_parallel_size": 0}, "tensor_parallel_size"),
    ({"pipeline_parallel_size": -1}, "pipeline_parallel_size"),
    ({"data_parallel_size": 0}, "data_parallel_size"),
    ({"max_model_len": 0}, "max_model_len"),
    ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
    ({"block_size": -16}, "block_size"),
    ({"kv_cache_gib": 0}, "kv_cache_gib"),
    ({"dtype": "int8"}, "dtype"),
    ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization"),
    ({"gpu_memory_utilization": 1.01}, "gpu_memory_utilization"),
    ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization"),
    ({"distributed_executor_backend": "uni"}, "distributed_executor_backend"),
    ({"port": 80}, "Port 80"),
    ({"port": 65536}, "Port 65536"),
    ({"max_num_batched_tokens": 16, "max_num_seqs": 32}, "max_num_batched_tokens"),
]
COMPARE_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": " \n"}, "prompt"),
    ({"max_tokens": 1}, "max_tokens"),
    ({"max_tokens": 4097}, "max_tokens"),
    ({"repeats": 0}, "repeats"),
    ({"repeats": 51}, "repeats"),
    ({"users": ()}, "users"),
    ({"users": (1, 0)}, "users"),
    ({"users": (257,)}, "users"),
    ({"engines": ()}, "engine"),
    ({"engines": ("hf", "sglang")}, "sglang"),
]
ENVIRONMENT_REFUSALS = [
    ({"LAB_DEVICE": "tpu"}, "LAB_DEVICE"),
    ({"LAB_AUTOSTART": "maybe"}, "LAB_AUTOSTART"),
    ({"HF_HUB_OFFLINE": "2"}, "HF_HUB_OFFLINE"),
]


def assert_refusal(error: ConfigError, words: str) -> None:
    assert words in error.cause
    assert error.remedy.endswith(".")
    assert str(error) == f"{error.cause} {error.remedy}"


# -- the server


@pytest.mark.parametrize(("values", "words"), SERVER_REFUSALS)
def test_a_server_that_can_not_work_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(**values)
    assert_refusal(caught.value, words)


def test_a_change_of_a_server_is_checked_as_well() -> None:
    with pytest.raises(ConfigError):
        dataclasses.replace(ServerConfig(), max_num_seqs=-1)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"max_model_len": None, "max_num_seqs": 1, "port": 1024},
        {"max_num_batched_tokens": 32, "max_num_seqs": 32},
        {"gpu_memory_utilization": 0.05, "port": 65535, "distributed_executor_backend": "ray"},
        {"model": "/folder/model", "dtype": "float32", "enforce_eager": False, "block_size": 64, "kv_cache_gib": 3},
    ],
)
def test_a_server_comes_back_from_its_dict_through_json(values: dict[str, Any]) -> None:
    config = ServerConfig(**values)
    saved = json.loads(json.dumps(config.to_dict()))
    assert saved.keys() == {field.name for field in dataclasses.fields(ServerConfig)}
    assert ServerConfig.from_dict(saved) == config


def test_fields_of_a_newer_version_are_ignored_and_missing_ones_have_defaults() -> None:
    assert ServerConfig.from_dict({"max_num_seqs": 7, "from_the_future": True}) == ServerConfig(max_num_seqs=7)


def test_a_saved_server_is_checked_when_it_is_read() -> None:
    with pytest.raises(ConfigError):
        ServerConfig.from_dict({"dtype": "int3"})


def test_a_server_can_not_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ServerConfig().max_num_seqs = 1  # type: ignore[misc]


# -- the comparison


@pytest.mark.parametrize(("values", "words"), COMPARE_REFUSALS)
def test_a_comparison_that_can_not_work_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CompareConfig(**values)
    assert_refusal(caught.value, words)


def test_a_comparison_is_described_by_its_dict() -> None:
    config = CompareConfig(prompt="Why?", max_tokens=2, users=(1, 256), engines=("vllm",), static_batch=False)
    assert CompareConfig(**config.to_dict()) == config


# -- the environment


@pytest.mark.parametrize(("environ", "words"), ENVIRONMENT_REFUSALS)
def test_a_variable_that_means_nothing_is_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env(environ)
    assert_refusal(caught.value, words)


def test_without_variables_everything_is_in_the_projects_data_folder() -> None:
    assert Settings.from_env({}) == Settings(PROJECT_ROOT / "data", device=None, autostart=True, hub_offline=False)


def test_empty_variables_are_as_good_as_none() -> None:
    names = ("LAB_DATA_DIR", "LAB_DEVICE", "LAB_AUTOSTART", "HF_HUB_OFFLINE")
    assert Settings.from_env(dict.fromkeys(names, " ")) == Settings.from_env({})


@pytest.mark.parametrize(
    ("word", "value"), [("1", True), ("TRUE", True), ("yes", True), (" on ", True), ("0", False), ("off", False)]
)
def test_flags_are_read_in_several_spellings(word: str, value: bool) -> None:
    settings = Settings.from_env({"LAB_AUTOSTART": word, "HF_HUB_OFFLINE": word})
    assert (settings.autostart, settings.hub_offline) == (value, value)


@pytest.mark.parametrize(("word", "device"), [("cpu", Device.CPU), (" CUDA ", Device.CUDA)])
def test_the_device_is_read_without_regard_to_case(word: str, device: Device) -> None:
    assert Settings.from_env({"LAB_DEVICE": word}).device == device


def test_the_data_folder_moves_everything(tmp_path: Path) -> None:
    settings = Settings.from_env({"LAB_DATA_DIR": str(tmp_path / "a" / ".." / "b")})
    folders = (settings.database.parent, settings.models_dir, settings.logs_dir, settings.state_dir)
    assert settings.data_dir == tmp_path / "b"
    assert all(folder.is_relative_to(tmp_path / "b") for folder in folders)


def test_a_home_sign_in_the_data_folder_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings.from_env({"LAB_DATA_DIR": "~/lab"}).data_dir == tmp_path / "lab"


def test_the_process_environment_is_read_by_default(data_dir: Path) -> None:
    assert Settings.from_env().data_dir == data_dir
    assert Settings.from_env().autostart is False


# -- the endpoint


def test_an_endpoint_never_shows_its_key() -> None:
    endpoint = Endpoint("http://127.0.0.1:8000/v1", "owner/name", "very-secret", 2048)
    for text in (repr(endpoint), str(endpoint), f"{endpoint}", repr([endpoint])):
        assert "very-secret" not in text
        assert "owner/name" in text and "2048" in text


def test_an_endpoint_knows_its_root_and_its_headers() -> None:
    endpoint = Endpoint("http://127.0.0.1:8000/v1", "m", "k")
    assert endpoint.root_url == "http://127.0.0.1:8000"
    assert endpoint.headers == {"Authorization": "Bearer k"}
    assert Endpoint("http://127.0.0.1:8000/v1", "m").headers == {}


def test_the_port_of_the_app_can_be_moved() -> None:
    assert Settings.from_env({}).port == 8501
    assert Settings.from_env({"LAB_PORT": " 8600 "}).port == 8600


@pytest.mark.parametrize("word", ["80", "70000", "x", "-8600", "86.5", "²²²²"])
def test_a_port_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="LAB_PORT") as caught:
        Settings.from_env({"LAB_PORT": word})
    assert caught.value.remedy


@pytest.mark.parametrize("word", ["~nobody-of-this-name/x", "a\x00b"])
def test_a_data_folder_that_can_not_be_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="LAB_DATA_DIR"):
        Settings.from_env({"LAB_DATA_DIR": word})
