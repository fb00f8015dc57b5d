"""The workshop's load test on real vLLM: more users, more throughput; exact lengths; what the prefix cache does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from engine.config import LoadTestConfig, ServerConfig, Settings
from engine.load.results import LoadSnapshot, LoadState, RequestState
from engine.services import LabServices, open_lab
from tests.e2e.lab import data_folder

USERS = (1, 5, 10, 20)
TOKENS = 24


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServices]:
    folder = data_folder(tmp_path_factory.mktemp("lab") / "data")
    services = open_lab(Settings.from_env(os.environ | {"LAB_DATA_DIR": str(folder), "LAB_AUTOSTART": "0"}))
    services.supervisor.start(ServerConfig())
    services.supervisor.wait_ready()
    yield services
    services.close()


@pytest.fixture(scope="module")
def measured(lab: LabServices) -> LoadSnapshot:
    config = LoadTestConfig(users=USERS, prompt_tokens=48, max_tokens=TOKENS, slo_ttft_ms=60_000)
    return lab.load.run_blocking(config, None, progress=lambda _: None)


def numbers(snapshot: LoadSnapshot, name: str) -> list[Any]:
    return [getattr(level, name) for level in snapshot.levels]


def test_more_users_give_more_throughput(measured: LoadSnapshot) -> None:
    assert (measured.state, measured.error) == (LoadState.DONE, None)
    speeds = numbers(measured, "throughput_tok_s")
    assert all(after > before for before, after in pairwise(speeds)), speeds


def test_every_request_is_answered_and_every_token_counted(measured: LoadSnapshot) -> None:
    assert numbers(measured, "users") == list(USERS)
    assert numbers(measured, "requests_failed") == [0] * 4 and all(numbers(measured, "lengths_forced"))
    for level in measured.levels:
        assert level.output_tokens == TOKENS * level.requests_ok and level.prompt_tokens == 48 * level.requests_ok
        assert level.prefix_hits == 0 and level.prefix_queries == level.prompt_tokens
        assert level.server_queue_ms and level.ttft_ms and level.ttft_ms.p50 > level.server_queue_ms.p50
        assert level.preemptions == 0 and level.goodput_pct == 100
        assert level.client_cpu_pct is not None and level.client_cpu_pct < 80


def test_the_lanes_know_when_the_server_took_a_request_up(measured: LoadSnapshot) -> None:
    requests = [request for lane in measured.lanes for request in lane.requests]
    assert len(measured.lanes) == 20 and {request.state for request in requests} == {RequestState.DONE}
    for request in requests:
        assert request.prefill_s is not None and request.first_token_s is not None and request.end_s is not None
        assert request.start_s <= request.prefill_s <= request.first_token_s <= request.end_s


def test_one_prompt_for_all_is_found_in_the_prefix_cache(lab: LabServices, measured: LoadSnapshot) -> None:
    config = LoadTestConfig(users=(5,), requests=10, prompt_tokens=96, max_tokens=4, same_prompt=True)
    cached = lab.load.run_blocking(config, None, progress=lambda _: None)
    level = cached.levels[0]
    assert level.prefix_hit_pct is not None and level.prefix_hit_pct > 50
    assert "cache_warm" in {badge.code for badge in level.badges}


def test_an_open_loop_keeps_its_own_times(lab: LabServices, measured: LoadSnapshot) -> None:
    config = LoadTestConfig(profile="poisson", rates=(3.0,), requests=8, prompts="short", max_tokens=4)
    level = lab.load.run_blocking(config, None, progress=lambda _: None).levels[0]
    assert level.requests_ok == 8 and level.client_queue_ms is not None
    starts = [sample.start_s for sample in level.samples]
    assert starts == sorted(starts) and starts[-1] > 0.5


def test_the_run_is_saved(lab: LabServices, measured: LoadSnapshot) -> None:
    run = lab.store.get(measured.run_id or "")
    assert run is not None and (run.kind, run.status) == ("load", "done")
    assert "vllm" in run.command and run.model["model_id"]
