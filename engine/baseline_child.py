"""The Hugging Face side of the comparison: ``generate()`` in a process of its own.

Orders come as JSON lines on standard input; answers go, one JSON object a line, to what was
standard output (libraries that print get standard error). End of input ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def tell(**event: Any) -> None:
        answers.write(json.dumps(event) + "\n")

    model: Baseline | None = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if order["do"] == "load":
                model = Baseline(order["path"], order["dtype"], order["device"], order["threads"])
                tell(event="loaded", import_s=model.import_s, weights_s=model.weights_s)
            elif model is not None:
                model.generate(order["prompts"], order["new_tokens"], tell)
        except Exception as error:
            tell(event="error", message=f"{type(error).__name__}: {error}")


class Baseline:
    """One loaded model."""

    def __init__(self, path: str, dtype: str, device: str, threads: int) -> None:
        began = time.perf_counter()
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.import_s = time.perf_counter() - began
        began = time.perf_counter()
        torch.set_num_threads(threads)
        self.torch, self.device = torch, device
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).to(device).eval()
        self.weights_s = time.perf_counter() - began

    def generate(self, prompts: list[list[int]], new_tokens: int, tell: Any) -> None:
        """Prompts of equal length as one batch, greedy, exactly ``new_tokens`` each; every step is timed."""
        torch = self.torch
        ids = torch.tensor(prompts, device=self.device)
        stopwatch = _Stopwatch(self.tokenizer, tell if len(prompts) == 1 else None)
        stopwatch.began = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=new_tokens,
                max_new_tokens=new_tokens,
                do_sample=False,
                use_cache=True,
                pad_token_id=self.tokenizer.eos_token_id,
                stopping_criteria=[stopwatch],
            )
        tell(
            event="generated",
            step_times_s=stopwatch.times,
            output_tokens=int(out.shape[1] - ids.shape[1]) * len(prompts),
            peak_memory_bytes=self._peak_memory(),
        )

    def _peak_memory(self) -> int:
        if self.device != "cpu":
            return int(self.torch.cuda.max_memory_allocated())
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Stopwatch:
    """Called by ``generate()`` after every step with all ids so far: notes the time, never stops it."""

    def __init__(self, tokenizer: Any, tell: Any) -> None:
        self.began = 0.0
        self.times: list[float] = []
        self._tokenizer, self._tell = tokenizer, tell

    def __call__(self, ids: Any, scores: Any, **_: Any) -> Any:
        last = ids[0, -1].item()
        self.times.append(time.perf_counter() - self.began)
        if self._tell is not None:
            self._tell(event="token", t_s=self.times[-1], text=self._tokenizer.decode([last]))
        return ids.new_zeros(ids.shape[0]).bool()


if __name__ == "__main__":
    main()
