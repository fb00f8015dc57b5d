"""What a model's ``config.json`` says of its KV cache, and how long a sequence may be.

One layer keeps, of every token, a key and a value per KV head: ``2 · H_kv · D`` numbers (multi-head, grouped-query
and multi-query attention), or one latent vector that stands for both (multi-head latent attention, MLA). Layers with
a sliding window keep it only of the last tokens. Whatever is stored differently (state-space layers, chunked or sparse
attention, layers of different sizes) is refused rather than guessed.

Read as vLLM 0.32 and the transformers it comes with read it: ``transformers_utils/model_arch_config_convertor.py``
(heads, head size, MLA), ``engine/arg_utils.py`` (one window for all layers), the models' own files (windows by layer).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from engine.errors import ConfigError, ModelUnusable

DTYPE_SIZES = (2, 4)
LATENT_ATTENTION_KEYS = ("kv_lora_rank", "q_lora_rank")
# Model types whose latent vectors vLLM caches, in every layer, and nothing else beside them.
LATENT_TYPES = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2"})
# Layers that keep something else than keys and values of every token, or not all the same.
OTHER_LAYERS = {
    "layers that are not attention": (
        "ssm_cfg",
        "mamba_d_state",
        "ssm_state_size",
        "linear_num_key_heads",
        "hybrid_override_pattern",
        "layers_block_type",
        "attn_layer_period",
        "attn_type_list",
    ),
    "chunked attention": ("attention_chunk_size",),
    "sparse attention": ("index_topk", "compress_ratios"),
    "cross-attention": ("is_encoder_decoder", "cross_attention_layers"),
    "layers of different sizes": ("block_configs", "per_layer_config", "global_head_dim", "hybrid_layer_pattern"),
    "layers that share their cache": ("num_kv_shared_layers", "rswa_window"),
}
LAYER_COUNT_KEYS = ("num_hidden_layers", "n_layer", "num_layers")
QUERY_HEAD_KEYS = ("num_attention_heads", "n_head")
KV_HEAD_KEYS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
WIDTH_KEYS = ("hidden_size", "n_embd")
FULL, SLIDING = "full_attention", "sliding_attention"
# Every layer has the window.
WINDOW_IN_ALL_LAYERS = frozenset({"mistral", "mixtral", "phi3", "starcoder2"})
# Every n-th layer has none, where the config does not list the layers.
FULL_EVERY = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4, "olmo3": 4}
FULL_EVERY_KEYS = ("sliding_window_pattern", "_sliding_window_pattern")
WINDOW_IS_NAMED = frozenset({"mistral", *FULL_EVERY})
# vLLM counts the token itself beside the window.
WINDOW_OFFSET = {"cohere2": 1}
# transformers has numbers of its own for these, which the config need not name.
KV_HEADS_ARE_NAMED = frozenset(
    {"gemma", "gemma2", "gemma3_text", "gpt_oss", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}
    | {"starcoder2"}
)
HEAD_SIZE_IS_NAMED = frozenset({"gemma", "gemma2", "gemma3_text", "gpt_oss", "qwen3", "qwen3_moe"})
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
UNKNOWN_REMEDY = "Choose another model, or give the sizes yourself."
# Larger than any model's: beyond it a config is damaged, and its numbers would be no lengths of lists.
LARGEST = 2**31 - 1
LONGEST_SHOWN = 60


@dataclass(frozen=True)
class ModelShape:
    """What the KV cache needs to know of a model.

    ``dtype_bytes`` is that of the numbers the model computes in. ``latent``: one vector of ``head_size`` a token and
    layer (MLA). The last ``window_layers`` count: layers that keep only ``window`` tokens. ``max_length`` is tokens,
    None where the config is silent.
    """

    layers: int
    kv_heads: int
    head_size: int
    dtype_bytes: int = 2
    max_length: int | None = None
    latent: bool = False
    window: int | None = None
    window_layers: int = 0
    query_heads: int | None = field(default=None, compare=False)

    @property
    def values_per_token(self) -> int:
        """Numbers that one layer keeps of a token."""
        return self.head_size if self.latent else 2 * self.kv_heads * self.head_size

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache for one token over all layers, unquantised, on one device."""
        return self.layers * self.values_per_token * self.dtype_bytes

    @property
    def kind(self) -> str:
        """The attention's name in the field."""
        if self.latent:
            return "multi-head latent attention (MLA)"
        if self.kv_heads == 1:
            return "multi-query attention"
        if self.query_heads is None:
            return "attention"
        return "multi-head attention" if self.query_heads == self.kv_heads else "grouped-query attention"

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype_bytes: int = 2) -> Self:
        """Read a parsed ``config.json``; raises ConfigError for what is missing or not understood."""
        if dtype_bytes not in DTYPE_SIZES:
            raise ConfigError(f"A KV cache of {dtype_bytes} bytes per entry is not known yet.", "Use 2 (bf16) or 4.")
        if not isinstance(config, Mapping):
            raise ConfigError("The model's config.json does not hold an object.", "Download the model again.")
        values = text_config(config)
        _refuse_other_layers(values)
        layers = _required(values, LAYER_COUNT_KEYS)
        heads = _required(values, QUERY_HEAD_KEYS)
        latent = bool(values.get("kv_lora_rank"))
        window, window_layers = _window(values, layers)
        return cls(
            layers=layers,
            kv_heads=1 if latent else _kv_heads(values, heads),
            head_size=_latent_size(values) if latent else _head_size(values, heads),
            dtype_bytes=dtype_bytes,
            max_length=max_length(config),
            latent=latent,
            window=window,
            window_layers=window_layers,
            query_heads=heads,
        )

    @classmethod
    def from_config_file(cls, path: Path, dtype_bytes: int = 2) -> Self:
        """Read ``config.json``; raises ModelUnusable when it can't be read, ConfigError as ``from_config``."""
        return cls.from_config(read_config(path), dtype_bytes)


