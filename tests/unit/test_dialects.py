"""Engine dialects: recorded and documented metrics of every engine, and which engine a server is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cli import main
from engine.config import Endpoint
from engine.dialects import UNKNOWN, by_key, detect, dialects
from engine.errors import ConfigError
from engine.telemetry.latencies import latencies_ms, quantile
from engine.telemetry.prometheus import ServerMetrics, parse, scrape

FOLDER = Path(__file__).parents[1] / "fixtures" / "metrics"
TEXTS = {path.stem: path.read_text() for path in FOLDER.glob("*.txt")}
INF = float("inf")


class Site:
    """A server of a few fixed answers, by path; everything else is a 404."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                answer = site.answers.get(self.path)
                body = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1"

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.base_url, "m")


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.server.shutdown()
    made.server.server_close()


def models(owner: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner}]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "vllm_old",
            ServerMetrics(
                running=3,
                waiting=1,
                kv_cache_usage=0.125,
                prompt_tokens=512,
                generation_tokens=2048,
                preemptions=2,
                engine="vllm",
            ),
        ),
        (
            "sglang",
            ServerMetrics(
                running=162,
                waiting=2826,
                kv_cache_usage=0.28,
                prompt_tokens=8_128_902,
                generation_tokens=7_557_572,
                preemptions=4,
                prefix_hit_rate=0.0075,
                engine="sglang",
            ),
        ),
        (
            "llamacpp",
            ServerMetrics(running=4, waiting=46, prompt_tokens=5061, generation_tokens=39080, engine="llamacpp"),
        ),
        (
            "llamacpp_recorded",
            ServerMetrics(running=0, waiting=0, prompt_tokens=31, generation_tokens=8, engine="llamacpp"),
        ),
        (
            "ray_vllm",
            ServerMetrics(running=5, kv_cache_usage=0.5, generation_tokens=300, engine="ray_vllm"),
        ),
        ("tgi", ServerMetrics(running=5, waiting=3, prompt_tokens=9000, generation_tokens=50000, engine="tgi")),
        (
            "lmdeploy",
            ServerMetrics(
                running=6, waiting=0, kv_cache_usage=0.5, prompt_tokens=100, generation_tokens=700, engine="lmdeploy"
            ),
        ),
        (
            "trtllm",
            ServerMetrics(
                running=2,
                waiting=7,
                kv_cache_usage=0.62,
                prompt_tokens=33,
                generation_tokens=44,
                prefix_hit_rate=0.25,
                engine="trtllm",
            ),
        ),
    ],
)
def test_documented_metrics(name: str, expected: ServerMetrics) -> None:
    assert parse(TEXTS[name]) == expected
    assert parse(TEXTS[name], expected.engine) == expected


def test_a_real_vllm_on_a_gpu() -> None:
    found = parse(TEXTS["vllm"])
    assert (found.engine, found.running, found.generation_tokens, found.block_size) == ("vllm", 256, 74_300, 16)
    assert found.kv_cache_usage == pytest.approx(0.0045288)
    times = latencies_ms(TEXTS["vllm"])
    assert times["ttft_p50_ms"] == pytest.approx(135.0)
    assert times["itl_p95_ms"] == pytest.approx(37.97, abs=0.01)


@pytest.mark.parametrize(
    ("name", "key", "value_ms"),
    [
        ("vllm_old", "ttft_p50_ms", 100.0),
        ("vllm_old", "itl_p50_ms", 17.5),
        ("sglang", "ttft_p50_ms", 200 + 200 / 3),  # 10 of 40 up to 0.2 s, 30 between 0.2 and 0.4: rank 20
        ("sglang", "itl_p95_ms", 19.0),
        ("tgi", "itl_p50_ms", 20.0),
        ("tgi", "ttft_p50_ms", None),
        ("llamacpp", "ttft_p50_ms", None),
        ("lmdeploy", "itl_p50_ms", 5.0),
        ("trtllm", "ttft_p95_ms", 38.0),
    ],
)
def test_percentiles_since_the_start(name: str, key: str, value_ms: float | None) -> None:
    assert latencies_ms(TEXTS[name])[key] == (None if value_ms is None else pytest.approx(value_ms))


