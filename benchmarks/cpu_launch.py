"""The lab's launch of vLLM on a CPU against vLLM's own defaults: output tokens per second with many users.

    python -m benchmarks.cpu_launch [--users 20] [--tokens 64] [--repeats 3] [--rounds 2]

The servers are started by the same supervisor, one after the other, serve the same weights and get the same prompts
(each with a number of its own) and forced lengths. A warm-up of the same shape is discarded; medians count. They take
turns, so that a machine that drifts shows as spread. ``eager`` is what the lab starts by itself, ``compiled`` what it
starts when the Server page is set to that. One JSON document on stdout.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from engine.client import CompletionRequest, run_concurrently
from engine.config import Endpoint, ServerConfig, Settings
from engine.environment import Hardware, collect
from engine.metrics import summarize
from engine.models import ModelSource, find_ready
from engine.server.command import Launch, build_launch
from engine.server.supervisor import Supervisor
from engine.store import RunStore
from engine.vllm_facts import MODULE

TARGET_RATIO = 1.4
KV_GIB = "2"  # as the lab sizes it for this model


def stock(
    config: ServerConfig, hardware: Hardware, source: ModelSource, *, port: int, api_key: str, **_: Any
) -> Launch:
    """vLLM as its documentation starts it: no flag but where to listen and what to serve.

    One variable is needed for it to start on every machine: it would take 92% of the RAM for itself.
    """
    argv = (sys.executable, "-m", MODULE, "--model", str(source.path), "--served-model-name", source.model_id)
    env = {"VLLM_API_KEY": api_key, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": KV_GIB}
    return Launch((*argv, "--host", "127.0.0.1", "--port", str(port)), env)


LAUNCHES: dict[str, tuple[Any, ServerConfig]] = {
    "stock": (stock, ServerConfig()),
    "eager": (build_launch, ServerConfig()),
    "compiled": (build_launch, ServerConfig(enforce_eager=False)),
}


def throughputs(endpoint: Endpoint, users: int, tokens: int, repeats: int) -> list[float]:
    """Output tokens per second of each repeat, the warm-up left out."""
    found = []
    for number in range(repeats + 1):
        prompts = [f"[{secrets.randbelow(10**7):07d}] Write a long story about a lighthouse." for _ in range(users)]
        requests = [CompletionRequest(prompt=prompt, max_tokens=tokens, ignore_eos=True) for prompt in prompts]
        summary = summarize(run_concurrently(endpoint, requests))
        if summary.requests_failed or summary.throughput_tok_s is None:
            raise SystemExit(f"{summary.requests_failed} of {users} requests failed.")
        if number:
            found.append(summary.throughput_tok_s)
    return found


def measure(settings: Settings, build: Any, config: ServerConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    supervisor = Supervisor(settings, RunStore(settings.database), build=build)
    try:
        supervisor.start(config)
        ready = supervisor.wait_ready()
        speeds = throughputs(supervisor.endpoint(), arguments.users, arguments.tokens, arguments.repeats)
        return {"command": ready.command, "ready_after_s": ready.ready_after_s, "throughput_tok_s": speeds}
    finally:
        supervisor.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    here = Settings.from_env()
    if find_ready(ServerConfig.model, here) is None:
        raise SystemExit("The model is not prepared: run make setup.")
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in LAUNCHES}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").symlink_to(here.models_dir)
        settings = Settings(Path(folder), hub_offline=True)
        for name, (build, config) in list(LAUNCHES.items()) * arguments.rounds:
            print(f"{name} …", file=sys.stderr, flush=True)
            rounds[name].append(measure(settings, build, config, arguments))
    medians = {
        name: median(speed for one in ones for speed in one["throughput_tok_s"]) for name, ones in rounds.items()
    }
    ratios = {name: value / medians["stock"] for name, value in medians.items()}
    answer = {
        "users": arguments.users,
        "tokens": arguments.tokens,
        "median_tok_s": medians,
        "ratios": ratios,
        "target_ratio": TARGET_RATIO,
        "ok": max(ratios.values()) >= TARGET_RATIO,
        "rounds": rounds,
        "environment": collect(here).to_dict(),
    }
    print(json.dumps(answer, indent=2))
    return 0 if answer["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
