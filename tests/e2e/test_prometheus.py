"""Debian's own Prometheus against real vLLM: every query of the dashboard and every recorded series has data."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from engine.config import LoadTestConfig, ServerConfig, Settings
from engine.server.life import free_port
from engine.services import LabServices, open_lab
from engine.telemetry.panels import PANELS, Source
from tests.e2e.lab import ROOT, cli, data_folder, wait_for
from tests.prometheus_tools import Tools

# Long enough to hold the traffic until the last query, and two readings of it.
WINDOW = "2m"
QUERIES = [
    (panel.key, line) for panel in PANELS if panel.source == Source.SERVER for line in panel.lines if line.promql
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServices]:
    folder = data_folder(tmp_path_factory.mktemp("lab") / "data")
    services = open_lab(Settings.from_env(os.environ | {"LAB_DATA_DIR": str(folder), "LAB_AUTOSTART": "0"}))
    services.supervisor.start(ServerConfig())
    services.supervisor.wait_ready()
    yield services
    services.close()


class Prometheus:
    """The server of deploy/, with this machine's address and a reading every second."""

    def __init__(self, tools: Tools, folder: Path, target: str) -> None:
        config = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text("utf-8"))
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(ROOT / "deploy" / "rules.yml")]
        config["scrape_configs"] = [{"job_name": "vllm", "static_configs": [{"targets": [target]}]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    str(tools.prometheus),
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def ask(self, path: str, **values: str) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(values)}", timeout=10) as reply:
            return json.load(reply)["data"]

    def query(self, promql: str) -> list[float]:
        return [float(one["value"][1]) for one in self.ask("query", query=promql)["result"]]

    def up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.query("up") == [1.0]
        except OSError:
            return False

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="module")
def prometheus(
    lab: LabServices, prometheus_tools: Tools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    endpoint = lab.supervisor.endpoint()
    server = Prometheus(prometheus_tools, tmp_path_factory.mktemp("prometheus"), endpoint.root_url.split("//")[1])
    try:
        wait_for("a first reading", server.up)
        lab.load.run_blocking(LoadTestConfig(users=(2, 4), max_tokens=16), None, progress=lambda _: None)
        time.sleep(3)  # two more readings and evaluations, so that a rate sees all of it
        yield server
    finally:
        server.close()


@pytest.mark.parametrize(("panel", "line"), QUERIES, ids=[line.key for _, line in QUERIES])
def test_every_query_of_the_dashboard_has_data(prometheus: Prometheus, panel: str, line: Any) -> None:
    values = prometheus.query(line.query(WINDOW))
    assert len(values) == 1 and 0 <= values[0] < float("inf"), (panel, values)
    if line.key.endswith("_ms"):
        assert values[0] > 0
    assert prometheus.query(f"vllm_lab:{line.key}"), "the recorded series"


def test_the_rules_are_healthy(prometheus: Prometheus) -> None:
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert rules and {rule["health"] for rule in rules} == {"ok"}, rules
    assert prometheus.query("sum(vllm_lab:generation_tok_s)")[0] > 0


def test_scrape_reads_the_same_server(lab: LabServices, prometheus: Prometheus) -> None:
    answer, code = cli(lab.settings.data_dir, "scrape")
    assert (code, answer["engine"], answer["requests_running"], answer["requests_waiting"]) == (0, "vllm", 0, 0)
    assert answer["generation_tokens_total"] == prometheus.query("sum(vllm:generation_tokens_total)")[0]
    assert answer["ttft_p50_ms"] > 0 and answer["itl_p50_ms"] > 0 and answer["engine_version"]
