"""A saved load test on the Runs page."""

from __future__ import annotations

from components import load_downloads, load_results
from components.load_shown import Shown
from components.load_values import saved_load
from engine.config import LoadTestConfig
from engine.errors import ConfigError
from engine.load.export import to_csv
from engine.store import Run


def show(run: Run) -> None:
    """Everything that was measured; nothing for another kind of run, or one that another version wrote."""
    results = saved_load(run)
    if results is not None:
        load_results.show(Shown(results, config_of(run), "runs_load"))


def config_of(run: Run) -> LoadTestConfig | None:
    try:
        return LoadTestConfig.from_dict(run.config)
    except (ConfigError, TypeError, ValueError, AttributeError):
        return None


def csv_of(run: Run) -> str:
    """A line a level; empty for anything but a whole load test."""
    results = saved_load(run)
    return to_csv(results) if results is not None else ""


def bench_button(run: Run) -> None:
    """vLLM's format, beside the files that every run has."""
    results = saved_load(run)
    if results is not None:
        load_downloads.bench_button(
            results, config_of(run), load_downloads.model_of(run), run.created_at, f"run-{run.id}", "runs_load_bench"
        )
