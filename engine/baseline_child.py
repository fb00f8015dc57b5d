"""``python -m engine.baseline_child``: Hugging Face ``generate()`` in a process of its own.

One JSON object per line: commands on standard input, events on standard output. What libraries print
goes to standard error instead. The process ends when its input does, so it never outlives the app.

====================================================== =====================================================
command                                                events
====================================================== =====================================================
``{"do": "load", "path", "dtype", "device", "threads"}`` ``imported`` (import_s), ``loaded`` (weights_s, dtype, …)
``{"do": "tokenize", "messages": […]}``                ``ids`` (ids)
``{"do": "generate", "prompts": [[id…]…],              ``token`` (index, t, text) while it runs,
"new_tokens", "batch"}``                               ``generated`` (wall_s, steps, answers, …)
====================================================== =====================================================

Anything that goes wrong is an event ``error`` (kind: memory, packages, other; text). Times are seconds.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from engine.server.processes import proportional_bytes

Emit = Callable[..., None]
MEMORY_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")


class Detokenizer:
    """Token by token → the text each one adds; a character that is not complete yet comes later."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._before = 0
        self._read = 0

    def add(self, token: int) -> str:
        self._ids.append(token)
        known = self._decode(self._ids[self._before : self._read])
        longer = self._decode(self._ids[self._before :])
        if len(longer) <= len(known) or longer.endswith("\ufffd"):
            return ""
        self._before, self._read = self._read, len(self._ids)
        return longer[len(known) :]

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


class TokenClock:
    """The streamer given to ``generate()``: notes when each token came, and tells about the first row's text.

    ``put`` gets the prompt first, then one token of every row per step.
    """

    def __init__(self, tokenizer: Any, started_s: float, index: int, emit: Emit) -> None:
        self.times_s: list[float] = []
        self.pieces: list[str] = []
        self._started_s = started_s
        self._index = index
        self._emit = emit
        self._text = Detokenizer(tokenizer)
        self._prompt_seen = False

    def put(self, tokens: Any) -> None:
        now_s = time.perf_counter() - self._started_s
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        piece = self._text.add(int(tokens.reshape(-1)[0]))
        self.times_s.append(now_s)
        self.pieces.append(piece)
        self._emit("token", index=self._index, t=now_s, text=piece)

    def end(self) -> None:
        """Part of the streamer's interface; ``generate()`` calls it after the last token."""


