"""What is known of a model without loading it: its config.json and the bytes of its weights.

From a folder, the hub's cache, the models known here (``known_models.yaml``), or the hub (config.json and sizes only).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from engine.config import Settings
from engine.environment import GIB
from engine.errors import LabError, ModelOffline, ModelUnusable
from engine.kv.shape import LARGEST, ModelShape, model_type, read_config, text_config
from engine.model_fetch import hub_answers, hub_errors
from engine.models import INDEX, find_ready

KNOWN_FILE = Path(__file__).with_name("known_models.yaml")
LOADED_BYTES = 2
MOST_BYTES = 2**60
# Their decoder layers are attention, a gated MLP and two norms, so that the sizes say how many numbers they hold.
GATED = frozenset({"llama", "mistral", "qwen2", "qwen3"})


@dataclass(frozen=True)
class Weights:
    """Bytes that the weights take once loaded, None where that isn't known; ``words`` say where it is from."""

    total_bytes: int | None
    words: str
    estimated: bool = True


@dataclass(frozen=True)
class ModelFacts:
    """``model`` is how it is called, ``origin`` where the config was read, in words."""

    model: str
    config: Mapping[str, Any]
    origin: str
    weights: Weights

    def shape(self, dtype_bytes: int = LOADED_BYTES) -> ModelShape:
        """Raises ConfigError for what is not understood."""
        return ModelShape.from_config(self.config, dtype_bytes)

    @property
    def own_kv_format(self) -> str | None:
        """The KV-cache format that a quantised checkpoint brings along, so that "auto" means it; None for none."""
        quantised = self.config.get("quantization_config") or self.config.get("compression_config")
        if not isinstance(quantised, Mapping):
            return None
        inner = quantised.get("quantization")
        parts = (quantised, inner) if isinstance(inner, Mapping) else (quantised,)
        found = (part.get(key) for part in parts for key in ("kv_cache_scheme", "kv_cache_quant_algo"))
        return next((str(value) for value in found if value), None)


@cache
def known_models() -> dict[str, ModelFacts]:
    """The models whose numbers are published, by the hub's id."""
    return {entry["model"]: _known(entry) for entry in yaml.safe_load(KNOWN_FILE.read_text("utf-8"))}


def _known(entry: Mapping[str, Any]) -> ModelFacts:
    if "weights_gib" in entry:
        size = int(entry["weights_gib"] * GIB)
    else:
        size = entry["parameters"] * entry.get("parameter_bytes", LOADED_BYTES)
    words = entry.get("weights", f"{entry.get('parameters', 0):,} parameters of {LOADED_BYTES} bytes")
    return ModelFacts(entry["model"], entry["config"], "published figures", Weights(size, words))


def find_facts(model: str, settings: Settings) -> ModelFacts:
    """What can be known of a model; asks the hub only for one that is neither here nor among the known.

    Raises a ModelError: ModelNotFound for what is no model, ModelOffline where the hub can't be asked.
    """
    folder, size = _on_disk(model, settings)
    if folder is not None:
        return _from_folder(model, folder, size)
    if model in known_models():
        return known_models()[model]
    if settings.hub_offline or not hub_answers():
        raise ModelOffline(
            f"{model} is not on this machine, and the Hugging Face hub can't be reached.",
            "Connect to the network, give the folder of a config.json, choose a known model, or give the sizes.",
        )
    return _from_hub(model)


def _on_disk(model: str, settings: Settings) -> tuple[Path | None, int | None]:
    """Folder of a model whose config is here, and bytes of its weights; None for what is not here."""
    with contextlib.suppress(ModelUnusable):  # the weights need not be here
        if (source := find_ready(model, settings)) is not None:
            return source.path, source.weights_bytes
    if (folder := Path(model).expanduser()).is_absolute() or model.startswith(("./", "../")):
        return folder.resolve(), None
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model, "config.json")
    return (Path(config).parent, None) if isinstance(config, str) else (None, None)


def _from_folder(model: str, folder: Path, size: int | None) -> ModelFacts:
    config = read_config(folder / "config.json")
    index = folder / INDEX
    if size is None and index.is_file():
        size = _indexed_bytes(index)
    return ModelFacts(model, config, f"config.json in {folder}", _weights(config, size, "its files"))


def _from_hub(model: str) -> ModelFacts:
    from huggingface_hub import HfApi, hf_hub_download

    with hub_errors(model):
        config = read_config(Path(hf_hub_download(model, "config.json")))
    size = None
    with contextlib.suppress(LabError), hub_errors(model):  # without it, the weights are reckoned or unknown
        files = {file.rfilename: file.size for file in HfApi().model_info(model, files_metadata=True).siblings or ()}
        in_parts = INDEX in files
        size = _indexed_bytes(Path(hf_hub_download(model, INDEX))) if in_parts else files.get("model.safetensors")
    return ModelFacts(model, config, "config.json from the hub", _weights(config, size, "its files on the hub"))


def _indexed_bytes(index: Path) -> int | None:
    metadata = read_config(index).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    return int(total) if isinstance(total, int | float) and 0 < total <= MOST_BYTES else None


def _weights(config: Mapping[str, Any], size: int | None, words: str) -> Weights:
    if size is None:
        count = parameters(config)
        if count is None:
            return Weights(None, "not known: give it")
        return Weights(count * LOADED_BYTES, f"{count:,} parameters, reckoned from its config, of {LOADED_BYTES} bytes")
    if _is_float32(config):
        return Weights(size // 2, f"{words}, halved: float32 is loaded as 16 bits")
    return Weights(size, words, estimated=False)


def _is_float32(config: Mapping[str, Any]) -> bool:
    names = (part.get("dtype") or part.get("torch_dtype") for part in (config, text_config(config)))
    return "float32" in [str(name).removeprefix("torch.") for name in names if name]


def parameters(config: Mapping[str, Any]) -> int | None:
    """How many numbers a dense Llama-like checkpoint holds; None for another kind, or where the config is silent."""
    values = text_config(config)
    sizes = [values.get(key) for key in ("vocab_size", "hidden_size", "intermediate_size")]
    if model_type(values) not in GATED or not all(type(size) is int and 0 < size <= LARGEST for size in sizes):
        return None
    with contextlib.suppress(LabError):
        shape = ModelShape.from_config(config)
        vocabulary, width, inner = (int(size or 0) for size in sizes)
        queries, keys = (shape.query_heads or 0) * shape.head_size, shape.kv_heads * shape.head_size
        attention = 2 * width * queries + 2 * width * keys
        layer = attention + 3 * width * inner + 2 * width
        embeddings = vocabulary * width * (1 if values.get("tie_word_embeddings") else 2)
        return embeddings + shape.layers * layer + width
    return None
