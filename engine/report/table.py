"""Runs as one CSV: a line for each point of each run. No cell can become a formula in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from engine.imports.mark import FORMAT_NAMES, kind_of, origin_of
from engine.imports.values import mapping
from engine.report import cost
from engine.report.measures import MEASURES
from engine.report.points import Point, convention_of, points_of
from engine.store import FORMULA_STARTS, Run


def to_csv(runs: Sequence[Run], price: float | None = None) -> str:
    """Units are in the names of the columns; unknown is empty. Of each run its own definitions (``convention``)."""
    rows = [_row(run, point, price) for run in runs for point in points_of(run) or (Point("", {}),)]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writerow({name: _cell(name) for name in writer.fieldnames})
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _row(run: Run, point: Point, price: float | None) -> dict[str, Any]:
    origin = origin_of(run)
    about: dict[str, Any] = {
        "run_id": run.id,
        "kind": kind_of(run.kind),
        "title": run.title,
        "status": run.status,
        "created_at": run.created_at,
        "machine": mapping(run.environment).get("summary"),
        "model": mapping(run.model).get("model_id"),
        "measured_by": origin.name if origin else FORMAT_NAMES["lab"],
        "convention": convention_of(run),
        "point": point.name,
        "load": point.load,
    }
    about |= {name: point.values.get(name) for name in MEASURES}
    if price is not None:
        speed = point.values.get("throughput_tok_s")
        about["cost_per_million_output_tokens"] = cost.per_million_tokens(cost.per_hour_of(run, price), speed)
    about |= {name: value for name, value in point.others.items() if name not in about}
    return about | {"badges": ", ".join(doubt.label for doubt in point.doubts)}


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.lstrip(" \n").startswith(FORMULA_STARTS) else value
