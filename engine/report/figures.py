"""The charts of a report as Plotly's own JSON: plain dictionaries, drawn by whoever has Plotly.

Text from outside is escaped: Plotly reads some HTML in names and labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from engine.report.measures import MEASURES, text_of
from engine.report.points import Point
from engine.units import short

# The same colours as in the app (``components/palette.py``; a test holds the two together).
ENGINE_COLOURS = {
    "vllm": "#2477D4",
    "hf": "#DB6B0B",
    "vllm_eager": "#089A78",
    "llamacpp": "#BB3398",
    "transformers": "#857505",
}
OTHER_COLOUR = "#7C8BA1"
THROUGHPUT, TTFT = "#2477D4", "#B07D00"
# One for each compared run, none of them that of an engine; each has a dash of its own too.
RUN_COLOURS = ("#635CE5", "#10A49E", "#DD3B6F", "#6AA300", "#0A87B8", "#7C8BA1")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
AXIS = {"automargin": True, "zeroline": False, "gridcolor": "rgba(124,139,161,0.25)"}
WIDE_RANGE = 24


@dataclass(frozen=True)
class Chart:
    """``figure`` has ``data`` and ``layout``; ``words`` say the same to who can't see it."""

    title: str
    figure: dict[str, Any]
    words: str


def of_points(points: Sequence[Point]) -> list[Chart]:
    """What one run looks like: throughput and TTFT against the load, or a bar an engine."""
    if any(point.engine for point in points):
        return [_engines(points)] if _known(points, "throughput_tok_s") else []
    if any(point.name.startswith("Turn ") for point in points):
        turns = [point for point in points if point.name.startswith("Turn ")]
        return [_line_per_turn(turns)] if _known(turns, "ttft_ms") else []
    return [_load(points)] if _known(points, "throughput_tok_s") else []


def of_runs(names: Sequence[str], points: Sequence[Sequence[Point]]) -> list[Chart]:
    """Runs over each other: one line a run where the load varies, else a group of bars a point."""
    metrics = [name for name in ("throughput_tok_s", *_latency(points)) if any(_known(each, name) for each in points)]
    several = any(sum(point.load is not None and not point.engine for point in each) > 1 for each in points)
    draw = _runs_as_lines if several else _runs_as_bars
    return [draw(metric, names, points) for metric in metrics]


def _latency(points: Sequence[Sequence[Point]]) -> tuple[str, ...]:
    """The first TTFT that all runs know: other tools don't write every percentile."""
    names = ("ttft_p95_ms", "ttft_p99_ms", "ttft_mean_ms", "ttft_ms", "ttft_median_ms")
    return next(((name,) for name in names if all(_known(each, name) for each in points)), ())


def _known(points: Sequence[Point], metric: str) -> bool:
    return any(point.values.get(metric) is not None for point in points)


def _load(points: Sequence[Point]) -> Chart:
    loads = [point.load if point.load is not None else escape(point.name) for point in points]
    speeds = [point.values.get("throughput_tok_s") for point in points]
    latency = next(iter(_latency([points])), None)
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers+text",
            "name": "Throughput (left)",
            "x": loads,
            "y": speeds,
            "text": [short(speed) for speed in speeds],
            "textposition": "top center",
            "cliponaxis": False,
            "line": {"color": THROUGHPUT, "width": 4},
            "marker": {"size": 10},
            "hovertemplate": "%{y:,.0f} tok/s",
        }
    ]
    layout = _layout(_load_title(points), "Throughput (tok/s)")
    if latency:
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"{MEASURES[latency].label} (right)",
                "x": loads,
                "y": [point.values.get(latency) for point in points],
                "yaxis": "y2",
                "line": {"color": TTFT, "width": 3, "dash": "dot"},
                "marker": {"size": 9, "symbol": "diamond"},
                "hovertemplate": "%{y:,.0f} ms",
            }
        )
        layout["yaxis2"] = AXIS | {
            "title": {"text": f"{MEASURES[latency].label} (ms)"},
            "overlaying": "y",
            "side": "right",
            "rangemode": "tozero",
            "tickmode": "auto",
            "showgrid": False,
        }
    _load_axis(layout, loads)
    return Chart("Throughput and waiting time against the load", {"data": data, "layout": layout}, _words(points))


