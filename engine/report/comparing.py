"""Two to six runs against each other: what differs in how they came about, then what differs in their numbers.

The first run is what the others are held against.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import ConfigError
from engine.imports.mark import FORMAT_NAMES, LAB, kind_of, origin_of
from engine.imports.values import mapping
from engine.report.measures import MEASURES
from engine.report.points import Point, convention_of, conventions_in, points_of
from engine.report.spread import chance_pct, is_beyond_spread
from engine.store import Run

FEWEST, MOST = 2, 6
# Of one moment, of one study, or said elsewhere.
PASSING = (
    "environment.hardware.gpus.memory_free_bytes",
    "environment.hardware.ram_available_bytes",
    "environment.summary",
    "environment.imported",
    "environment.hardware.cpu_ids",
    "config.study",
    "config.trial",
    "config.tool",
    "model.path",
)
HARDWARE = ("device", "cpu_model", "physical_cores", "ram_total_bytes")
NOT_SET = "not set"
NOT_REPEATED = (
    "Nothing was repeated within these runs, so it isn't known whether a change is larger than the spread between "
    "runs. Measure each of them again and compare all of it."
)
PROMPTS = {
    "load": (
        *("profile", "prompts", "prompt_file", "prompt_tokens", "max_tokens", "prompt_shape", "prompt_spread"),
        *("output_shape", "output_spread", "turns", "nonce", "same_prompt", "force_length", "temperature", "trace"),
    ),
    "compare": ("prompt", "max_tokens"),
    "chat": ("options",),
}


@dataclass(frozen=True)
class Difference:
    """One setting or fact of which runs say different things; None where a run says nothing."""

    name: str
    values: tuple[str | None, ...]


@dataclass(frozen=True)
class Change:
    """A run against the first. ``beyond_spread``: None where nothing was repeated; ``chance_pct`` as in ``spread``."""

    absolute: float | None
    relative_pct: float | None
    beyond_spread: bool | None
    chance_pct: float | None


@dataclass(frozen=True)
class MetricRow:
    """One number of one point in all runs; ``changes`` are those of the second run and later."""

    point: str
    metric: str
    values: tuple[float | None, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Comparison:
    runs: tuple[Run, ...]
    convention: str
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    differences: tuple[Difference, ...]
    rows: tuple[MetricRow, ...]
    points: tuple[tuple[Point, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "runs": [_identity(run) for run in self.runs],
            "convention": self.convention,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "differences": [{"name": one.name, "values": list(one.values)} for one in self.differences],
            "metrics": [
                {
                    "point": row.point,
                    "metric": row.metric,
                    "unit": MEASURES[row.metric].unit,
                    "values": list(row.values),
                    "changes": [vars(change).copy() for change in row.changes],
                }
                for row in self.rows
            ],
        }


def compare(runs: Sequence[Run]) -> Comparison:
    """Raises ConfigError unless these are two to six different runs."""
    if not FEWEST <= len(runs) <= MOST:
        raise ConfigError(f"{len(runs)} runs can't be compared.", f"Give {FEWEST} to {MOST}.")
    if len({run.id for run in runs}) < len(runs):
        raise ConfigError("A run was given twice.", "Give different ones.")
    convention, notes = _common_convention(runs)
    points = tuple(points_of(run, convention or convention_of(run)) for run in runs)
    rows = tuple(_rows(points))
    if rows and all(change.beyond_spread is None for row in rows for change in row.changes):
        notes.append(NOT_REPEATED)
    return Comparison(
        tuple(runs),
        convention or "mixed",
        tuple(_warnings(runs, convention, points)),
        tuple(notes),
        tuple(_differences(runs)),
        rows,
        points,
    )


def _common_convention(runs: Sequence[Run]) -> tuple[str | None, list[str]]:
    """The definitions that all runs are known by, this lab's first; None where there are none."""
    shared = set.intersection(*(conventions_in(run) for run in runs))
    found = next((name for name in FORMAT_NAMES if name in shared), None)
    if found in (None, LAB):
        return found, []
    return found, [f"All numbers are by the definitions of {FORMAT_NAMES[found]}, so that they mean the same."]


def _warnings(runs: Sequence[Run], convention: str | None, points: Sequence[Sequence[Point]]) -> Iterator[str]:
    if len({_measured(run) for run in runs}) > 1:
        yield "These are different kinds of measurement: their numbers answer different questions."
    elif not any(len([1 for each in points if name in {p.name for p in each}]) > 1 for name in _names(points)):
        yield "No load is the same in two of these runs: there is nothing to compare number by number."
    if convention is None:
        tools = ", ".join(dict.fromkeys(FORMAT_NAMES.get(convention_of(run), convention_of(run)) for run in runs))
        yield f"The runs follow different definitions ({tools}): TPOT and ITL aren't the same measure in all of them."
    yield from _unlike("Hardware", [_hardware(run) for run in runs], "the machine is a part of every difference")
    yield from _unlike("The model", [_model(run) for run in runs], "another model does other work for every token")
    prompts = [_prompts(run) for run in runs]
    yield from _unlike("Prompts or lengths", prompts, "other prompts and answers are other work")
    for number, run in enumerate(runs, 1):
        if run.status != "done":
            yield f"Run {number} is not whole: its status is “{run.status}”."
    doubted = [str(number) for number, each in enumerate(points, 1) if any(_serious(point) for point in each)]
    if doubted:
        yield f"Something speaks against numbers of run {', '.join(doubted)}: look at the badges there."


