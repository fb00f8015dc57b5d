"""What is asked of “How many fit?”: model, card, lengths, and every assumption in the open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import streamlit as st

from engine.config import OFFERED_MODELS, Settings
from engine.environment import GIB, Hardware
from engine.kv.capacity import AUTO, PACKED_LATENT_BYTES, PACKED_LATENT_SIZE, SCALED_ENTRY_BYTES
from engine.kv.cards import CARDS, RESERVE_GIB, THIS, UTILIZATION, Card, this_machine
from engine.kv.facts import ModelFacts, Weights, find_facts, known_models
from engine.kv.fit import Question
from engine.kv.shape import ModelShape

BY_HAND = "Sizes by hand"
DEFAULT_MODEL = "meta-llama/Meta-Llama-3-8B-Instruct"
DEFAULT_CARD = "l4"
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
DEFAULT_LENGTH = 8192
BLOCK_SIZES = (16, 32, 64, 128)
PARALLEL = (1, 2, 4, 8)
CARD_NAMES = {card.key: card.name for card in CARDS} | {THIS: "This machine"}


@dataclass(frozen=True)
class Subject:
    """The model that is asked about; ``model`` is None for sizes by hand."""

    model: str | None
    shape: ModelShape
    weights: Weights
    origin: str
    own_kv_format: str | None = None


def choose_model(settings: Settings) -> Subject:
    """Raises a LabError for a model that isn't found or understood."""
    options = list(dict.fromkeys((*OFFERED_MODELS, *known_models(), BY_HAND)))
    chosen = st.selectbox(
        "Model",
        options,
        options.index(DEFAULT_MODEL),
        key="capacity_model",
        accept_new_options=True,
        bind="query-params",
        help="Choose one, or type a hub id (owner/name) or a folder with a config.json. Only its config is read.",
    )
    if chosen == BY_HAND:
        return _by_hand()
    facts = _facts((chosen or "").strip(), settings)
    return Subject(facts.model, facts.shape(), facts.weights, facts.origin, facts.own_kv_format)


@st.cache_data(ttl=60, show_spinner="Reading the model's config", max_entries=50)
def _facts(model: str, _settings: Settings) -> ModelFacts:
    return find_facts(model, _settings)


def _by_hand() -> Subject:
    columns = st.columns(4, gap="medium")
    layers = columns[0].number_input("Layers", 1, 1000, 32, key="capacity_layers", bind="query-params")
    heads = columns[1].number_input(
        "KV heads",
        1,
        1024,
        8,
        key="capacity_heads",
        bind="query-params",
        help="As many as attention heads (multi-head), fewer (grouped-query), or one (multi-query).",
    )
    size = columns[2].number_input("Head size", 1, 4096, 128, key="capacity_size", bind="query-params")
    billions = columns[3].number_input(
        "Parameters (billions)",
        0.0,
        10_000.0,
        8.0,
        0.5,
        key="capacity_billions",
        bind="query-params",
        help="For the memory that the weights take: two bytes each.",
    )
    weights = Weights(int(billions * 2e9), f"{billions:g} billion parameters of 2 bytes")
    return Subject(None, ModelShape(int(layers), int(heads), int(size)), weights, "sizes by hand")


def choose_card(cards: Sequence[Card]) -> Card:
    chosen = st.segmented_control(
        "GPU",
        [card.key for card in cards],
        format_func=CARD_NAMES.__getitem__,
        default=DEFAULT_CARD,
        required=True,
        key="capacity_card",
        bind="query-params",
    )
    return next(card for card in cards if card.key == (chosen or DEFAULT_CARD))


def cards_with(hardware: Hardware) -> list[Card]:
    """The known ones and this machine."""
    mine = this_machine(hardware)
    return [*CARDS, *([mine] if mine else [])]


def lengths(shape: ModelShape) -> Question:
    """How long requests may be, and how long they are."""
    longest = shape.max_length
    options = [length for length in LENGTHS if longest is None or length < longest] + ([longest] if longest else [])
    columns = st.columns([2, 1, 1], gap="medium")
    with columns[0]:
        most = st.select_slider(
            "Longest request (max_model_len)",
            options,
            max(length for length in options if length <= DEFAULT_LENGTH or length == options[0]),
            format_func=lambda tokens: f"{tokens:,} tokens",
            key=f"capacity_length_{longest or 0}",
            bind="query-params",
            help="Tokens of prompt and answer together that one request may have. Contiguous memory reserves this "
            "for everybody.",
        )
    prompt = columns[1].number_input(
        "Typical prompt (tokens)", 1, 1_000_000, Question.prompt_tokens, 64, key="capacity_prompt", bind="query-params"
    )
    output = columns[2].number_input(
        "Typical answer (tokens)", 1, 1_000_000, Question.output_tokens, 64, key="capacity_output", bind="query-params"
    )
    return Question(shape, prompt_tokens=int(prompt), output_tokens=int(output), max_model_len=int(most))


