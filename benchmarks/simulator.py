"""What a simulation costs: seconds and memory for a trace under the four allocators, and how both grow with its length.

    python -m benchmarks.simulator --trace azure2023_conv.csv     (--memory-tokens, --max-model-len: else as it suits)

Each length (1×, 2×, 4× the trace, laid end to end) runs in a process of its own on one core; the recordings of the
animation are timed too. One JSON document on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from engine.config import SimulationConfig
from engine.errors import LabError
from engine.kv.presets import ANIMATIONS
from engine.kv.recording import record
from engine.kv.simulate import simulate
from engine.kv.traces import SAMPLE_TRACE, Row, fitting, read_trace

TARGET_S = 10.0
TARGET_MIB = 500.0
TARGET_RECORD_MS = 300.0
TARGET_GROWTH = 1.3
FACTORS = (1, 2, 4)


def measure(config: SimulationConfig) -> dict[str, Any]:
    """In this process: import excluded, reading the trace included."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    result = simulate(config)
    return {
        "requests": result.requests,
        "wall_s": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - began_cpu_s,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "allocators_wall_s": {name: values.wall_s for name, values in result.allocators.items()},
    }


def in_a_process(config: SimulationConfig) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.simulator", "--config", json.dumps(config.to_dict())]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def repeated(rows: list[Row], times: int, folder: Path) -> Path:
    """The trace laid end to end ``times`` times."""
    path = folder / f"{times}.csv"
    span_s = max(row.arrival or 0.0 for row in rows)
    with path.open("w") as out:
        out.write("arrival_s,input_tokens,output_tokens\n")
        for number in range(times):
            for row in rows:
                out.write(f"{(row.arrival or 0.0) + number * span_s},{row.prompt},{row.output}\n")
    return path


def recordings() -> dict[str, float]:
    """Median ms of five for each preset of the animation, encoding to JSON included."""
    spent: dict[str, float] = {}
    for name, known in ANIMATIONS.items():
        times = []
        for seed in range(5):
            began_s = time.perf_counter()
            json.dumps(record(replace(known.config, seed=seed)))
            times.append((time.perf_counter() - began_s) * 1000)
        spent[name] = median(times)
    return spent


def report(args: argparse.Namespace) -> dict[str, Any]:
    rows = read_trace(args.trace, timed=False)
    max_model_len, memory_tokens = fitting(rows)
    config = SimulationConfig(
        workload="trace",
        max_model_len=args.max_model_len or max_model_len,
        memory_tokens=args.memory_tokens or memory_tokens,
    )
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            factor: in_a_process(replace(config, trace=str(repeated(rows, factor, Path(folder))))) for factor in FACTORS
        }
    per_request = {factor: run["cpu_s"] / run["requests"] for factor, run in runs.items()}
    growth = per_request[FACTORS[-1]] / per_request[1]
    spent_ms = recordings()
    ok = runs[1]["cpu_s"] < TARGET_S and runs[1]["peak_mib"] < TARGET_MIB and growth < TARGET_GROWTH
    return {
        "config": config.to_dict(),
        "runs": {f"{factor}x": run for factor, run in runs.items()},
        "cpu_per_request_4x_over_1x": growth,
        "recordings_ms": spent_ms,
        "targets": {"cpu_s": TARGET_S, "peak_mib": TARGET_MIB, "growth": TARGET_GROWTH, "record_ms": TARGET_RECORD_MS},
        "ok": ok and max(spent_ms.values()) < TARGET_RECORD_MS,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default=str(SAMPLE_TRACE))
    parser.add_argument("--memory-tokens", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--config", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.config:
        values = json.loads(args.config)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(json.dumps(measure(SimulationConfig(**values | {"allocators": tuple(values["allocators"])}))))
        return 0
    try:
        result = report(args)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
