"""The app's side of the Hugging Face baseline: a child process that loads the model and generates.

It gets the same threads and the same OpenMP runtime as vLLM, so that the comparison is of engines.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from engine.config import PROJECT_ROOT, Device
from engine.environment import Hardware
from engine.errors import BaselineError
from engine.metrics import RequestTrace
from engine.server.command import BF16_CAPABILITY, NOT_INHERITED, cpu_thread_environment

OnPiece = Callable[[float, str], None]
CHILD = (sys.executable, "-m", "engine.baseline_child")


@dataclass(frozen=True)
class Generated:
    """``trace`` stands for one row of the batch; ``output_tokens`` counts all rows. Memory in bytes."""

    trace: RequestTrace
    output_tokens: int
    generate_s: float
    peak_memory_bytes: int | None


class HfBaseline:
    """One child process; use as a context manager. ``cancel`` set from any thread ends it."""

    def __init__(self, hardware: Hardware, log_path: Path, command: Sequence[str] = CHILD) -> None:
        self._began = time.perf_counter()
        self._hardware = hardware
        inherited = {name: value for name, value in os.environ.items() if not NOT_INHERITED.match(name)}
        env = inherited | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        if hardware.device == Device.CPU:
            env |= cpu_thread_environment(hardware) | {"CUDA_VISIBLE_DEVICES": ""}
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                cwd=PROJECT_ROOT,
                text=True,
                start_new_session=True,
            )
        self._lock = threading.Lock()
        self._log_path = log_path
        self.load_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, path: Path) -> None:
        """Import, load, and remember in ``load_s`` how long it took since the process was started."""
        self._order(
            do="load",
            path=str(path),
            dtype=hf_dtype(self._hardware),
            device="cuda" if self._hardware.device == Device.CUDA else "cpu",
            threads=len(self._hardware.cpu_ids),
        )
        self._await("loaded", None)
        self.load_s = time.perf_counter() - self._began

    def generate(self, prompts: Sequence[list[int]], new_tokens: int, on_piece: OnPiece | None = None) -> Generated:
        """Generate exactly ``new_tokens`` for every prompt, as one static batch when there are several."""
        self._order(do="generate", prompts=list(prompts), new_tokens=new_tokens)
        event = self._await("generated", on_piece)
        times = [float(t) for t in event["step_times_s"]]
        trace = RequestTrace(
            sent_s=0.0,
            chunk_times_s=tuple(times),
            chunk_texts=("",) * len(times),
            prompt_tokens=len(prompts[0]),
            output_tokens=event["output_tokens"] // len(prompts),
            finish_reason="length",
            expected_tokens=new_tokens,
        )
        return Generated(trace, event["output_tokens"], times[-1], event["peak_memory_bytes"])

    def close(self) -> None:
        """End the child and whatever it started."""
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if self._child.poll() is None:
                os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def _order(self, **order: Any) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(order) + "\n")
            self._child.stdin.flush()
        except (OSError, ValueError) as error:
            raise self._died() from error

    def _await(self, wanted: str, on_piece: OnPiece | None) -> dict[str, Any]:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == wanted:
                return event
            if event["event"] == "error":
                raise BaselineError(f"Hugging Face generate() failed: {event['message']}.", f"Log: {self._log_path}")
            if on_piece is not None and event["event"] == "token":
                on_piece(event["t_s"], event["text"])
        raise self._died()

    def _died(self) -> BaselineError:
        code = self._child.wait()
        if code == -signal.SIGKILL:
            return BaselineError(
                "The Hugging Face process was killed: by Cancel, or for want of memory.",
                "Choose a smaller model or free memory.",
            )
        return BaselineError(f"The Hugging Face process ended with code {code}.", f"Log: {self._log_path}")


def hf_dtype(hardware: Hardware) -> str:
    """bfloat16, or float16 below compute capability 8.0: what the server uses too."""
    capabilities = [gpu.compute_capability for gpu in hardware.gpus if gpu.compute_capability]
    old = hardware.device == Device.CUDA and bool(capabilities) and min(capabilities) < BF16_CAPABILITY
    return "float16" if old else "bfloat16"