def _serious(point: Point) -> bool:
    return any(doubt.severity == "warning" for doubt in point.doubts)


def _unlike(what: str, values: Sequence[str | None], why: str) -> Iterator[str]:
    known = [value for value in values if value is not None]
    verb = "differ" if what.startswith("Prompts") else "differs"
    if len(set(known)) > 1:
        yield f"{what} {verb}: {why}."
    elif len(known) < len(values):
        unknown = ", ".join(str(number) for number, value in enumerate(values, 1) if value is None)
        yield f"{what}: not known of run {unknown}."


def _measured(run: Run) -> str:
    """A trial of Tuning is a load test."""
    kind = kind_of(run.kind)
    return "load" if kind == "tune" else kind


def _hardware(run: Run) -> str | None:
    hardware = mapping(mapping(run.environment).get("hardware"))
    if not hardware:
        return None
    gpus = hardware.get("gpus")
    names = [mapping(gpu).get("name") for gpu in gpus] if isinstance(gpus, list) else []
    cores = hardware.get("cpu_ids")
    count = len(cores) if isinstance(cores, list) else None
    return json.dumps([[hardware.get(name) for name in HARDWARE], names, count], default=str)


def _model(run: Run) -> str | None:
    model = mapping(run.model)
    return str(model["model_id"]) if model.get("model_id") else None


def _prompts(run: Run) -> str | None:
    config = mapping(run.config)
    config = mapping(config.get("workload")) or config
    names = [name for name in PROMPTS.get(_measured(run), ()) if name in config]
    return json.dumps({name: config[name] for name in names}, sort_keys=True, default=str) if names else None


def _differences(runs: Sequence[Run]) -> Iterator[Difference]:
    if any(origin_of(run) for run in runs):
        measured = [f"{origin.name}, imported" if (origin := origin_of(run)) else "this lab" for run in runs]
        yield Difference("measured by", tuple(measured))
    each = [dict(_facts(run)) for run in runs]
    for name in dict.fromkeys(name for facts in each for name in facts):
        values = tuple(facts.get(name) for facts in each)
        if len(set(values) - {None}) > 1 and not name.startswith(PASSING):
            yield Difference(name, values)


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    """Configuration first: that is what people changed."""
    config = dict(mapping(run.config))
    workload = config.pop("workload", None)
    config |= dict(mapping(workload))  # a trial's load stands where a load test's own does
    yield from _flat("config", config)
    yield from _flat("model", mapping(run.model))
    yield from _flat("environment", mapping(run.environment))
    cores = mapping(mapping(run.environment).get("hardware")).get("cpu_ids")
    if isinstance(cores, list):
        yield "environment.hardware.cores", str(len(cores))


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        path = f"{prefix}.{name}"
        if isinstance(value, dict):
            yield from _flat(path, value)
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            for part in dict.fromkeys(key for one in value for key in one):
                yield f"{path}.{part}", ", ".join(_word(one.get(part)) for one in value)
        elif value is not None:
            yield path, _word(value)
        elif prefix.startswith("config"):
            yield path, NOT_SET


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _names(points: Sequence[Sequence[Point]]) -> list[str]:
    return list(dict.fromkeys(point.name for each in points for point in each))


def _rows(points: Sequence[Sequence[Point]]) -> Iterator[MetricRow]:
    """Only what at least two runs know."""
    for name in _names(points):
        same = [next((point for point in each if point.name == name), None) for each in points]
        for metric in MEASURES:
            values = tuple(point.values.get(metric) if point else None for point in same)
            if sum(value is not None for value in values) > 1:
                changes = tuple(_change(metric, same[0], other) for other in same[1:])
                yield MetricRow(name, metric, values, changes)


def _change(metric: str, first: Point | None, other: Point | None) -> Change:
    before = first.values.get(metric) if first else None
    after = other.values.get(metric) if other else None
    if before is None or after is None:
        return Change(None, None, None, None)
    repeats = [point.repeats.get(metric, ()) if point else () for point in (first, other)]
    relative = 100 * (after - before) / abs(before) if before else None
    return Change(after - before, relative, is_beyond_spread(*repeats), chance_pct(*repeats))


def _identity(run: Run) -> dict[str, Any]:
    origin = origin_of(run)
    return {
        "id": run.id,
        "kind": kind_of(run.kind),
        "title": run.title,
        "status": run.status,
        "created_at": run.created_at,
        "machine": mapping(run.environment).get("summary"),
        "imported_from": origin.name if origin else None,
    }
