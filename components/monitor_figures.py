"""One panel of the dashboard as a Plotly figure: its lines, the events, and where an alert held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, tzinfo

import plotly.graph_objects as go

from components import palette
from components.figures import layout
from components.format import short
from engine.telemetry.alerts import Span
from engine.telemetry.marks import Mark, MarkKind
from engine.telemetry.panels import Line, Panel
from engine.telemetry.window import Window

HEIGHT = 230
SECONDS_SHOWN_S = 60
# Labels nearer to each other than this share of the axis would run into one another.
LABEL_SHARE = 0.035
MOST_LABEL_CHARS = 34
ALERT_COLOUR = "#D43A3A"
MARK_COLOURS = {"server": "#0B7D5E", "problem": ALERT_COLOUR, "load": palette.NEUTRAL, "warm_up": palette.NEUTRAL}
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
    times = [_clock(point.at_s, zone) for point in window.points]
    figure = go.Figure()
    for number, (key, label, line) in enumerate(expanded(panel, window, names or {})):
        figure.add_trace(
            go.Scatter(
                x=times,
                y=[point.get(key) for point in window.points],
                name=label,
                mode="lines",
                connectgaps=False,
                line=_style(panel, line, number),
                hovertemplate="%{y:,.3~g} " + panel.unit,
            )
        )
    layout(figure, "", panel.unit, HEIGHT)
    figure.update_layout(
        uirevision=f"{panel.key} {window.seconds}",
        showlegend=len(figure.data) > 1,
        margin={"l": 0, "r": 0, "t": 30 if len(figure.data) > 1 else 8, "b": 0},
        title=None,
        legend={"font": {"size": 12}},
    )
    figure.update_xaxes(
        range=[_clock(at_s, zone) for at_s in (window.from_s, window.to_s)],
        type="date",
        title=None,
        nticks=5,
        tickformat="%H:%M:%S" if window.seconds <= SECONDS_SHOWN_S else "%H:%M",
        hoverformat="%H:%M:%S",
    )
    figure.update_yaxes(nticks=4)
    _limit_below(figure, panel, window)
    _shade(figure, panel, spans, window, zone)
    _mark(figure, marks, window, zone)
    return figure


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


def _limit_below(figure: go.Figure, panel: Panel, window: Window) -> None:
    """A line at nought alone would be drawn in the middle; shares end at 100%."""
    if panel.unit == "%":
        figure.update_yaxes(range=[0, 103])
        return
    highest = max((point.highest(line.key) or 0.0 for point in window.points for line in panel.lines), default=0.0)
    if highest <= 0:
        figure.update_yaxes(range=[0, 1])


def _shade(figure: go.Figure, panel: Panel, spans: Sequence[Span], window: Window, zone: tzinfo) -> None:
    for span in spans:
        if span.alert.panel == panel.key:
            figure.add_vrect(
                x0=_clock(max(window.from_s, span.from_s - window.step_s / 2), zone),
                x1=_clock(min(window.to_s, span.to_s + window.step_s / 2), zone),
                fillcolor=ALERT_COLOUR,
                opacity=0.16,
                line_width=0,
                layer="below",
            )


def _mark(figure: go.Figure, marks: Sequence[Mark], window: Window, zone: tzinfo) -> None:
    labelled_s = float("-inf")
    for mark in marks:
        when = _clock(mark.at_s, zone)
        colour = MARK_COLOURS[MarkKind(str(mark.kind)).value]
        figure.add_shape(
            type="line", x0=when, x1=when, y0=0, y1=1, yref="paper", line={"color": colour, "width": 1, "dash": "dot"}
        )
        if mark.kind == MarkKind.WARM_UP or mark.at_s - labelled_s < LABEL_SHARE * window.seconds:
            continue
        labelled_s = mark.at_s
        figure.add_annotation(
            x=when,
            y=1,
            yref="paper",
            text=_safe(mark.text),
            textangle=-90,
            showarrow=False,
            xanchor="right",
            yanchor="top",
            font={"size": 11, "color": colour},
        )


def _clock(at_s: float, zone: tzinfo) -> datetime:
    """The viewer's wall clock, without its zone: Plotly would turn it into UTC."""
    return datetime.fromtimestamp(at_s, zone).replace(tzinfo=None)


def _safe(text: str) -> str:
    """Plotly reads a little HTML: text from outside has none of it."""
    text = text if len(text) <= MOST_LABEL_CHARS else text[: MOST_LABEL_CHARS - 1] + "…"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
