"""What measuring costs and how true it is: our load test, vLLM's ``bench serve`` and guidellm on the same work in turn.

    python -m benchmarks.client_cost                      fake servers with known timings, 20, 200 and 1,000 streams
    python -m benchmarks.client_cost --real               the real vLLM as well (20 users)
    python -m benchmarks.client_cost --streams 20 --clients ours,vllm_bench --sdk

Fake: what each client reports against what the server really sent (medians of TTFT and TPOT, tokens/s), and its CPU
time per token. Real: the throughput that each reports on one server, one after another, ``--rounds`` times. guidellm
is installed into a virtual environment of its own; where that can't be done it is left out, with the reason.
``--sdk`` adds what our client and the OpenAI SDK cost per token in one process (``benchmarks.sdk_cost``). One JSON
document on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import load_clients, sdk_cost
from benchmarks.load_clients import CLIENTS, Failed, Work
from engine.config import Endpoint, ServerConfig, Settings
from engine.models import prepare
from engine.services import open_lab

# Streams → (gap between tokens in ms, tokens, rounds): about 2,000 tokens/s in all, which the fake server and any
# client can do on one core each. The first token comes after 200 ms and up to one gap more.
FAKE_WORK = {20: (10.0, 200, 3), 200: (100.0, 50, 3), 1000: (500.0, 24, 2)}
FAKE_TTFT_MS = 200.0
REAL_USERS, REAL_REQUESTS, REAL_TOKENS = 20, 60, 50
TARGET_STREAMS, TARGET_SHARE, TARGET_MS, TARGET_CPU_MS = 200, 0.02, 2.0, 0.12


class TimedServer:
    """The fake server in a process of its own, which can say what it really sent."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", "fake-model")

    def truth(self, requests: int) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"report {requests}\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def timed_server(tokens: int, gap_ms: float, ttft_ms: float = FAKE_TTFT_MS) -> Iterator[TimedServer]:
    """Ends with its standard input."""
    command = [sys.executable, "-m", "benchmarks.timed_server", "--tokens", str(tokens)]
    command += ["--gap-ms", str(gap_ms), "--spread-ms", str(gap_ms), "--ttft-ms", str(ttft_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield TimedServer(process, int(process.stdout.readline()))
        finally:
            process.stdin.close()
            process.wait(10)


def fake_report(clients: Sequence[str], streams: int, tokenizer: Path) -> dict[str, Any]:
    """Every client in turn on a server of its own with the same timings."""
    gap_ms, tokens, rounds = FAKE_WORK[streams]
    found: dict[str, Any] = {}
    for name in clients:
        with timed_server(tokens, gap_ms) as server:
            work = Work(server.endpoint, tokenizer, streams, streams * rounds, tokens)
            try:
                reported, curve = load_clients.run(name, work)
            except Failed as failure:
                found[name] = {"left_out": str(failure)}
                continue
            found[name] = _against_truth(asdict(reported), server.truth(work.requests), curve)
    return {"streams": streams, "gap_ms": gap_ms, "tokens": tokens, "clients": found} | _verdict(streams, found)


def _against_truth(reported: dict[str, Any], true: dict[str, Any], curve: load_clients.CpuCurve) -> dict[str, Any]:
    cpu_s = curve.between(true["began_s"], true["ended_s"])
    errors = {
        f"{name}_error_ms": reported[name] - true[name] if reported[name] is not None else None
        for name in ("ttft_p50_ms", "tpot_p50_ms")
    }
    true_tok_s = true["tokens"] / (true["ended_s"] - true["began_s"])
    return {
        "reported": reported,
        "true": {
            "ttft_p50_ms": true["ttft_p50_ms"],
            "tpot_p50_ms": true["tpot_p50_ms"],
            "throughput_tok_s": true_tok_s,
        },
        "requests_seen_by_server": true["requests"],
        **errors,
        "cpu_ms_per_token": cpu_s * 1000 / true["tokens"] if cpu_s is not None else None,
    }


def _verdict(streams: int, found: dict[str, Any]) -> dict[str, Any]:
    """Whether ours is true enough (at 200 streams) and the cheapest; None where that can't be said."""
    mine, costs = found.get("ours", {}), {name: one.get("cpu_ms_per_token") for name, one in found.items()}
    if "reported" not in mine:
        return {"true_enough": None, "cheapest": None}
    close = [
        abs(mine[f"{name}_error_ms"]) <= max(TARGET_MS, TARGET_SHARE * mine["true"][name])
        for name in ("ttft_p50_ms", "tpot_p50_ms")
    ]
    known = {name: cost for name, cost in costs.items() if cost is not None}
    return {
        "true_enough": all(close) if streams == TARGET_STREAMS else None,
        "cheapest": min(known, key=known.__getitem__) if known else None,
        "below_target_cpu": (costs["ours"] or 0) < TARGET_CPU_MS,
    }


def real_report(clients: Sequence[str], tokenizer: Path, rounds: int) -> dict[str, Any]:
    """The clients take turns on one real server; the order is turned round with every round."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in clients}
    left_out: dict[str, str] = {}
    with real_server() as endpoint:
        work = Work(endpoint, tokenizer, REAL_USERS, REAL_REQUESTS, REAL_TOKENS)
        for number in range(rounds):
            work = replace(work, seed=number + 1)
            for name in clients if number % 2 == 0 else reversed(clients):
                try:
                    found[name].append(asdict(load_clients.run(name, work)[0]))
                    _say(f"{name}: {found[name][-1]}")
                except Failed as failure:
                    left_out[name] = str(failure)
    speeds = {name: _middle(one["throughput_tok_s"] for one in every) for name, every in found.items()}
    ratios = _ratios(found.get("ours", []), found.get("vllm_bench", []))
    return {
        "users": REAL_USERS,
        "requests": REAL_REQUESTS,
        "tokens": REAL_TOKENS,
        "throughput_tok_s": speeds,
        "ours_over_vllm_bench": ratios and {"median": median(ratios), "low": min(ratios), "high": max(ratios)},
        "ours_at_least_vllm_bench": median(ratios) >= 1 if ratios else None,
        "runs": found,
        "left_out": left_out,
    }


@contextmanager
def real_server() -> Iterator[Endpoint]:
    """vLLM with the bundled model in a data folder of its own, which shares the prepared model."""
    with tempfile.TemporaryDirectory() as folder:
        models = Settings.from_env().models_dir
        if models.is_dir():
            (Path(folder) / "models").symlink_to(models)
        services = open_lab(Settings.from_env(os.environ | {"LAB_DATA_DIR": folder, "LAB_AUTOSTART": "0"}))
        try:
            services.supervisor.start(ServerConfig())
            services.supervisor.wait_ready()
            yield services.supervisor.endpoint()
        finally:
            services.close()


def _ratios(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> list[float]:
    """Round by round: a machine that gets slower or faster in between hits both alike."""
    pairs = zip(ours, theirs, strict=False)
    return [mine["throughput_tok_s"] / other["throughput_tok_s"] for mine, other in pairs]


def _middle(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="20,200,1000", help=f"some of {','.join(map(str, FAKE_WORK))}, or none")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sdk", action="store_true")
    args = parser.parse_args()
    clients = args.clients.split(",")
    tokenizer = prepare(ServerConfig().model, Settings.from_env(), _say).path
    result: dict[str, Any] = {"fake": []}
    for streams in [int(word) for word in args.streams.split(",") if word.strip().isdecimal()]:
        _say(f"fake server, {streams} streams")
        result["fake"].append(fake_report(clients, streams, tokenizer))
    if args.real:
        _say("real vLLM")
        result["real"] = real_report(clients, tokenizer, args.rounds)
    if args.sdk:
        _say("our client and the SDK")
        result["sdk"] = sdk_cost.fake_report()
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
