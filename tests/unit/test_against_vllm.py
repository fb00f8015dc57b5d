"""The simulated scheduler against vLLM's own: the same requests, and in every step the same block tables."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config import PROJECT_ROOT
from engine.kv.paged import PagedMemory, PrefixCachedMemory
from engine.kv.scheduler import Scheduler
from engine.kv.stay import Grant, Stay
from engine.kv.workloads import Request

CASES = 80


class Tables:
    """An observer that keeps the block table of every running request, from the grants alone."""

    def __init__(self, memory: PagedMemory) -> None:
        self.memory = memory
        self.now: dict[str, list[int]] = {}
        self.steps: dict[int, dict[str, Any]] = {}

    def admitted(self, stay: Stay, grants: list[Grant]) -> None:
        self.now[str(stay.request.index)] = list(grants[0].units)

    def grew(self, stay: Stay, grants: list[Grant]) -> None:
        self.now[str(stay.request.index)] += grants[0].units

    def finished(self, stay: Stay) -> None:
        del self.now[str(stay.request.index)]

    def preempted(self, stay: Stay) -> None:
        del self.now[str(stay.request.index)]

    def waits(self, stay: Stay, reason: str) -> None: ...

    def rejected(self, request: Request) -> None:
        raise AssertionError(f"{request} should fit")

    def step_done(self, step: int) -> None:
        self.steps[step] = {
            "free": self.memory.pool.free_blocks,
            "tables": {name: list(table) for name, table in self.now.items()},
        }


def make_case(rng: random.Random) -> dict[str, Any]:
    """Few blocks, so that requests wait and are preempted; with caching, prefixes of whole blocks and others."""
    page, blocks, caching = rng.choice([1, 4, 16]), rng.randint(20, 80), rng.random() < 0.6
    slots = page * blocks
    requests: list[Request] = []
    arrival = 0
    for _ in range(rng.randint(3, 25)):
        arrival += rng.choice([0, 0, 1, 3, 10])
        shared = rng.choice([0, page * 2, page * 3 + 1]) if caching else 0
        prompt = rng.randint(1, slots // 3) + shared
        output = rng.randint(1, max(1, min(60, slots - prompt)))
        prefix = rng.randrange(2)
        requests.append(Request(len(requests), arrival, prompt, output, prefix=prefix, prefix_tokens=shared))
    return {
        "block_size": page,
        "blocks": blocks,
        "caching": caching,
        "max_num_seqs": rng.choice([4, 16]),
        "watermark": rng.choice([0.0, 0.0, 0.1]),
        "requests": [asdict(request) for request in requests],
    }


def simulated(case: dict[str, Any]) -> tuple[Scheduler, Tables]:
    kind = PrefixCachedMemory if case["caching"] else PagedMemory
    memory = kind(case["blocks"] * case["block_size"], case["block_size"], case["watermark"])
    tables = Tables(memory)
    scheduler = Scheduler(memory, case["max_num_seqs"], tables)
    scheduler.run([Request(**values) for values in case["requests"]])
    return scheduler, tables


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_every_step_has_the_block_tables_of_vllms_own_scheduler(tmp_path: Path) -> None:
    cases = [make_case(random.Random(seed)) for seed in range(CASES)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm_scheduler", str(tmp_path)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        cwd=PROJECT_ROOT,
        env=os.environ
        | {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    logs = json.loads(done.stdout.splitlines()[-1])
    assert sum(log[-1]["preempted"] for log in logs) > CASES
    for case, log in zip(cases, logs, strict=True):
        scheduler, tables = simulated(case)
        assert scheduler.timeline.last_step == len(log)
        series = scheduler.timeline.at(np.arange(len(log)))
        for step, theirs in enumerate(log):
            for count in ("running", "waiting", "preempted"):
                assert series[count][step] == theirs[count]
            if step in tables.steps:
                assert tables.steps[step] == {"free": theirs["free"], "tables": theirs["tables"]}
