"""What following a server's KV blocks costs it, and what the block size does: output tokens per second, many users.

    python -m benchmarks.kv_events [--users 20] [--tokens 64] [--repeats 5] [--rounds 2] [--block-sizes 128]

The same launch, one server after the other, without and with KV events that the lab reads as it always does; every
prompt has a number of its own, so nothing is found in the cache and every block is new. They take turns, so that a
machine that drifts shows as spread; the order turns round from round to round. Medians count. One JSON document on
stdout: ``ratios`` are against no events with the first block size.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cpu_launch import throughputs
from engine.config import ServerConfig, Settings
from engine.environment import collect
from engine.kv.live.follow import LiveBlocks
from engine.models import find_ready
from engine.server.supervisor import Supervisor
from engine.store import RunStore


def measure(settings: Settings, block_size: int, followed: bool, arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of every repeat, and what the feed saw."""
    blocks = LiveBlocks() if followed else None
    supervisor = Supervisor(settings, RunStore(settings.database), events=blocks)
    try:
        supervisor.start(ServerConfig(block_size=block_size))
        supervisor.wait_ready()
        speeds = throughputs(supervisor.endpoint(), arguments.users, arguments.tokens, arguments.repeats)
        seen = blocks.cache(lambda key: None, 1) if blocks else None
        feed = {"stored": seen.stored, **asdict(seen.counts)} if seen else None
        return {"throughput_tok_s": speeds, "feed": feed}
    finally:
        supervisor.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--block-sizes", default="128")
    arguments = parser.parse_args()
    sizes = [int(word) for word in arguments.block_sizes.split(",")]
    here = Settings.from_env()
    if find_ready(ServerConfig.model, here) is None:
        raise SystemExit("The model is not prepared: run make setup.")
    launches = [(size, followed) for size in sizes for followed in (False, True)]
    rounds: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").symlink_to(here.models_dir)
        settings = Settings(Path(folder), hub_offline=True)
        for number in range(arguments.rounds):
            for size, followed in launches[:: -1 if number % 2 else 1]:
                name = f"block {size}, {'events' if followed else 'no events'}"
                print(f"{name} …", file=sys.stderr, flush=True)
                rounds.setdefault(name, []).append(measure(settings, size, followed, arguments))
    medians = {name: median(one for run in runs for one in run["throughput_tok_s"]) for name, runs in rounds.items()}
    first = medians[f"block {sizes[0]}, no events"]
    answer = {
        "users": arguments.users,
        "tokens": arguments.tokens,
        "median_tok_s": medians,
        "ratios": {name: value / first for name, value in medians.items()},
        "rounds": rounds,
        "environment": collect(here).to_dict(),
    }
    print(json.dumps(answer, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
