"""A load test to take along: as the saved run, as a table, and as vLLM's own benchmark would have saved it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime

import streamlit as st

from components.load_shown import Shown
from engine.config import LoadTestConfig
from engine.load.export import to_csv, to_vllm_bench
from engine.load.results import LoadResults
from engine.services import LabServices
from engine.store import Run, run_to_json, to_json


def for_page(services: LabServices, shown: Shown, run_id: str | None, model: str) -> None:
    """Under the results of the test that just ended, saved or not."""
    name = f"run-{run_id}" if run_id else "load-test"
    with st.container(horizontal=True, vertical_alignment="center"):
        _button("JSON", lambda: _saved_json(services, shown, run_id), f"{name}.json", f"{shown.key}_json")
        _button("CSV", lambda: to_csv(shown.results), f"{name}.csv", f"{shown.key}_csv", "text/csv")
        bench_button(shown.results, shown.config, model, "", name, f"{shown.key}_bench")
        if run_id:
            st.page_link(
                "pages/runs.py", label="Open the saved run", icon=":material/history:", query_params={"run": run_id}
            )


def bench_button(
    results: LoadResults, config: LoadTestConfig | None, model: str, created_at: str, name: str, key: str
) -> None:
    _button(
        "vLLM bench JSON",
        lambda: bench_lines(results, config or LoadTestConfig(), model, created_at),
        f"{name}-vllm-bench.json",
        key,
        help="The numbers that `vllm bench serve --append-result` would have saved: an object a level, one a line.",
    )


def bench_lines(results: LoadResults, config: LoadTestConfig, model: str, created_at: str = "") -> str:
    """As ``--append-result`` writes them; one level is the file of ``--save-result``. ``created_at`` is an ISO time."""
    try:
        when = datetime.fromisoformat(created_at)
    except ValueError:
        when = datetime.now()
    levels = to_vllm_bench(results, config, model, when.strftime("%Y%m%d-%H%M%S"))
    return "\n".join(json.dumps(level) for level in levels)


def model_of(run: Run) -> str:
    return str(run.model.get("model_id") or "") if isinstance(run.model, dict) else ""


def _saved_json(services: LabServices, shown: Shown, run_id: str | None) -> str:
    run = services.store.get(run_id) if run_id else None
    if run is not None:
        return run_to_json(run)
    config = shown.config.to_dict() if shown.config else {}
    return to_json({"config": config, "results": shown.results.to_dict()})


def _button(
    label: str,
    text: Callable[[], str],
    file_name: str,
    key: str,
    mime: str = "application/json",
    help: str | None = None,
) -> None:
    st.download_button(label, text, file_name, mime, icon=":material/download:", key=key, on_click="ignore", help=help)
