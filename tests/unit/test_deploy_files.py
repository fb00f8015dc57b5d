"""deploy/: up to date with the app's panels and alerts, and what Prometheus' own tool says of it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from engine.config import PROJECT_ROOT
from engine.telemetry.alerts import ALERTS
from engine.telemetry.panels import PANELS, WINDOW
from tests.prometheus_tools import Tools

DEPLOY = PROJECT_ROOT / "deploy"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deploy_files", PROJECT_ROOT / "scripts" / "deploy_files.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_would_be_made_now(made: ModuleType) -> None:
    for name, text in made.files().items():
        assert (DEPLOY / name).read_text(encoding="utf-8") == text, f"run make deploy-files: {name}"


def test_every_line_with_a_query_is_on_the_dashboard() -> None:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    drawn = {target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())}
    lines = [line for panel in PANELS for line in panel.lines if line.promql]
    assert drawn == {line.query("$__rate_interval") for line in lines}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_every_alert_has_its_rule_and_its_advice() -> None:
    groups = yaml.safe_load((DEPLOY / "rules.yml").read_text(encoding="utf-8"))["groups"]
    rules = {rule["annotations"]["summary"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    assert set(rules) == {alert.title for alert in ALERTS if alert.promql}
    for alert in ALERTS:
        if alert.promql:
            assert alert.advice in rules[alert.title]["annotations"]["description"]
            assert WINDOW not in rules[alert.title]["expr"]


@pytest.mark.parametrize("words", [("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml")])
def test_promtool_finds_nothing_wrong(prometheus_tools: Tools, words: tuple[str, ...]) -> None:
    done = _promtool(prometheus_tools, DEPLOY, *words)
    assert done.returncode == 0, done.stdout


def test_promtool_would_say_so(prometheus_tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text("groups: [{name: a, rules: [{record: x, expr: 'sum('}]}]")
    assert _promtool(prometheus_tools, tmp_path, "check", "rules", "rules.yml").returncode != 0


QUIET, BUSY = "0x24", "0+1x48"  # two minutes of nothing, then four of one more every five seconds
SERIES = {
    'vllm:kv_cache_usage_perc{engine="0"}': "0.5x24 0.95x48",
    'vllm:num_requests_waiting{engine="0"}': f"{QUIET} {BUSY}",
    'vllm:num_preemptions_total{engine="0"}': f"{QUIET} {BUSY}",
    'vllm:time_to_first_token_seconds_bucket{le="0.5"}': f"{QUIET} 0x48",
    'vllm:time_to_first_token_seconds_bucket{le="5.0"}': f"{QUIET} {BUSY}",
    'vllm:time_to_first_token_seconds_bucket{le="+Inf"}': f"{QUIET} {BUSY}",
}


@pytest.mark.parametrize("name", ["QueueGrowing", "KvNearlyFull", "Preemptions", "TtftAboveSlo"])
def test_an_alert_is_silent_while_all_is_well_and_fires_when_not(
    prometheus_tools: Tools, tmp_path: Path, name: str
) -> None:
    groups = yaml.safe_load((DEPLOY / "rules.yml").read_text(encoding="utf-8"))["groups"]
    (rule,) = [rule for group in groups for rule in group["rules"] if rule.get("alert") == name]
    fires = {"exp_labels": rule["labels"], "exp_annotations": rule["annotations"]}
    case = {
        "interval": "5s",
        "input_series": [{"series": series, "values": values} for series, values in SERIES.items()],
        "alert_rule_test": [
            {"eval_time": "1m50s", "alertname": name, "exp_alerts": []},
            {"eval_time": "4m", "alertname": name, "exp_alerts": [fires]},
        ],
    }
    document = {"rule_files": [str(DEPLOY / "rules.yml")], "evaluation_interval": "5s", "tests": [case]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    done = _promtool(prometheus_tools, tmp_path, "test", "rules", "test.yml")
    assert done.returncode == 0, done.stdout


def _promtool(tools: Tools, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(tools.promtool), *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
