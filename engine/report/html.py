"""A run, or a comparison of runs, as one HTML file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from engine.compare_results import CompareResults
from engine.imports.mark import FORMAT_NAMES, kind_of, origin_of
from engine.imports.values import mapping, text
from engine.metrics import METRIC_HELP
from engine.report import cost, figures
from engine.report.comparing import Comparison
from engine.report.figures import Chart
from engine.report.markup import around, chart, details, table, tag
from engine.report.measures import MEASURES, text_of
from engine.report.page import page
from engine.report.points import Point, convention_of, points_of, turns_of
from engine.report.words import change_words, headline, name_of, spread_words
from engine.store import Run, to_json
from engine.units import moment, seconds

KINDS = {"compare": "Comparison of engines", "load": "Load test", "tune": "Tuning trial", "chat": "Chat"}
PRICE_RULE = "Price per hour / (tok/s × 3,600) × 1,000,000, in the currency of the price."
DATA_LIMIT = 200_000


class _Charts:
    """Numbers the charts of a page, in the order in which they come."""

    def __init__(self) -> None:
        self.figures: list[dict[str, object]] = []

    def put(self, found: Sequence[Chart]) -> str:
        parts = []
        for one in found:
            parts += [tag("h3", one.title), chart(len(self.figures), one.words, int(one.figure["layout"]["height"]))]
            self.figures.append(one.figure)
        return "".join(parts)


def run_html(run: Run, price: float | None = None) -> str:
    """``price`` per GPU hour where the run used GPUs, else per hour of the machine."""
    charts = _Charts()
    body = _run(run, charts, price, level="h1") + _definitions([points_of(run)])
    return page(run.title, body + _footer(), charts.figures)


def comparison_html(comparison: Comparison, price: float | None = None) -> str:
    charts = _Charts()
    names = [name_of(run, number) for number, run in enumerate(comparison.runs, 1)]
    title = f"{len(names)} runs compared"
    body = (
        tag("div", "vLLM Lab · Comparison", "eyebrow")
        + tag("h1", title)
        + _compared_runs(comparison, names)
        + "".join(tag("p", words, "warning") for words in comparison.warnings)
        + "".join(tag("p", words, "soft") for words in comparison.notes)
        + _differences(comparison, names)
        + tag("h2", "Numbers")
        + charts.put(figures.of_runs(names, comparison.points))
        + _changes(comparison, names)
        + "".join(around("section", _run(run, charts, price, level="h2"), css="run") for run in comparison.runs)
        + _definitions(comparison.points)
    )
    return page(title, body + _footer(), charts.figures)


def _run(run: Run, charts: _Charts, price: float | None, level: str) -> str:
    points = points_of(run)
    origin = origin_of(run)
    return "".join(
        (
            tag("div", f"vLLM Lab · {KINDS.get(kind_of(run.kind), run.kind)}", "eyebrow"),
            tag(level, run.title),
            tag("p", f"{moment(run.created_at)} · {run.status} · took {seconds(run.duration_s)}", "soft"),
            tag("p", _machine(run), "soft"),
            tag("p", f"Imported, not measured here: by {origin.name}, from {origin.file}.", "warning")
            if origin
            else "",
            tag("p", text(mapping(run.results).get("error"), 2000), "warning")
            if mapping(run.results).get("error")
            else "",
            _facts(run, points),
            charts.put(figures.of_points(points)),
            _points_table(points),
            _doubts(points),
            _notes(run),
            _cost(run, points, price),
            _conversation(run),
            _context(run),
        )
    )


def _machine(run: Run) -> str:
    return text(mapping(run.environment).get("summary")) or "The machine isn't known."


def _facts(run: Run, points: Sequence[Point]) -> str:
    found = "".join(
        around("div", tag("b", value), tag("span", label), css="fact") for label, value in headline(run, points)
    )
    return around("div", found, css="facts") if found else ""


def _points_table(points: Sequence[Point]) -> str:
    shown = [name for name in MEASURES if any(point.values.get(name) is not None for point in points)]
    if not shown:
        return tag("p", "No numbers were saved.")
    rows = [(MEASURES[name].label, *(_with_spread(point, name) for point in points)) for name in shown]
    return tag("h3", "All numbers") + table(("", *(point.name for point in points)), rows, "numbers")


def _with_spread(point: Point, name: str) -> str:
    words = text_of(name, point.values.get(name))
    repeats = point.repeats.get(name)
    return f"{words} ({spread_words(name, repeats)})" if repeats else words


def _doubts(points: Sequence[Point]) -> str:
    rows = [(doubt.label, point.name, doubt.why) for point in points for doubt in point.doubts]
    return (
        tag("h3", "What speaks against these numbers") + table(("Badge", "Level", "Why"), rows, "plain") if rows else ""
    )


def _notes(run: Run) -> str:
    results = mapping(run.results)
    lines = [line for name in ("notes", "warnings") for line in _texts(results.get(name))]
    lines += [f"Numbers by the definitions of {FORMAT_NAMES.get(convention_of(run), convention_of(run))}."]
    return "".join(tag("p", line, "soft") for line in lines)


def _texts(found: object) -> list[str]:
    return [line for line in found if isinstance(line, str)] if isinstance(found, list) else []


def _cost(run: Run, points: Sequence[Point], price: float | None) -> str:
    if price is None:
        return ""
    per_hour = cost.per_hour_of(run, price)
    rows = [
        (point.name, text_of("throughput_tok_s", point.values.get("throughput_tok_s")), cost.text_of(each))
        for point, each in zip(points, cost.costs(points, per_hour), strict=True)
        if point.values.get("throughput_tok_s") is not None
    ]
    gpus = cost.gpus_of(run)
    basis = f"{price:g} per GPU hour × {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else f"{price:g} per machine hour"
    return (
        tag("h3", "Cost of a million output tokens")
        + table(("Load", "Throughput", "Per million output tokens"), rows, "numbers")
        + tag("p", f"At {basis}, as given by the reader. {PRICE_RULE}", "soft")
    )


def _conversation(run: Run) -> str:
    said = "".join(
        tag("div", turn.get("user") or "", "said user")
        + tag("div", turn.get("assistant") or turn.get("error") or "", "said")
        for turn in turns_of(run)
    )
    return tag("h3", "Conversation") + said if said else ""


def _context(run: Run) -> str:
    parts = {"Configuration": run.config, "Model": run.model, "Environment": run.environment}
    blocks = "".join(
        details(name, tag("pre", json.dumps(json.loads(to_json(found)), indent=2, ensure_ascii=False)[:DATA_LIMIT]))
        for name, found in parts.items()
        if found
    )
    command = details("Command", tag("pre", run.command), shown=True) if run.command else ""
    return tag("h3", "How to repeat it") + command + blocks if command or blocks else ""


def _compared_runs(comparison: Comparison, names: Sequence[str]) -> str:
    rows = [
        (name, run.title, moment(run.created_at), _machine(run), run.id)
        for name, run in zip(names, comparison.runs, strict=True)
    ]
    return table(("Run", "What", "When", "Machine", "Id"), rows, "plain")


def _differences(comparison: Comparison, names: Sequence[str]) -> str:
    if not comparison.differences:
        return tag("h2", "What differs") + tag("p", "Configuration, model and environment are the same.")
    rows = [
        (one.name, *(value if value is not None else "—" for value in one.values)) for one in comparison.differences
    ]
    return tag("h2", "What differs") + table(("", *names), rows, "plain")


def _changes(comparison: Comparison, names: Sequence[str]) -> str:
    if not comparison.rows:
        return tag("p", "No number is known of two of these runs at the same load.")
    return "".join(_changes_at(comparison, names)) + tag("p", f"Changes are against {names[0]}. {SPREAD_RULE}", "soft")


def _changes_at(comparison: Comparison, names: Sequence[str]) -> Iterator[str]:
    for point in dict.fromkeys(row.point for row in comparison.rows):
        rows = []
        for row in (row for row in comparison.rows if row.point == point):
            others = [
                f"{text_of(row.metric, value)} {change_words(row.metric, change)}".strip()
                for value, change in zip(row.values[1:], row.changes, strict=True)
            ]
            rows.append((MEASURES[row.metric].label, text_of(row.metric, row.values[0]), *others))
        yield tag("h3", point) + table(("", *names), rows, "numbers")


SPREAD_RULE = (
    "“Beyond the spread”: the ranges of the repeats don't overlap (of three repeats each, chance alone does that one "
    "time in ten). “Within the spread”: they do. Without repeats it isn't known."
)


def _definitions(points: Sequence[Sequence[Point]]) -> str:
    known = {name for each in points for point in each for name, value in point.values.items() if value is not None}
    terms = dict.fromkeys(MEASURES[name].term for name in MEASURES if name in known and MEASURES[name].term)
    rows = [(term, METRIC_HELP[term].replace("*", "").replace("`", "")) for term in terms if term in METRIC_HELP]
    return details("Definitions of this lab", table(("Measure", "Definition"), rows, "plain")) if rows else ""


def _footer() -> str:
    return tag("footer", "Made by vLLM Lab. This file is complete: it needs no network. “—” is what isn't known.")


def ratio_of(run: Run) -> float | None:
    """vLLM's speed as a multiple of Hugging Face's; None for anything but a whole comparison."""
    try:
        return CompareResults.from_dict(mapping(run.results)).ratio if kind_of(run.kind) == "compare" else None
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
