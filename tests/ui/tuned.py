"""Studies at every moment, for the tests of the tuning page and for its pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.config import LoadTestConfig, ServerConfig
from engine.server.state import KvCapacity
from engine.tuning.explain import difference
from engine.tuning.prediction import Prediction
from engine.tuning.study import (
    SHORT_LOAD,
    Recommendation,
    Sampler,
    Study,
    StudyConfig,
    StudyKind,
    StudyState,
    Trial,
    TrialState,
    TuneSnapshot,
)
from tests.tuned import level, spread, trial

BASE = ServerConfig()
GIB = 1024**3
PREDICTED = Prediction(
    config=BASE,
    exact=True,
    memory_words="every request at full length, within half of the free RAM",
    kv_bytes=2 * GIB,
    kv_bytes_per_token=23_040,
    block_size=128,
    block_bytes=2_949_120,
    num_blocks=728,
    tokens=93_184,
    max_concurrency=45.5,
    max_model_len=2048,
    max_num_batched_tokens=2048,
    dtype="bfloat16",
    eager=True,
    warm_up_words="Eager: no compiling and no graphs at the start.",
    phases_s={"import": 11.0, "weights": 6.0, "kv_cache": 1.5, "warm_up": 4.0, "ready": 2.0},
    command="VLLM_CPU_KVCACHE_SPACE=2 python -m vllm.entrypoints.openai.api_server --max-num-seqs 8",
)
ACTUAL = KvCapacity(tokens=93_184, block_size=128, num_blocks=728, max_concurrency=45.5)
QUEUED = level(
    180.0, 1300.0, tpot_ms=spread(18.0), server_queue_ms=spread(900.0), server_waiting_peak=12, label="20 users"
)
FREE = level(310.0, 400.0, tpot_ms=spread(24.0), server_queue_ms=spread(0.4), server_waiting_peak=0, label="20 users")


def apply_study(state: StudyState = StudyState.DONE, *trials: Trial, **more: Any) -> Study:
    config = StudyConfig(StudyKind.APPLY, replace(BASE, max_num_seqs=8), candidates=({"max_num_seqs": 32},), **more)
    return Study("20261202-010203-000000-aa", "2026-12-02T01:02:03+00:00", state, config, trials)


BEFORE = trial(0, {}, QUEUED, label="as it was", measure_s=12.0, run_id="run-a")
AFTER = trial(
    1,
    {"max_num_seqs": 32},
    FREE,
    prediction=replace(PREDICTED, config=replace(BASE, max_num_seqs=32)),
    actual=ACTUAL,
    restart_s=26.4,
    measure_s=12.0,
    run_id="run-b",
)
APPLIED = TuneSnapshot(
    state=StudyState.DONE,
    study=apply_study(StudyState.DONE, BEFORE, AFTER),
    progress=1.0,
    previous=replace(BASE, max_num_seqs=8),
    difference=difference(QUEUED, FREE),
)
APPLYING = TuneSnapshot(
    state=StudyState.RUNNING,
    study=apply_study(StudyState.RUNNING, BEFORE, Trial(1, {"max_num_seqs": 32}, state=TrialState.RESTARTING)),
    message="max_num_seqs 32: Restarting the server",
    trial=1,
    progress=0.5,
    elapsed_s=21.0,
    left_s=38.0,
)
DIED = trial(
    1,
    {"max_num_seqs": 32},
    state=TrialState.FAILED,
    error="The KV cache is too small for one request of the full length.",
    remedy="Lower max_model_len.",
)
WENT_BACK = replace(
    APPLIED,
    study=apply_study(StudyState.DONE, BEFORE, DIED),
    difference=None,
    previous=None,
    went_back="The server did not run with max_num_seqs 32: the last good configuration runs again.",
)

SPACE: dict[str, tuple[Any, ...]] = {"max_num_seqs": (4, 8, 16, 32, 64), "enable_prefix_caching": (True, False)}
SPEEDS = ((4, 102.0, 2400.0), (8, 178.0, 1310.0), (16, 262.0, 720.0), (32, 308.0, 410.0), (64, 311.0, 455.0))


def searched(count: int = 8, state: StudyState = StudyState.DONE, load: LoadTestConfig = SHORT_LOAD) -> Study:
    trials = []
    for number in range(count):
        seqs, tok_s, ttft_ms = SPEEDS[number % len(SPEEDS)]
        cached = number < len(SPEEDS)
        measured = level(tok_s - 6 * (not cached), ttft_ms + 25 * (not cached), goodput_pct=80.0 if cached else 70.0)
        changes = {"max_num_seqs": seqs, "enable_prefix_caching": cached}
        trials.append(trial(number, changes, measured, prediction=PREDICTED, actual=ACTUAL, restart_s=25.0 + number))
    config = StudyConfig(StudyKind.SEARCH, BASE, load, space=SPACE, budget=10, sampler=Sampler.TPE)
    return Study("20261202-020304-000000-bb", "2026-12-02T02:03:04+00:00", state, config, tuple(trials))


RECOMMENDED = Recommendation(
    3,
    "For TTFT p95 ≤ 500 ms choose max_num_seqs 32, enable_prefix_caching on: 308 tok/s at TTFT p95 410 ms.",
    True,
    ServerConfig(max_num_seqs=32),
    "python -m vllm.entrypoints.openai.api_server --max-num-seqs 32",
    "# VLLM_CPU_KVCACHE_SPACE=2 vllm serve --config this-file.yaml\nmax-num-seqs: 32\n",
)
FOUND = TuneSnapshot(
    state=StudyState.DONE,
    study=searched(10, load=replace(SHORT_LOAD, slo_ttft_ms=500.0)),
    progress=1.0,
    elapsed_s=402.0,
    pareto=(3, 4),
    importance={"max_num_seqs": 0.94, "enable_prefix_caching": 0.06},
    recommendation=RECOMMENDED,
)
_PART = searched(4, StudyState.RUNNING)
SEARCHING = replace(
    FOUND,
    state=StudyState.RUNNING,
    study=replace(
        _PART,
        trials=(
            *_PART.trials,
            Trial(4, {"max_num_seqs": 64, "enable_prefix_caching": True}, state=TrialState.MEASURING),
        ),
    ),
    trial=4,
    message="max_num_seqs 64, enable_prefix_caching on: Measuring",
    progress=0.4,
    elapsed_s=160.0,
    left_s=240.0,
    importance={},
)
PAUSED = replace(SEARCHING, state=StudyState.PAUSED, study=searched(4, StudyState.PAUSED), message="4 of 10 tried")