def max_length(config: Mapping[str, Any]) -> int | None:
    """The longest sequence (tokens) the model takes, as vLLM works it out; None where the config names none."""
    values = text_config(config)
    named = {key: values.get(key) for key in (OWN_LENGTH, *LENGTH_KEYS)}
    lengths = {key: value for key, value in named.items() if type(value) is int and 0 < value <= LARGEST}
    if not lengths:
        return None
    longest = (lengths.get(OWN_LENGTH) or min(lengths.values())) * _rope_factor(values)
    return int(longest) if longest <= LARGEST else None


def _rope_factor(values: Mapping[str, Any]) -> float:
    """By how much rotary scaling stretches the positions; the most of any kind of layer."""
    scaling = values.get("rope_parameters") or values.get("rope_scaling")
    if not isinstance(scaling, Mapping):
        return 1.0
    kinds = [scaling, *(value for value in scaling.values() if isinstance(value, Mapping))]
    stretching = [kind for kind in kinds if kind.get("rope_type", kind.get("type")) not in SCALED_ALREADY]
    factors = [kind.get("factor") for kind in stretching]
    return max([1.0, *(float(min(factor, LARGEST)) for factor in factors if isinstance(factor, int | float))])


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part about the language model, where a model has others too."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def model_type(config: Mapping[str, Any]) -> str:
    """The name of the architecture's family; "None" where there is none."""
    return str(config.get("model_type"))