def assumptions(question: Question, subject: Subject, card: Card) -> Question:
    """Everything else that the answer depends on, with vLLM's defaults."""
    left, right = st.columns(2, gap="medium")
    with left:
        question = replace(question, weights_bytes=_weights(subject))
        share = st.slider(
            "Share of the GPU (gpu_memory_utilization)",
            0.1,
            1.0,
            UTILIZATION,
            0.01,
            key="capacity_share",
            bind="query-params",
            help="What vLLM may take of the GPU's memory for weights, workspace and KV cache. Its default is 0.92.",
        )
        reserve = st.slider(
            "Workspace (GiB), an assumption",
            0.0,
            16.0,
            RESERVE_GIB,
            0.25,
            key="capacity_reserve",
            bind="query-params",
            help="Activations of the largest batch, CUDA context and CUDA graphs. vLLM measures it at its start; "
            "for a card that is not here it can only be assumed.",
        )
    with right:
        kv_dtype = st.selectbox(
            "KV cache format (kv_cache_dtype)",
            _formats(subject),
            key=_format_key(subject),
            bind="query-params",
            help="auto: the model's 16 bits. fp8: half of it. “per_token_head”: 8 or 4 bits, and a 4-byte scale beside "
            "every key and value.",
        )
        block = st.select_slider(
            "Block size (tokens)",
            BLOCK_SIZES,
            card.block_size,
            key="capacity_block_cpu" if card.is_cpu else "capacity_block",
            bind="query-params",
        )
        parts = st.select_slider(
            "GPUs (tensor_parallel_size)",
            PARALLEL,
            1,
            key="capacity_parallel",
            bind="query-params",
            help="How many serve the model together: KV heads and weights are divided among them. All numbers of the "
            "KV cache are those on one of them.",
        )
    question = replace(
        question,
        gpu_memory_utilization=share,
        reserve_bytes=int(reserve * GIB),
        kv_dtype=kv_dtype,
        block_size=int(block),
        tensor_parallel_size=int(parts),
    )
    return _in_flight(question) if subject.shape.window else question


def kv_memory(card: Card) -> int | None:
    """Bytes that the KV cache is given on a machine without a GPU; None leaves it to the lab's rule."""
    gib = st.number_input(
        "KV cache (GiB)",
        1,
        max(1, card.memory_bytes // GIB),
        None,
        key="capacity_kv_gib",
        bind="query-params",
        placeholder="half of the free memory",
        help="VLLM_CPU_KVCACHE_SPACE: how much memory the KV cache gets. Empty: half of what is free now, or what the "
        "weights leave, in whole GiB.",
    )
    return None if gib is None else int(gib) * GIB


def _weights(subject: Subject) -> int | None:
    known = subject.weights.total_bytes
    gib = st.number_input(
        "Weights (GiB), all of them",
        0.0,
        4096.0,
        None if known is None else round(known / GIB, 2),
        0.5,
        key=f"capacity_weights_{subject.model}_{known}",
        placeholder="not known",
        help=f"From {subject.weights.words.replace('_', ' ')}." if known is not None else "Give their size.",
    )
    if gib is None:
        return None
    return known if known is not None and gib == round(known / GIB, 2) else int(gib * GIB)


def _formats(subject: Subject) -> list[str]:
    """What this attention takes; without "auto" where the checkpoint brings a format that vLLM would choose then."""
    shape = subject.shape
    if shape.latent:
        formats = [AUTO, "fp8", *(PACKED_LATENT_BYTES if shape.head_size == PACKED_LATENT_SIZE else ())]
    else:
        formats = [AUTO, "fp8", *SCALED_ENTRY_BYTES]
    return [name for name in formats if name != AUTO or subject.own_kv_format is None] + (
        [] if subject.own_kv_format is None else ["bfloat16"]
    )


def _format_key(subject: Subject) -> str:
    latent, own = ("_latent" if subject.shape.latent else ""), ("" if subject.own_kv_format is None else "_own")
    return f"capacity_format{latent}{own}"


def _in_flight(question: Question) -> Question:
    """Layers with a sliding window also hold what is being computed."""
    batched = st.number_input(
        "Tokens in one step (max_num_batched_tokens)",
        1,
        1_000_000,
        None,
        key="capacity_batched",
        placeholder="vLLM's default for the card",
        help="A sliding window keeps the window and what may be in flight: two steps on a GPU, one on a CPU.",
    )
    return question if batched is None else replace(question, max_num_batched_tokens=int(batched))