class Baseline:
    """The model and what it is asked to do. ``emit`` sends one event."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._torch: Any = None
        self._model: Any = None
        self._tokenizer: Any = None
        self._device = "cpu"

    def load(self, path: str, dtype: str, device: str, threads: int | None) -> None:
        started_s = time.perf_counter()
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if threads:
            torch.set_num_threads(threads)
        imported_s = time.perf_counter()
        self._emit("imported", import_s=imported_s - started_s)
        self._torch, self._device = torch, device
        # Never a question on standard input, which is where the commands come from.
        self._tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), use_safetensors=True, trust_remote_code=False
        )
        self._model = model.to(device).eval()
        self._wait_for_device()
        self._emit(
            "loaded",
            import_s=imported_s - started_s,
            weights_s=time.perf_counter() - imported_s,
            weights_bytes=sum(p.numel() * p.element_size() for p in self._model.parameters()),
            dtype=str(next(self._model.parameters()).dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
            attention=getattr(self._model.config, "_attn_implementation", None),
            max_length=getattr(self._model.config, "max_position_embeddings", None),
        )

    def tokenize(self, messages: list[dict[str, str]]) -> None:
        """With the model's chat template; plain text for a base model that has none."""
        if self._tokenizer.chat_template is None:
            ids = self._tokenizer("\n".join(message["content"] for message in messages))["input_ids"]
        else:
            ids = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
            ids = ids["input_ids"]
        self._emit("ids", ids=[int(token) for token in ids])

    def generate(self, prompts: list[list[int]], new_tokens: int, batch: bool) -> None:
        """All prompts in one static batch, or one after another. The clock starts with the first call."""
        config = self._generation_config(new_tokens)
        groups = [prompts] if batch else [[prompt] for prompt in prompts]
        answers: list[dict[str, Any]] = []
        started_s = time.perf_counter()
        for index, group in enumerate(groups):
            sent_s = time.perf_counter() - started_s
            clock = TokenClock(self._tokenizer, started_s, index, self._emit)
            rows, width = self._call(group, config, clock)
            answers.append(_answer(sent_s, clock, new=rows.shape[1] - width))
            answers += [_answer(sent_s, clock, new=rows.shape[1] - width, text=False) for _ in group[1:]]
        self._emit(
            "generated",
            wall_s=time.perf_counter() - started_s,
            steps=sum(answer["output_tokens"] for answer in answers[:: len(groups[0])]),
            answers=answers,
            memory_bytes=proportional_bytes([os.getpid()]),
            peak_memory_bytes=self._peak_memory_bytes(),
        )

    def _call(self, prompts: list[list[int]], config: Any, clock: TokenClock) -> tuple[Any, int]:
        """Left padding, because the answer continues at the right end; returns the rows and the prompt width."""
        torch, width = self._torch, max(map(len, prompts))
        pad = config.pad_token_id
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts], device=self._device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self._device)
        with torch.inference_mode():
            rows = self._model.generate(input_ids=ids, attention_mask=mask, generation_config=config, streamer=clock)
        self._wait_for_device()
        return rows, width

    def _generation_config(self, new_tokens: int) -> Any:
        """The model's own settings, but greedy and of a forced length."""
        config = copy.deepcopy(self._model.generation_config)
        config.do_sample, config.num_beams, config.use_cache = False, 1, True
        config.temperature = config.top_p = config.top_k = None
        config.max_length = None
        config.min_new_tokens = config.max_new_tokens = new_tokens
        if config.pad_token_id is None:
            config.pad_token_id = self._tokenizer.pad_token_id or self._tokenizer.eos_token_id or 0
        return config

    def _wait_for_device(self) -> None:
        if self._device.startswith("cuda"):
            self._torch.cuda.synchronize()

    def _peak_memory_bytes(self) -> int | None:
        if self._device.startswith("cuda"):
            return int(self._torch.cuda.max_memory_allocated())
        return _peak_resident_bytes()


def _peak_resident_bytes() -> int | None:
    """The most RAM that this process ever had resident; None where the kernel doesn't tell.

    VmHWM, because ``ru_maxrss`` may still hold the size of the process that started this one.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def _answer(sent_s: float, clock: TokenClock, new: int, text: bool = True) -> dict[str, Any]:
    pieces = clock.pieces if text else [""] * len(clock.pieces)
    return {"sent_s": sent_s, "times_s": clock.times_s, "pieces": pieces, "output_tokens": new}


def _kind(error: BaseException) -> str:
    if isinstance(error, MemoryError) or any(word in str(error).lower() for word in MEMORY_WORDS):
        return "memory"
    return "packages" if isinstance(error, ImportError) else "other"


def _commands(source: BinaryIO) -> queue.Queue[dict[str, Any]]:
    """Read ahead on a thread: the end of input must end the process in the middle of a command too."""
    commands: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in source:
            commands.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return commands


def serve(baseline: Baseline, commands: queue.Queue[dict[str, Any]], emit: Emit) -> None:
    """Carry out commands until the input ends."""
    actions: dict[str, Callable[..., None]] = {
        "load": baseline.load,
        "tokenize": baseline.tokenize,
        "generate": baseline.generate,
    }
    while True:
        command = commands.get()
        try:
            actions[command.pop("do")](**command)
        except Exception as error:
            emit("error", kind=_kind(error), text=f"{type(error).__name__}: {error}")


def main() -> None:
    events = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def emit(event: str, **values: Any) -> None:
        events.write(json.dumps({"event": event, **values}).encode() + b"\n")

    serve(Baseline(emit), _commands(sys.stdin.buffer), emit)


if __name__ == "__main__":
    main()