def read_config(path: Path) -> dict[str, Any]:
    """A model's ``config.json``; raises ModelUnusable."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnusable(f"{path.name} of the model can't be read: {error}", "Download the model again.") from error
    if not isinstance(values, dict):
        raise ModelUnusable(f"{path.name} of the model does not hold an object.", "Download the model again.")
    return values


def _refuse_other_layers(values: Mapping[str, Any]) -> None:
    kind = model_type(values)
    if any(values.get(key) for key in LATENT_ATTENTION_KEYS) and kind not in LATENT_TYPES:
        raise _not_known(f"multi-head latent attention (MLA) and of the type {kind}")
    for what, keys in OTHER_LAYERS.items():
        if any(values.get(key) for key in keys):
            raise _not_known(what)
    value_size = values.get("v_head_dim")
    if value_size and not values.get("kv_lora_rank") and value_size != values.get("head_dim"):
        raise _not_known("values of another size than its keys")


def _window(values: Mapping[str, Any], layers: int) -> tuple[int | None, int]:
    """The sliding window (tokens) and how many layers have it."""
    kind = model_type(values)
    window = _first(values, ("sliding_window",)) if values.get("sliding_window") else None
    listed = values.get("layer_types")
    if listed is not None and not (isinstance(listed, list) and len(listed) == layers):
        raise ConfigError(f"The model's config lists other layers than its {layers}.", "The model's config is damaged.")
    others = {str(name) for name in listed or ()} - {FULL, SLIDING}
    if others:
        raise _not_known(f"layers of the kinds {', '.join(sorted(others))}")
    if "use_sliding_window" in values and not values["use_sliding_window"]:
        return None, 0
    if listed is None and window is None:
        if kind in WINDOW_IS_NAMED and "sliding_window" not in values:
            raise _missing("sliding_window")
        return None, 0
    windowed = _windowed(values, kind, layers) if listed is None else listed.count(SLIDING)
    if not windowed:
        return None, 0
    if window is None or kind not in (WINDOW_IN_ALL_LAYERS | FULL_EVERY.keys()):
        raise _not_known(f"a sliding window and of the type {kind}")
    return window + WINDOW_OFFSET.get(kind, 0), windowed


def _windowed(values: Mapping[str, Any], kind: str, layers: int) -> int:
    if kind in WINDOW_IN_ALL_LAYERS:
        return layers
    if kind not in FULL_EVERY:
        raise _not_known(f"a sliding window and of the type {kind}")
    return layers - layers // (_first(values, FULL_EVERY_KEYS) or FULL_EVERY[kind])


def _not_known(what: str) -> ConfigError:
    return ConfigError(f"The KV-cache size of a model with {what} is not known yet.", UNKNOWN_REMEDY)


def _kv_heads(values: Mapping[str, Any], heads: int) -> int:
    if values.get("multi_query") and not values.get("new_decoder_architecture"):
        return 1
    named = _first(values, KV_HEAD_KEYS)
    if named is None and model_type(values) in KV_HEADS_ARE_NAMED:
        raise _missing("num_key_value_heads")
    return named or heads


def _latent_size(values: Mapping[str, Any]) -> int:
    """The compressed vector and the rotary part that all heads share."""
    return _required(values, ("kv_lora_rank",)) + _required(values, ("qk_rope_head_dim",))


def _head_size(values: Mapping[str, Any], heads: int) -> int:
    explicit = _first(values, ("head_dim", "hidden_size_per_head"))
    if explicit is not None:
        return explicit
    if model_type(values) in HEAD_SIZE_IS_NAMED:
        raise _missing("head_dim")
    width = _required(values, WIDTH_KEYS)
    if width % heads:
        raise ConfigError(f"hidden_size {width} is not a multiple of {heads} heads.", "The model's config is damaged.")
    return width // heads


def _required(values: Mapping[str, Any], names: tuple[str, ...]) -> int:
    found = _first(values, names)
    if found is None:
        raise _missing(names[0])
    return found


def _shown(value: object) -> str:
    words = repr(value)
    return words if len(words) <= LONGEST_SHOWN else words[:LONGEST_SHOWN] + "…"


def _missing(name: str) -> ConfigError:
    return ConfigError(f"The model's config does not say {name}.", UNKNOWN_REMEDY)


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of these that is there; raises ConfigError for one that is no positive whole number."""
    for name in names:
        value = values.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
            raise ConfigError(
                f"The model's config has {name} = {_shown(value)}.",
                f"It must be a positive whole number of at most {LARGEST:,}.",
            )
        return value
    return None
