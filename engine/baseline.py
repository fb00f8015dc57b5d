"""The Hugging Face baseline, seen from the app: a child process that runs ``generate()``.

The app itself never imports torch. The child leads a process group of its own, ends with its input
(so also when the app dies in any way), and gets the same threads and OpenMP runtime as vLLM.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from engine.config import PROJECT_ROOT, Device
from engine.environment import Hardware
from engine.errors import BaselineError
from engine.metrics import RequestTrace
from engine.server.command import COMMON_ENVIRONMENT, GPU_ENVIRONMENT, NOT_INHERITED, cpu_thread_environment
from engine.server.log import prune, tail
from engine.server.processes import openmp_files

CHILD_COMMAND = (sys.executable, "-m", "engine.baseline_child")
LOAD_TIMEOUT_S = 900.0
SILENCE_TIMEOUT_S = 600.0
END_TIMEOUT_S = 5.0
MEMORY_REMEDY = "Close other programs, choose a smaller model, or measure fewer users."

LOADED_FACTS = ("import_s", "weights_s", "weights_bytes", "dtype", "threads", "attention", "max_length")

OnText = Callable[[int, str, float], None]


@dataclass(frozen=True)
class Loaded:
    """A loaded model, as measured. ``load_s``: process start → weights ready; ``import_s`` and ``weights_s`` are parts.

    ``dtype`` is the weights' own (bfloat16, …), ``threads`` what torch uses, ``max_length`` tokens.
    """

    load_s: float
    import_s: float
    weights_s: float
    weights_bytes: int | None
    dtype: str
    threads: int | None
    attention: str | None
    max_length: int | None


@dataclass(frozen=True)
class Generated:
    """The answers to one call: a trace per prompt, times in seconds since the first ``generate()``.

    ``steps`` are forward passes. ``memory_bytes`` is the RAM that the process occupies after the last (PSS: pages
    shared with others count in part); ``peak_memory_bytes`` the most since it began, on a GPU of the GPU's memory.
    """

    traces: list[RequestTrace]
    wall_s: float
    steps: int
    memory_bytes: int | None
    peak_memory_bytes: int | None


def baseline_environment(hardware: Hardware, inherited: Mapping[str, str]) -> dict[str, str]:
    """The child's whole environment; on a CPU with vLLM's own thread settings."""
    env = {name: value for name, value in inherited.items() if not NOT_INHERITED.match(name)}
    env |= COMMON_ENVIRONMENT | {"PYTHONUNBUFFERED": "1"}
    if hardware.device == Device.CPU:
        return env | cpu_thread_environment(hardware) | {"CUDA_VISIBLE_DEVICES": ""}
    return env | GPU_ENVIRONMENT


class HfBaseline:
    """One child process with one model. Use as a context manager; ``kill`` may come from any thread.

    Every call raises BaselineError when the child fails, dies, or falls silent.
    """

    def __init__(
        self,
        model_path: Path,
        hardware: Hardware,
        logs_dir: Path,
        dtype: str = "bfloat16",
        command: Sequence[str] = CHILD_COMMAND,
    ) -> None:
        """Starts at once. ``command`` is another program that speaks the same lines, for tests."""
        logs_dir.mkdir(parents=True, exist_ok=True)
        prune(logs_dir, "hf-*.log")
        self.log_path = logs_dir / f"hf-{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 1_000_000:06d}.log"
        self._path, self._hardware, self._dtype = model_path, hardware, dtype
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._killed = False
        self._started_s = time.perf_counter()
        self._process = self._spawn(command)
        self._reader = threading.Thread(target=self._read, name="hf-baseline", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Also the number of its process group."""
        return self._process.pid

    def load(self) -> Loaded:
        """Import the libraries and load the weights."""
        threads = len(self._hardware.cpu_ids) if self._hardware.device == Device.CPU else None
        device = "cpu" if self._hardware.device == Device.CPU else "cuda:0"
        self._send(do="load", path=str(self._path), dtype=self._dtype, device=device, threads=threads)
        event = self._wait_for("loaded", LOAD_TIMEOUT_S)
        load_s = time.perf_counter() - self._started_s
        return Loaded(load_s=load_s, **{name: event[name] for name in LOADED_FACTS})

    def tokenize(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of messages in the model's chat template, with the reply's opening."""
        self._send(do="tokenize", messages=messages)
        return [int(token) for token in self._wait_for("ids", SILENCE_TIMEOUT_S)["ids"]]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        *,
        batch: bool = False,
        on_text: OnText | None = None,
    ) -> Generated:
        """Answer every prompt greedily with exactly ``new_tokens`` tokens.

        One after another, or as one static batch. ``on_text(call index, text, seconds since the start)``
        runs on the calling thread; a batch tells the text of its first row only.
        """
        self._send(do="generate", prompts=[list(prompt) for prompt in prompts], new_tokens=new_tokens, batch=batch)
        event = self._wait_for("generated", SILENCE_TIMEOUT_S, on_text)
        traces = [
            _trace(answer, len(prompt), new_tokens) for answer, prompt in zip(event["answers"], prompts, strict=True)
        ]
        return Generated(traces, event["wall_s"], event["steps"], event["memory_bytes"], event["peak_memory_bytes"])

    def kill(self) -> None:
        """End the whole group at once; whoever waits for it gets a BaselineError."""
        self._killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the child and wait until it is gone. Safe to call twice."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_TIMEOUT_S)
        for file in openmp_files(self._process.pid):
            file.unlink(missing_ok=True)
        self._reader.join(END_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        try:
            with self.log_path.open("wb") as log:
                return subprocess.Popen(
                    list(command),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd=PROJECT_ROOT,
                    env=baseline_environment(self._hardware, os.environ),
                    start_new_session=True,
                )
        except OSError as error:
            raise BaselineError(f"The Hugging Face process can't be started: {error}.", "Run make setup.") from error

    def _send(self, **command: Any) -> None:
        assert self._process.stdin is not None
        # A child that is gone shows in the events, with a better reason than a broken pipe.
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self._process.stdout:
                self._events.put(json.loads(line))
        self._events.put(None)

    def _wait_for(self, wanted: str, timeout_s: float, on_text: OnText | None = None) -> dict[str, Any]:
        while True:
            try:
                event = self._events.get(timeout=timeout_s)
            except queue.Empty:
                self.kill()
                raise BaselineError(
                    f"The Hugging Face process said nothing for {timeout_s:.0f} s and was ended.", "Try again."
                ) from None
            if event is None:
                self._events.put(None)
                raise self._death()
            if event["event"] == wanted:
                return event
            if event["event"] == "error":
                raise _reported(event)
            if event["event"] == "token" and on_text is not None:
                on_text(event["index"], event["text"], event["t"])

    def _death(self) -> BaselineError:
        try:
            code = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        if self._killed:
            return BaselineError("The Hugging Face process was ended.", "Start the comparison again.")
        if code == -signal.SIGKILL:
            return BaselineError(
                "The Hugging Face process was killed (SIGKILL): by the system because memory ran out, or by someone.",
                MEMORY_REMEDY,
            )
        if code < 0:
            name = signal.Signals(-code).name
            return BaselineError(f"The Hugging Face process crashed with {name}.", f"See {self.log_path}.")
        last = next((line.strip() for line in reversed(tail(self.log_path, 20)) if line.strip()), "no message")
        return BaselineError(f"The Hugging Face process ended with code {code}: {last}", f"See {self.log_path}.")


def _reported(event: Mapping[str, Any]) -> BaselineError:
    text = str(event.get("text", "")).strip()
    first = text.splitlines()[0] if text else "no message"
    if event.get("kind") == "memory":
        return BaselineError(f"Hugging Face ran out of memory: {first}", MEMORY_REMEDY)
    if event.get("kind") == "packages":
        return BaselineError(f"The Hugging Face packages can't be imported: {first}", "Run make setup.")
    return BaselineError(f"Hugging Face can't run this model: {first}", "Choose another model, or measure vLLM alone.")


def _trace(answer: Mapping[str, Any], prompt_tokens: int, expected: int) -> RequestTrace:
    """One answer as the same kind of trace as a request to vLLM."""
    return RequestTrace(
        sent_s=answer["sent_s"],
        chunk_times_s=tuple(answer["times_s"]),
        chunk_texts=tuple(answer["pieces"]),
        prompt_tokens=prompt_tokens,
        output_tokens=answer["output_tokens"],
        finish_reason="length",
        expected_tokens=expected,
        finish_s=answer["times_s"][-1],
    )
