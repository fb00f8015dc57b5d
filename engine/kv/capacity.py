"""What a model's ``config.json`` says: how many bytes of KV cache a token takes, and how long a sequence may be.

One key and one value vector per layer and KV head: ``2 · L · H_kv · D · bytes`` (a page of vLLM's
``FullAttentionSpec`` divided by its tokens). Holds for multi-head, grouped-query and multi-query attention
with 16- or 32-bit entries; whatever is stored differently (latent attention, sliding windows, state-space
layers, quantised caches) is refused rather than guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from engine.errors import ConfigError, ModelUnusable

DTYPE_SIZES = (2, 4)
LATENT_ATTENTION_KEYS = ("kv_lora_rank", "q_lora_rank")
# Layers that keep something else than keys and values of every token.
OTHER_LAYER_KEYS = ("ssm_cfg", "mamba_d_state", "ssm_state_size", "linear_num_key_heads", "hybrid_override_pattern")
ATTENTION_CHUNK_KEYS = ("attention_chunk_size",)
LAYER_COUNT_KEYS = ("num_hidden_layers", "n_layer", "num_layers")
QUERY_HEAD_KEYS = ("num_attention_heads", "n_head")
WIDTH_KEYS = ("hidden_size", "n_embd")
# Where vLLM looks, too: this counts before all others, of which the smallest counts.
OWN_LENGTH = "model_max_length"
LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# Rotary scalings of which max_position_embeddings is the result already.
SCALED_ALREADY = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
UNKNOWN_REMEDY = "Choose a model with ordinary attention, or set the KV-cache size yourself."


@dataclass(frozen=True)
class ModelShape:
    """What the KV cache needs to know of a model; ``max_length`` is tokens, None where the config is silent."""

    layers: int
    kv_heads: int
    head_size: int
    dtype_bytes: int = 2
    max_length: int | None = None

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache for one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.dtype_bytes

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype_bytes: int = 2) -> Self:
        """Read a parsed ``config.json``; raises ConfigError for what is missing or not understood."""
        if dtype_bytes not in DTYPE_SIZES:
            raise ConfigError(f"A KV cache of {dtype_bytes} bytes per entry is not known yet.", "Use 2 (bf16) or 4.")
        if not isinstance(config, Mapping):
            raise ConfigError("The model's config.json does not hold an object.", "Download the model again.")
        values = _text_config(config)
        _refuse_other_attention(values)
        layers = _required(values, LAYER_COUNT_KEYS)
        heads = _required(values, QUERY_HEAD_KEYS)
        return cls(
            layers=layers,
            kv_heads=_kv_heads(values, heads),
            head_size=_head_size(values, heads),
            dtype_bytes=dtype_bytes,
            max_length=max_length(config),
        )

    @classmethod
    def from_config_file(cls, path: Path, dtype_bytes: int = 2) -> Self:
        """Read ``config.json``; raises ModelUnusable when it can't be read, ConfigError as ``from_config``."""
        return cls.from_config(read_config(path), dtype_bytes)


def max_length(config: Mapping[str, Any]) -> int | None:
    """The longest sequence (tokens) the model takes, as vLLM works it out; None where the config does not say."""
    values = _text_config(config)
    lengths = {key: value for key in (OWN_LENGTH, *LENGTH_KEYS) if type(value := values.get(key)) is int and value > 0}
    if not lengths:
        return None
    return int((lengths.get(OWN_LENGTH) or min(lengths.values())) * _rope_factor(values))


def _rope_factor(values: Mapping[str, Any]) -> float:
    """By how much rotary scaling stretches the positions; the most of any kind of layer."""
    scaling = values.get("rope_parameters") or values.get("rope_scaling")
    if not isinstance(scaling, Mapping):
        return 1.0
    kinds = [scaling, *(value for value in scaling.values() if isinstance(value, Mapping))]
    stretching = [kind for kind in kinds if kind.get("rope_type", kind.get("type")) not in SCALED_ALREADY]
    factors = [kind.get("factor") for kind in stretching]
    return max([1.0, *(float(factor) for factor in factors if isinstance(factor, int | float))])


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part about the language model, where a model has others too."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def read_config(path: Path) -> dict[str, Any]:
    """A model's ``config.json``; raises ModelUnusable."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnusable(f"{path.name} of the model can't be read: {error}", "Download the model again.") from error
    if not isinstance(values, dict):
        raise ModelUnusable(f"{path.name} of the model does not hold an object.", "Download the model again.")
    return values


def _refuse_other_attention(values: Mapping[str, Any]) -> None:
    if any(values.get(key) for key in LATENT_ATTENTION_KEYS):
        raise _not_known("multi-head latent attention (MLA)")
    if any(values.get(key) for key in OTHER_LAYER_KEYS):
        raise _not_known("layers that are not attention")
    if any(values.get(key) for key in ATTENTION_CHUNK_KEYS):
        raise _not_known("chunked attention")
    if values.get("sliding_window") and values.get("use_sliding_window", True) is not False:
        raise _not_known("a sliding window")
    types = values.get("layer_types")
    if isinstance(types, list) and set(map(str, types)) - {"full_attention"}:
        raise _not_known(f"layers of the kinds {', '.join(sorted(set(map(str, types))))}")


def _not_known(what: str) -> ConfigError:
    return ConfigError(f"The KV-cache size of a model with {what} is not known yet.", UNKNOWN_REMEDY)


def _kv_heads(values: Mapping[str, Any], heads: int) -> int:
    if values.get("new_decoder_architecture"):
        return _first(values, ("num_kv_heads", "n_head_kv")) or heads
    if values.get("multi_query"):
        return 1
    return _first(values, ("num_key_value_heads", "num_kv_heads", "n_head_kv")) or heads


def _head_size(values: Mapping[str, Any], heads: int) -> int:
    explicit = _first(values, ("head_dim",))
    if explicit is not None:
        return explicit
    width = _required(values, WIDTH_KEYS)
    if width % heads:
        raise ConfigError(f"hidden_size {width} is not a multiple of {heads} heads.", "The model's config is damaged.")
    return width // heads


def _required(values: Mapping[str, Any], names: tuple[str, ...]) -> int:
    found = _first(values, names)
    if found is None:
        raise ConfigError(f"The model's config does not say {names[0]}.", UNKNOWN_REMEDY)
    return found


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of these that is there; raises ConfigError for one that is no positive whole number."""
    for name in names:
        value = values.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"The model's config has {name} = {value!r}.", "It must be a positive whole number.")
        return value
    return None