def test_a_quantile_is_none_where_nothing_is_known() -> None:
    assert quantile({}, 0.5) is None
    assert quantile({1.0: 0.0, INF: 0.0}, 0.5) is None
    assert quantile({1.0: 5.0}, 0.5) is None  # half a histogram: it never ended
    assert quantile({1.0: 5.0, INF: 3.0}, 0.5) is None  # contradicts itself
    assert quantile({INF: 3.0}, 0.5) is None
    assert quantile({1.0: 1.0, INF: 4.0}, 0.95) == 1.0  # beyond the last bound, as Prometheus says it


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=8), st.floats(0.01, 0.99))
def test_a_quantile_lies_within_the_bounds(counts: list[int], share: float) -> None:
    bounds = [float(number) for number in range(1, len(counts))] + [INF]
    cumulative = [float(sum(counts[: number + 1])) for number in range(len(counts))]
    value = quantile(dict(zip(bounds, cumulative, strict=True)), share)
    assert (value is None) == (cumulative[-1] == 0)
    assert value is None or 0 <= value <= len(counts) - 1


@pytest.mark.parametrize("name", sorted(TEXTS))
@given(cut=st.integers(0, 4000), junk=st.text(max_size=20))
def test_half_written_text_breaks_nothing(name: str, cut: int, junk: str) -> None:
    text = TEXTS[name][:cut] + junk
    found = parse(text)
    assert found.kv_cache_usage is None or 0 <= found.kv_cache_usage <= 1
    assert set(latencies_ms(text)) == set(latencies_ms(""))


@pytest.mark.parametrize(
    ("owner", "key"),
    [
        ("vllm", "vllm"),
        ("sglang", "sglang"),
        ("llamacpp", "llamacpp"),
        ("lmdeploy", "lmdeploy"),
        ("tensorrt_llm", "trtllm"),
    ],
)
def test_known_by_its_list_of_models(site: Site, owner: str, key: str) -> None:
    site.answers = {"/v1/models": models(owner), "/version": {"version": "1.2.3"}, "/props": {"build_info": "b1-abc"}}
    found = detect(site.endpoint)
    assert found.dialect.key == key
    assert found.evidence == f"/v1/models has data.0.owned_by = {owner}"
    assert found.version == {"vllm": "1.2.3", "trtllm": "1.2.3", "llamacpp": "b1-abc"}.get(key)


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_known_by_its_metrics(site: Site, name: str) -> None:
    key = name.removesuffix("_old").removesuffix("_recorded")
    site.answers = {"/v1/models": models("somebody"), by_key(key).metrics_path or "": TEXTS[name]}
    found = detect(site.endpoint)
    assert found.dialect.key == key
    assert "names that begin with" in found.evidence


@pytest.mark.parametrize(
    ("path", "answer", "key"),
    [
        ("/get_model_info", {"model_path": "m", "is_generation": True}, "sglang"),
        ("/props", {"default_generation_settings": {"n_ctx": 1024}, "total_slots": 4}, "llamacpp"),
        ("/info", {"model_id": "m", "router": "text-generation-router", "version": "2.0.2"}, "tgi"),
        ("/openapi.json", {"info": {"title": "🦙 llama.cpp Python API", "version": "0.3.16"}}, "llama_cpp_python"),
        ("/openapi.json", {"info": {"title": "FastAPI"}, "paths": {"/load_model": {}}}, "transformers"),
    ],
)
def test_known_by_a_route_of_its_own(site: Site, path: str, answer: dict[str, Any], key: str) -> None:
    site.answers = {"/v1/models": models("me"), path: answer}
    assert detect(site.endpoint).dialect.key == key


