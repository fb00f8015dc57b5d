"""Writes deploy/: Prometheus' configuration and rules, and Grafana's dashboard, from the app's own panels and alerts.

``python scripts/deploy_files.py`` writes them; ``files()`` is what they hold, for the test that they are up to date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from engine.telemetry.alerts import ALERTS, Alert  # noqa: E402
from engine.telemetry.panels import PANELS, Line, Panel, Source  # noqa: E402

DEPLOY = ROOT / "deploy"
RULE_WINDOW = "1m"
SCRAPE_INTERVAL = "5s"
GRAFANA_WINDOW = "$__rate_interval"
UNITS = {"ms": "ms", "%": "percent", "W": "watt", "°C": "celsius", "GB": "decgbytes", "tok/s": "suffix: tok/s"}
ROWS = {
    Source.SERVER: "vLLM",
    Source.GPU: "GPU: from NVIDIA's DCGM exporter",
    Source.HOST: "Machine: from Prometheus' node exporter",
}
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 24, 12, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
GENERATED = "# Made by scripts/deploy_files.py from the app's own panels and alerts; change those.\n"


def files() -> dict[str, str]:
    """Content by file name."""
    return {
        "prometheus.yml": GENERATED + _yaml(prometheus_config()),
        "rules.yml": GENERATED + _yaml(rules()),
        "grafana-dashboard.json": json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n",
    }


def prometheus_config() -> dict[str, Any]:
    """One server here; GPU and machine where their exporters run; further servers in targets/*.yml."""
    return {
        "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {
                "job_name": "vllm",
                "static_configs": [{"targets": ["127.0.0.1:8000"]}],
                "file_sd_configs": [{"files": ["targets/*.yml"]}],
            },
            {"job_name": "dcgm", "static_configs": [{"targets": ["127.0.0.1:9400"]}]},
            {"job_name": "node", "static_configs": [{"targets": ["127.0.0.1:9100"]}]},
        ],
    }


def rules() -> dict[str, Any]:
    """The panels' lines as recorded series, and the alerts."""
    recorded = [
        {"record": f"vllm_lab:{line.key}", "expr": line.query(RULE_WINDOW)}
        for panel in PANELS
        if panel.source == Source.SERVER
        for line in panel.lines
        if line.promql
    ]
    return {
        "groups": [
            {"name": "vllm-lab", "rules": recorded},
            {"name": "vllm-lab-alerts", "rules": [_alert(alert) for alert in ALERTS if alert.promql]},
        ]
    }


def dashboard() -> dict[str, Any]:
    """Grafana's model of the same panels; queries say what the app's page draws."""
    panels: list[dict[str, Any]] = []
    top = 0
    for source, title in ROWS.items():
        shown = [panel for panel in PANELS if panel.source == source and any(line.promql for line in panel.lines)]
        panels.append({"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _place(top, 0, 1)})
        for number, panel in enumerate(shown):
            row, column = divmod(number, COLUMNS // PANEL_WIDTH)
            panels.append(_panel(panel, _place(top + 1 + row * PANEL_HEIGHT, column * PANEL_WIDTH, PANEL_HEIGHT)))
        top += 1 + -(-len(shown) * PANEL_WIDTH // COLUMNS) * PANEL_HEIGHT
    return {
        "uid": "vllm-lab",
        "title": "vLLM Lab",
        "tags": ["vllm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": SCRAPE_INTERVAL,
        "time": {"from": "now-15m", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "annotations": {
            "list": [
                {
                    "name": "Alerts",
                    "datasource": DATASOURCE,
                    "enable": True,
                    "expr": 'ALERTS{alertstate="firing",source="vllm-lab"}',
                    "titleFormat": "{{alertname}}",
                    "iconColor": "red",
                }
            ]
        },
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "alert": "".join(word.capitalize() for word in alert.key.split("_")),
        "expr": alert.query(RULE_WINDOW),
        "for": f"{alert.for_s}s",
        "labels": {"severity": "warning", "source": "vllm-lab"},
        "annotations": {"summary": alert.title, "description": f"{alert.advice} Threshold: {alert.threshold}."},
    }


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [_target(line, letter) for line, letter in zip(_drawn(panel), "ABCDEFGH", strict=False)]
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": f"{panel.help} {panel.reason}".strip(),
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": UNITS.get(panel.unit, f"suffix: {panel.unit}"), "min": 0},
            "overrides": [],
        },
        "options": {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": targets,
    }


def _target(line: Line, letter: str) -> dict[str, Any]:
    legend = f"{line.label} {{{{{line.legend}}}}}" if line.legend else line.label
    return {"refId": letter, "datasource": DATASOURCE, "expr": line.query(GRAFANA_WINDOW), "legendFormat": legend}


def _drawn(panel: Panel) -> list[Line]:
    return [line for line in panel.lines if line.promql]


def _place(top: int, left: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": PANEL_WIDTH if height > 1 else COLUMNS, "h": height}


def _yaml(value: dict[str, Any]) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)


def main() -> None:
    DEPLOY.mkdir(exist_ok=True)
    for name, text in files().items():
        (DEPLOY / name).write_text(text, encoding="utf-8")
        print(f"deploy/{name}")


if __name__ == "__main__":
    main()
