"""One panel of the dashboard as a Plotly figure: its lines, the events, and where an alert held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any

import plotly.graph_objects as go

from components import palette
from components.format import short
from engine.telemetry.alerts import Span
from engine.telemetry.marks import Mark, MarkKind
from engine.telemetry.panels import Line, Panel
from engine.telemetry.window import Window

Part = dict[str, Any]  # of a Plotly figure
HEIGHT = 230
SECONDS_SHOWN_S = 60
# Labels nearer to each other than this share of the axis would run into one another.
LABEL_SHARE = 0.035
MOST_LABEL_CHARS = 34
ALERT_COLOUR = "#D43A3A"
MARK_COLOURS = {
    "server": palette.COLOURS["vllm_eager"],
    "problem": ALERT_COLOUR,
    "load": palette.NEUTRAL,
    "warm_up": palette.NEUTRAL,
}
LINE_COLOURS = {
    "generation_tok_s": palette.MEASURES["throughput"],
    "prompt_tok_s": palette.MEASURES["ttft"],
    "running": palette.PHASES["decode"],
    "waiting": palette.PHASES["queued"],
    "kv_usage_percent": palette.PAGED,
    "prefix_hit_percent": palette.MEASURES["goodput"],
    "preemptions_per_s": ALERT_COLOUR,
    "host_busy_cores": palette.NEUTRAL,
    "host_memory_gb": palette.NEUTRAL,
    "client_busy_cores": palette.MEASURES["tpot"],
}
QUANTILE_DASH = {"p50": "solid", "p95": "dash", "p99": "dot"}
EACH = ("#8F5BD8", "#2477D4", "#089A78", "#DB6B0B", "#B07D00", "#0A87B8", "#6AA300", "#635CE5")


def panel_figure(
    panel: Panel,
    window: Window,
    marks: Sequence[Mark],
    spans: Sequence[Span],
    zone: tzinfo,
    names: Mapping[str, str] | None = None,
) -> go.Figure:
    """``names`` are of GPUs, by UUID. Where nothing is known the line has a gap; nothing is drawn across it."""
    lines = list(expanded(panel, window, names or {}))
    times = [_clock(point.at_s, zone) for point in window.points]
    traces = [
        {
            "type": "scatter",
            "x": times,
            "y": [point.get(key) for point in window.points],
            "name": label,
            "mode": "lines",
            "connectgaps": False,
            "line": _style(panel, line, number),
            "hovertemplate": "%{y:,.3~g} " + panel.unit,
        }
        for number, (key, label, line) in enumerate(lines)
    ]
    several = len(lines) > 1
    # All at once: Plotly checks a figure again with every later change, which made it ten times slower.
    return go.Figure(
        {
            "data": traces,
            "layout": {
                "height": HEIGHT,
                "margin": {"l": 0, "r": 0, "t": 30 if several else 8, "b": 0},
                "font": {"size": 14},
                "hovermode": "x unified",
                "showlegend": several,
                "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}},
                "uirevision": f"{panel.key} {window.seconds}",
                "xaxis": _time_axis(window, zone),
                "yaxis": _value_axis(panel, window),
                "shapes": [*_shades(panel, spans, window, zone), *_lines_of(marks, zone)],
                "annotations": _labels(marks, window, zone),
            },
        }
    )


def expanded(panel: Panel, window: Window, names: Mapping[str, str]) -> Iterator[tuple[str, str, Line]]:
    """Every line with its values' key and its label: one for each GPU or process that was seen."""
    seen = sorted({key for point in window.points for key in point.values})
    for line in panel.lines:
        if not line.each:
            if line.key in seen or panel.source == "server":
                yield line.key, line.label, line
            continue
        for key in seen:
            kind, _, which = key.partition(":")
            if kind == line.key:
                yield key, names.get(which, which), line


def has_values(panel: Panel, window: Window) -> bool:
    return any(point.highest(line.key) is not None for point in window.points for line in panel.lines)


