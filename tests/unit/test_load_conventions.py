"""Our reading of vLLM's benchmark against that benchmark itself, on the same requests."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from engine.config import PROJECT_ROOT, LoadTestConfig
from engine.load.export import to_vllm_bench
from engine.load.levels import level_result
from engine.load.order import LevelOutcome, Sent
from engine.load.profiles import Level
from engine.load.results import LoadResults
from engine.load.watch import MetricsWatch
from engine.metrics import RequestTrace, Slo
from tests.fake_openai import MODEL, FakeOpenAI


def some_traces() -> list[RequestTrace]:
    """Of every kind: role-only first chunks, finish chunks of their own, several tokens a chunk, single tokens."""
    rng = random.Random(7)
    traces = []
    for number in range(40):
        sent_s = 100 + rng.random() * 8
        times = [sent_s + 0.05 + rng.random()]
        times += [times[0] + 0.01 * step + rng.random() * 0.004 for step in range(1, 1 + number % 12)]
        traces.append(
            RequestTrace(
                sent_s,
                tuple(times),
                prompt_tokens=rng.randint(1, 90),
                output_tokens=len(times) + number % 3,
                finish_reason="stop",
                finish_s=times[-1] + (0.002 if number % 5 == 0 else 0.0),
                first_choice_s=times[0] - (0.03 if number % 4 == 0 else 0.0),
                ended_s=times[-1] + 0.01,
            )
        )
    return traces


@pytest.mark.slow
def test_vllms_own_benchmark_finds_the_same_numbers() -> None:
    traces = some_traces()
    rows = []
    for trace in traces:
        chunks = sorted({trace.first_choice_s, *trace.chunk_times_s, trace.finish_s})
        rows.append([trace.sent_s, chunks, trace.ended_s, trace.prompt_tokens, trace.output_tokens])
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm_bench_metrics"],
        input=json.dumps(rows),
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
    )
    theirs = json.loads(done.stdout)
    with FakeOpenAI() as fake:
        outcome = LevelOutcome(tuple(Sent(i, 0, 0, trace) for i, trace in enumerate(traces)), 100.0, 0.1, 1.0)
        level = level_result(Level("40"), outcome, MetricsWatch(fake.endpoint()), Slo())
    ours = to_vllm_bench(LoadResults((level,)), LoadTestConfig(), MODEL)[0]
    assert set(theirs) <= set(ours)
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs, rel=1e-9)