def _engines(points: Sequence[Point]) -> Chart:
    known = [point for point in points if point.values.get("throughput_tok_s") is not None]
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "x": [point.values["throughput_tok_s"] for point in known],
        "y": [escape(point.name) for point in known],
        "text": [short(point.values["throughput_tok_s"]) for point in known],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [ENGINE_COLOURS.get(point.engine, OTHER_COLOUR) for point in known]},
        "hovertemplate": "%{x:,.1f} tok/s<extra></extra>",
    }
    if all("throughput_tok_s" in point.repeats for point in known):
        values = [(point.values["throughput_tok_s"] or 0.0, point.repeats["throughput_tok_s"]) for point in known]
        trace["error_x"] = {
            "type": "data",
            "array": [max(repeats) - middle for middle, repeats in values],
            "arrayminus": [middle - min(repeats) for middle, repeats in values],
            "thickness": 2,
            "color": OTHER_COLOUR,
        }
        trace["textposition"] = "inside"
        trace["insidetextanchor"] = "start"
    layout = _layout("Throughput (tok/s)", "")
    layout |= {"height": 120 + 46 * len(known), "hovermode": "closest", "bargap": 0.35}
    layout["yaxis"] |= {"autorange": "reversed", "rangemode": "normal"}
    layout["xaxis"] |= {"rangemode": "tozero"}
    return Chart("Throughput of each engine", {"data": [trace], "layout": layout}, _words(known))


def _line_per_turn(turns: Sequence[Point]) -> Chart:
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [point.load for point in turns],
        "y": [point.values.get("ttft_ms") for point in turns],
        "line": {"color": TTFT, "width": 3},
        "marker": {"size": 9},
        "hovertemplate": "turn %{x}: %{y:,.0f} ms<extra></extra>",
    }
    layout = _layout("Turn", "TTFT (ms)")
    layout["xaxis"] |= {"tickformat": "d"}
    return Chart("TTFT of each turn", {"data": [trace], "layout": layout}, _words(turns, "ttft_ms"))


def _runs_as_lines(metric: str, names: Sequence[str], points: Sequence[Sequence[Point]]) -> Chart:
    loads = [point.load for each in points for point in each if point.load is not None]
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": escape(name),
            "x": [point.load for point in each],
            "y": [point.values.get(metric) for point in each],
            "line": {"color": RUN_COLOURS[place], "width": 4, "dash": DASHES[place]},
            "marker": {"size": 9},
            "hovertemplate": "%{y:,.1f}",
        }
        for place, (name, each) in enumerate(zip(names, points, strict=True))
    ]
    layout = _layout(_load_title([point for each in points for point in each]), _axis_title(metric))
    _load_axis(layout, sorted(set(loads)))
    return Chart(
        f"{MEASURES[metric].label} against the load", {"data": data, "layout": layout}, _all(metric, names, points)
    )


def _runs_as_bars(metric: str, names: Sequence[str], points: Sequence[Sequence[Point]]) -> Chart:
    data = [
        {
            "type": "bar",
            "name": escape(name),
            "x": [escape(point.name) for point in each],
            "y": [point.values.get(metric) for point in each],
            "text": [short(point.values.get(metric)) for point in each],
            "textposition": "outside",
            "cliponaxis": False,
            "marker": {"color": RUN_COLOURS[place]},
            "hovertemplate": "%{y:,.1f}",
        }
        for place, (name, each) in enumerate(zip(names, points, strict=True))
    ]
    layout = _layout("", _axis_title(metric))
    layout |= {"barmode": "group", "bargap": 0.3, "hovermode": "closest"}
    return Chart(MEASURES[metric].label, {"data": data, "layout": layout}, _all(metric, names, points))


def _layout(x_title: str, y_title: str) -> dict[str, Any]:
    return {
        "height": 380,
        "margin": {"l": 8, "r": 8, "t": 16, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "x unified",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "font": {"size": 14},
        "xaxis": AXIS | {"title": {"text": x_title}, "showgrid": False},
        "yaxis": AXIS | {"title": {"text": y_title}, "rangemode": "tozero"},
    }


def _load_axis(layout: dict[str, Any], loads: Sequence[Any]) -> None:
    known = [load for load in loads if isinstance(load, int | float) and load > 0]
    if len(known) < len(loads) or not known:
        return
    layout["xaxis"] |= {"tickvals": known, "ticktext": [f"{load:g}" for load in known]}
    if max(known) / min(known) > WIDE_RANGE:
        layout["xaxis"] |= {"type": "log"}


def _load_title(points: Sequence[Point]) -> str:
    rates = any("requests/s" in point.name for point in points)
    return "Requests per second, as sent" if rates else "Users at the same time"


def _axis_title(metric: str) -> str:
    measure = MEASURES[metric]
    return f"{measure.label} ({measure.unit})" if measure.unit else measure.label


def _words(points: Sequence[Point], metric: str = "throughput_tok_s") -> str:
    found = [f"{point.name}: {text_of(metric, point.values.get(metric))}" for point in points]
    return f"{MEASURES[metric].label}. " + "; ".join(found)


def _all(metric: str, names: Sequence[str], points: Sequence[Sequence[Point]]) -> str:
    each = [f"{name}: {_words(some, metric)}" for name, some in zip(names, points, strict=True)]
    return ". ".join(each)