@pytest.mark.parametrize(
    "answer",
    [None, "", "[]", "{", '{"data": []}', '{"data": "x"}', '{"data": [{"owned_by": 5}]}', "[" * 100_000, models("x")],
)
def test_an_unknown_engine_is_said_to_be_one(site: Site, answer: Any) -> None:
    site.answers = dict.fromkeys(("/v1/models", "/metrics", "/props", "/info", "/openapi.json"), answer)
    found = detect(site.endpoint)
    assert (found.dialect, found.known, found.words) == (UNKNOWN, False, "Unknown engine")
    assert len(site.asked) == len(set(site.asked))  # each route once


def test_nobody_there_is_unknown_and_soon_over(site: Site) -> None:
    site.server.shutdown()
    site.server.server_close()
    assert detect(site.endpoint, timeout_s=0.2, budget_s=0.5).dialect is UNKNOWN


def test_the_engine_decides_where_metrics_are(site: Site) -> None:
    site.answers = {"/prometheus/metrics": TEXTS["trtllm"], "/metrics": "[]"}
    assert scrape(Endpoint(site.base_url, "m", engine="trtllm")).running == 2
    assert scrape(Endpoint(site.base_url, "m", engine="transformers")) == ServerMetrics(engine="transformers")
    assert site.asked == ["/prometheus/metrics"]


def test_a_quoted_text_is_read_too(site: Site) -> None:
    site.answers = {"/metrics": json.dumps(TEXTS["llamacpp"])}
    assert scrape(site.endpoint).running == 4
    assert detect(site.endpoint).dialect.key == "llamacpp"


def test_the_table() -> None:
    keys = [dialect.key for dialect in dialects()]
    assert len(keys) == len(set(keys))
    owners: dict[str, str] = {}
    for dialect in dialects():
        assert dialect.sources and all(source.startswith("https://") for source in dialect.sources)
        assert dialect.itl in ("gap", "request_mean")
        assert dialect.signs or dialect.prefix
        for names in dialect.metrics.values():
            for name in names:
                assert name.startswith(dialect.prefix or "\n")
                assert owners.setdefault(name, dialect.key) == dialect.key
    with pytest.raises(ConfigError, match="vllm, sglang"):
        by_key("vlm")


def answer_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], int]:
    code = main(["scrape", *words, "--json"])
    return json.loads(capsys.readouterr().out), code


def test_scrape_by_the_command_line(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.answers = {"/v1/models": models("sglang"), "/metrics": TEXTS["sglang"]}
    answer, code = answer_of(capsys, "--url", site.base_url)
    assert code == 0
    assert (answer["engine"], answer["requests_running"], answer["requests_waiting"]) == ("sglang", 162, 2826)
    assert (answer["kv_cache_usage"], answer["prompt_tokens_total"]) == (0.28, 8_128_902)
    assert (answer["generation_tokens_total"], answer["preemptions_total"]) == (7_557_572, 4)
    assert answer["prefix_hit_rate"] == 0.0075
    assert answer["ttft_p50_ms"] == pytest.approx(266.67, abs=0.01)
    assert answer["queue_p50_ms"] is None


def test_scrape_says_why_there_is_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.answers = {"/v1/models": models("llamacpp")}
    answer, code = answer_of(capsys, "--url", site.base_url)
    assert (code, answer["engine"], answer["requests_running"]) == (0, "llamacpp", None)
    assert answer["note"] == "llama.cpp sends no metrics. Start llama-server with --metrics."
    site.answers = {}
    assert answer_of(capsys, "--url", site.base_url)[0]["engine"] == "unknown"
    assert answer_of(capsys, "--url", site.base_url, "--engine", "transformers")[0]["engine"] == "transformers"


def test_scrape_without_a_server(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    answer, code = answer_of(capsys)
    assert code == 1
    assert "not ready" in answer["error"]
    site.server.shutdown()
    site.server.server_close()
    answer, code = answer_of(capsys, "--url", site.base_url)
    assert code == 1
    assert "No server answers" in answer["error"]