def panel_alt(panel: Panel, window: Window, names: Mapping[str, str] | None = None) -> str:
    """The chart in words: the newest value of each line."""
    last = window.points[-1] if window.points else None
    parts = [
        f"{label} {short(last.get(key) if last else None)} {panel.unit}"
        for key, label, _ in expanded(panel, window, names or {})
    ]
    return f"{panel.title} over the last {window.seconds // 60} min. Now: " + ("; ".join(parts) or "nothing known")


def _style(panel: Panel, line: Line, number: int) -> dict[str, object]:
    if line.label in QUANTILE_DASH:
        colour = palette.MEASURES.get({"itl": "tpot"}.get(panel.key, panel.key), palette.PHASES["queued"])
        return {"color": colour, "width": 2.5, "dash": QUANTILE_DASH[line.label]}
    return {"color": LINE_COLOURS.get(line.key) or EACH[number % len(EACH)], "width": 2.5}


def _time_axis(window: Window, zone: tzinfo) -> Part:
    return {
        "type": "date",
        "range": [_clock(at_s, zone) for at_s in (window.from_s, window.to_s)],
        "nticks": 5,
        "showgrid": False,
        "tickformat": "%H:%M:%S" if window.seconds <= SECONDS_SHOWN_S else "%H:%M",
        "hoverformat": "%H:%M:%S",
        "automargin": True,
    }


def _value_axis(panel: Panel, window: Window) -> Part:
    """Shares end at 100%. A line at nought alone would be drawn in the middle: then the axis ends at 1."""
    axis: Part = {"title": {"text": panel.unit}, "rangemode": "tozero", "nticks": 4, "automargin": True}
    highest = max((point.highest(line.key) or 0.0 for point in window.points for line in panel.lines), default=0.0)
    top = 103 if panel.unit == "%" else 1 if highest <= 0 else None
    return axis if top is None else axis | {"range": [0, top]}


def _shades(panel: Panel, spans: Sequence[Span], window: Window, zone: tzinfo) -> list[Part]:
    """Where an alert of this panel held."""
    return [
        {
            "type": "rect",
            "x0": _clock(max(window.from_s, span.from_s - window.step_s / 2), zone),
            "x1": _clock(min(window.to_s, span.to_s + window.step_s / 2), zone),
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "fillcolor": ALERT_COLOUR,
            "opacity": 0.16,
            "line": {"width": 0},
            "layer": "below",
        }
        for span in spans
        if span.alert.panel == panel.key
    ]


def _lines_of(marks: Sequence[Mark], zone: tzinfo) -> list[Part]:
    return [
        {
            "type": "line",
            "x0": (when := _clock(mark.at_s, zone)),
            "x1": when,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "line": {"color": _colour(mark), "width": 1, "dash": "dot"},
        }
        for mark in marks
    ]


def _labels(marks: Sequence[Mark], window: Window, zone: tzinfo) -> list[Part]:
    """Words at the lines, where they don't run into the ones before; warm-ups have none."""
    found: list[Part] = []
    labelled_s = float("-inf")
    for mark in marks:
        if mark.kind == MarkKind.WARM_UP or mark.at_s - labelled_s < LABEL_SHARE * window.seconds:
            continue
        labelled_s = mark.at_s
        found.append(
            {
                "x": _clock(mark.at_s, zone),
                "y": 1,
                "yref": "paper",
                "text": _safe(mark.text),
                "textangle": -90,
                "showarrow": False,
                "xanchor": "right",
                "yanchor": "top",
                "font": {"size": 11, "color": _colour(mark)},
            }
        )
    return found


def _colour(mark: Mark) -> str:
    return MARK_COLOURS[str(mark.kind)]


def _clock(at_s: float, zone: tzinfo) -> datetime:
    """The viewer's wall clock, without its zone: Plotly would turn it into UTC."""
    return datetime.fromtimestamp(at_s, zone).replace(tzinfo=None)


def _safe(text: str) -> str:
    """Plotly reads a little HTML: text from outside has none of it."""
    text = text if len(text) <= MOST_LABEL_CHARS else text[: MOST_LABEL_CHARS - 1] + "…"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
