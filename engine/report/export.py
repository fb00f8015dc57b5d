"""Runs → the text of a file, in the format that was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from engine.chat import turns_to_csv
from engine.errors import ConfigError
from engine.report.comparing import compare
from engine.report.cost import check_price
from engine.report.html import comparison_html, run_html
from engine.report.points import turns_of
from engine.report.table import to_csv
from engine.store import Run, run_to_json, to_json

FORMATS = ("html", "csv", "json")


def export(runs: Sequence[Run], kind: str, price: float | None = None) -> str:
    """``kind`` is one of ``FORMATS``; several runs come with their comparison. Raises ConfigError.

    ``price`` per hour of a GPU (of the machine, where it has none) adds the cost of a million output tokens.
    """
    check_price(price)
    if not runs or kind not in FORMATS:
        raise ConfigError("There is nothing to export.", f"Give a run, and one of {', '.join(FORMATS)}.")
    if kind == "csv":
        return turns_to_csv(runs[0]) if len(runs) == 1 and turns_of(runs[0]) else to_csv(runs, price)
    if len(runs) == 1:
        return run_html(runs[0], price) if kind == "html" else run_to_json(runs[0])
    comparison = compare(runs)
    if kind == "html":
        return comparison_html(comparison, price)
    return to_json({"runs": [run.to_dict() for run in runs], "comparison": comparison.to_dict()})
