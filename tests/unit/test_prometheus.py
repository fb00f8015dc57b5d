"""Reading /metrics: vLLM's names old and new, and servers that have none."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Endpoint
from engine.errors import ServerNotReady
from engine.telemetry.prometheus import ServerMetrics, parse, scrape
from tests.fake_openai import FakeOpenAI

L = '{engine="0",model_name="m"}'
NEW = (
    f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{L} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{L} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="capacity"}} 9.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{L} 0.25
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{L} 100.0
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{L} 1.79e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{L} 64.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{L} 0.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{L} 120.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{L} 1.234567e+06
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{{engine="0",le="1.0",model_name="m"}} 40.0
vllm:iteration_tokens_total_bucket{{engine="0",le="+Inf",model_name="m"}} 50.0
vllm:iteration_tokens_total_count{L} 50.0
vllm:iteration_tokens_total_sum{L} 300.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="32",cache_dtype="auto",engine="0",kv_cache_max_concurrency="7.5","""
    """kv_cache_size_tokens="15360",num_cpu_blocks="None",num_gpu_blocks="480"} 1.0
"""
)
READ = ServerMetrics(
    running=3,
    waiting=2,
    kv_cache_usage=0.25,
    prefix_queries=100,
    prefix_hits=64,
    prompt_tokens=120,
    generation_tokens=1_234_567,
    preemptions=0,
    iterations=50,
    block_size=32,
    num_blocks=480,
    kv_tokens=15360,
    max_concurrency=7.5,
    engine="vllm",
)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        yield fake


def test_every_field() -> None:
    assert parse(NEW) == READ


def test_older_names() -> None:
    old = NEW.replace("kv_cache_usage_perc", "gpu_cache_usage_perc").replace(
        "vllm:prefix_cache", "vllm:gpu_prefix_cache"
    )
    assert parse(old) == READ


def test_the_newer_name_wins_where_both_are() -> None:
    assert parse(NEW + f"vllm:gpu_cache_usage_perc{L} 0.75\n").kv_cache_usage == 0.25


def test_several_engines() -> None:
    second = NEW.replace('engine="0"', 'engine="1"').replace("0.25", "0.75")
    both = parse(NEW + second)
    assert (both.running, both.generation_tokens, both.iterations) == (6, 2_469_134, 100)
    assert both.kv_cache_usage == 0.5
    assert (both.num_blocks, both.kv_tokens) == (480, 15360)


def test_what_the_server_does_not_know_is_none() -> None:
    config = 'vllm:cache_config_info{block_size="32",num_gpu_blocks="None",kv_cache_max_concurrency="nan"} 1.0\n'
    metrics = parse(config + f"vllm:kv_cache_usage_perc{L} NaN\n")
    assert metrics == ServerMetrics(block_size=32)


@pytest.mark.parametrize(
    "text", ["", "<html>hello</html>", '{"error": "x"}', "vllm:num_requests_running{ 3\n", "\x00\n"]
)
def test_other_texts_have_no_metrics(text: str) -> None:
    assert parse(text) == ServerMetrics()


def test_one_broken_line_does_not_hide_the_rest() -> None:
    assert parse(NEW + "vllm:num_preemptions_total{engine= x\n").running == 3


@given(st.text())
def test_no_line_can_break_it(rest: str) -> None:
    assert parse(f"vllm:num_requests_running{rest}\n" + NEW).waiting == 2


@pytest.mark.parametrize("value", ["1e308", "-1e308", "nan", "inf", "1e20"])
def test_a_number_that_can_not_be_counts_as_unknown(value: str) -> None:
    text = "".join(
        f"vllm:{name} {value}\nvllm:{name} {value}\n" for name in ("num_requests_running", "kv_cache_usage_perc")
    )
    assert parse(f'{text}vllm:cache_config_info{{num_gpu_blocks="{value}"}} 1.0\n') == ServerMetrics()


@pytest.mark.parametrize("share", ["-0.1", "1.1", "700"])
def test_a_cache_is_never_fuller_than_full(share: str) -> None:
    assert parse(f"vllm:kv_cache_usage_perc {share}\n").kv_cache_usage is None


def test_two_engines_in_one_text_are_not_mixed() -> None:
    found = parse("sglang:num_running_reqs 1.0\nllamacpp:requests_processing 2\n")
    assert found == ServerMetrics(running=1, engine="sglang")
    assert parse("other:num_requests 1.0\n") == ServerMetrics()


def test_scrape(server: FakeOpenAI) -> None:
    server.metrics_text = NEW
    assert scrape(server.endpoint()) == READ


def test_a_server_without_metrics(server: FakeOpenAI) -> None:
    server.metrics_text = None
    assert scrape(server.endpoint()) == ServerMetrics()


def test_a_flood_is_given_up(server: FakeOpenAI) -> None:
    server.metrics_text = NEW + "# x\n" * 3_000_000
    assert scrape(server.endpoint(), timeout_s=20) == ServerMetrics()


def test_nobody_listens_or_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        endpoint = Endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "m")
        with pytest.raises(ServerNotReady):
            scrape(endpoint)
        silent.listen()
        with pytest.raises(ServerNotReady, match=r"within 0\.3 s"):
            scrape(endpoint, timeout_s=0.3)


def test_hit_rate_between_two_scrapes() -> None:
    before = ServerMetrics(prefix_queries=100, prefix_hits=10)
    assert ServerMetrics(prefix_queries=200, prefix_hits=60).prefix_hit_rate_since(before) == 0.5
    assert before.prefix_hit_rate_since(before) is None
    assert ServerMetrics().prefix_hit_rate_since(before) is None
    assert ServerMetrics(prefix_queries=200, prefix_hits=0).prefix_hit_rate_since(before) is None  # restarted
