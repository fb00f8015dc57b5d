"""Figures of a load test: levels in, a Plotly figure out, and each in words."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from components import palette
from components.figures import layout
from components.format import millis, percent, short, speed
from components.load_values import LAB, MEASURES, load_of, value_of
from engine.load.results import LevelResult
from engine.metrics import Slo

HEIGHT = 400
LABEL_FONT = {"size": 15}
# A wider range is drawn on a logarithmic axis: else the small loads would be one point.
WIDE_RANGE = 24
WIDE_SPREAD = 60
SHARES_PCT = (0, 25, 50, 75, 90, 100)


def name_of(level: LevelResult) -> str:
    """A label as text: Plotly reads some HTML."""
    return escape(level.label)


def load_figure(
    levels: Sequence[LevelResult], knee: int | None, x_title: str, part: str = "p95", convention: str = LAB
) -> go.Figure:
    """Throughput (tok/s, left) and TTFT (ms, right) against the load; the knee is marked."""
    loads = [load_of(level) for level in levels]
    speeds = [value_of(level, "throughput_tok_s", convention) for level in levels]
    figure = go.Figure()
    figure.add_scatter(
        x=loads,
        y=speeds,
        name="Throughput (left)",
        mode="lines+markers+text",
        text=[short(value) for value in speeds],
        textposition=["bottom right" if place == knee else "top center" for place in range(len(levels))],
        textfont=LABEL_FONT,
        line={"color": palette.MEASURES["throughput"], "width": 5},
        marker={"size": 12},
        cliponaxis=False,
        hovertemplate="%{y:,.0f} tok/s",
    )
    for which, dash, width in (("p50", "solid", 3), (part, "dot", 3)):
        figure.add_scatter(
            x=loads,
            y=[value_of(level, f"ttft_{which}_ms", convention) for level in levels],
            name=f"TTFT {which} (right)",
            mode="lines+markers",
            line={"color": palette.MEASURES["ttft"], "width": width, "dash": dash},
            marker={"size": 9, "symbol": "diamond"},
            yaxis="y2",
            hovertemplate="%{y:,.0f} ms",
        )
    if knee is not None and speeds[knee] is not None:
        figure.add_trace(_knee(loads[knee], speeds[knee], name_of(levels[knee])))
    figure = layout(figure, x_title, "Throughput (tok/s)", HEIGHT)
    figure.update_layout(
        yaxis2={
            "title": {"text": "TTFT (ms)", "font": {"size": 14}},
            "tickfont": {"size": 14},
            "overlaying": "y",
            "side": "right",
            "rangemode": "tozero",
            "tickmode": "auto",
            "showgrid": False,
            "automargin": True,
        }
    )
    return _load_axis(figure, loads)


def _knee(load: float | None, speed_tok_s: float | None, label: str) -> go.Scatter:
    return go.Scatter(
        x=[load],
        y=[speed_tok_s],
        name=f"Knee: {label}",
        mode="markers",
        marker={"size": 30, "symbol": "circle-open", "color": palette.MEASURES["throughput"], "line": {"width": 3}},
        hoverinfo="skip",
    )


def _load_axis(figure: go.Figure, loads: Sequence[float | None]) -> go.Figure:
    known = sorted({load for load in loads if load})
    figure.update_xaxes(tickvals=known, ticktext=[f"{load:g}" for load in known])
    if len(known) > 1 and known[-1] / known[0] > WIDE_RANGE:
        figure.update_xaxes(type="log")
    return figure


def distribution_figure(levels: Sequence[LevelResult], measure: str, limit_ms: float | None) -> go.Figure:
    """Share of requests (%) that were at least as fast as a time (ms), a line a level.

    Points are joined as the percentiles interpolate, so that a percentile can be read off: p95 is where a line
    crosses 95%.
    """
    figure = go.Figure()
    spread: list[float] = []
    for place, level in enumerate(levels):
        times_ms = samples_ms(level, measure)
        spread += times_ms
        figure.add_scatter(
            x=times_ms,
            y=[100 * rank / max(1, len(times_ms) - 1) for rank in range(len(times_ms))],
            name=name_of(level),
            mode="lines" if len(times_ms) > 1 else "markers",
            line={"color": palette.load(place, len(levels)), "width": 4},
            hovertemplate="%{y:.0f}% within %{x:,.0f} ms" if measure != "tpot" else "%{y:.0f}% within %{x:,.1f} ms",
        )
    if limit_ms is not None:
        figure.add_scatter(
            x=[limit_ms, limit_ms],
            y=[0, 100],
            name=f"SLO: {limit_ms:g} ms",
            mode="lines",
            line={"color": palette.NEUTRAL, "width": 3, "dash": "dash"},
            hoverinfo="skip",
        )
    unit = "ms/token" if measure == "tpot" else "ms"
    figure = layout(figure, f"{MEASURES[measure]} ({unit})", "Requests within this time (%)", HEIGHT)
    figure.update_layout(hovermode="closest")
    figure.update_yaxes(tickvals=SHARES_PCT, range=[0, 103])
    wide = bool(spread) and min(spread) > 0 and max(spread) / min(spread) > WIDE_SPREAD
    figure.update_xaxes(**({"type": "log"} if wide else {"rangemode": "tozero"}))
    return figure


def samples_ms(level: LevelResult, measure: str) -> list[float]:
    """The measure of every finished request that was kept, in order."""
    times = (getattr(sample, f"{measure}_ms") for sample in level.samples if sample.ok)
    return sorted(time_ms for time_ms in times if time_ms is not None)


def tradeoff_figure(
    levels: Sequence[LevelResult], knee: int | None, part: str = "p95", convention: str = LAB
) -> go.Figure:
    """Time of a whole answer (E2E, ms) against throughput (tok/s), level by level."""
    figure = go.Figure()
    speeds = [value_of(level, "throughput_tok_s", convention) for level in levels]
    for which, dash in (("p50", "solid"), (part, "dot")):
        first = which == "p50"
        times_ms = [value_of(level, f"e2e_{which}_ms", convention) for level in levels]
        figure.add_scatter(
            x=speeds,
            y=times_ms,
            name=f"E2E {which}",
            mode="lines+markers+text" if first else "lines+markers",
            text=[name_of(level) for level in levels] if first else None,
            textposition="bottom right",
            textfont=LABEL_FONT,
            line={"color": palette.MEASURES["e2e"], "width": 4 if first else 3, "dash": dash},
            marker={"size": 11 if first else 9},
            cliponaxis=False,
            hovertemplate="%{x:,.0f} tok/s, %{y:,.0f} ms",
        )
        if first and knee is not None and times_ms[knee] is not None:
            figure.add_scatter(
                x=[speeds[knee]],
                y=[times_ms[knee]],
                name=f"Knee: {name_of(levels[knee])}",
                mode="markers",
                marker={"size": 28, "symbol": "circle-open", "color": palette.MEASURES["e2e"], "line": {"width": 3}},
                hoverinfo="skip",
            )
    figure = layout(figure, "Throughput (tok/s)", "Time of a whole answer, E2E (ms)", HEIGHT)
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(range=[0, 1.15 * max((tok_s for tok_s in speeds if tok_s), default=1.0)])
    return figure


def goodput_figure(levels: Sequence[LevelResult], x_title: str) -> go.Figure:
    """Requests per second that met every limit, inside all that were answered; the share of requests in words."""
    names = [f"{load:g}" if (load := load_of(level)) is not None else name_of(level) for level in levels]
    figure = go.Figure()
    figure.add_bar(
        x=names,
        y=[level.throughput_req_s for level in levels],
        name="All answered",
        marker={"color": palette.NEUTRAL, "opacity": 0.4},
        hovertemplate="%{y:.2f} requests/s answered<extra></extra>",
    )
    figure.add_bar(
        x=names,
        y=[level.goodput_req_s for level in levels],
        name="Within the SLO",
        marker={"color": palette.MEASURES["goodput"]},
        text=[share(level.goodput_pct) for level in levels],
        textposition="outside",
        textfont={"size": 18},
        cliponaxis=False,
        hovertemplate="%{y:.2f} requests/s within the SLO<extra></extra>",
    )
    figure = layout(figure, x_title, "Requests per second", HEIGHT)
    figure.update_layout(barmode="overlay", bargap=0.45, hovermode="closest")
    figure.update_xaxes(type="category")
    return figure


def share(pct: float | None) -> str:
    return percent(None if pct is None else pct / 100)


def slo_words(slo: Slo) -> str:
    """“TTFT ≤ 500 ms and TPOT ≤ 100 ms”; empty without limits."""
    limits = {"TTFT": slo.ttft_ms, "TPOT": slo.tpot_ms, "E2E": slo.e2e_ms}
    return " and ".join(f"{name} ≤ {limit:g} ms" for name, limit in limits.items() if limit is not None)


def load_alt(levels: Sequence[LevelResult], knee: int | None, part: str = "p95", convention: str = LAB) -> str:
    parts = [
        f"{level.label}: {speed(value_of(level, 'throughput_tok_s', convention))}, "
        f"TTFT {part} {millis(value_of(level, f'ttft_{part}_ms', convention))}"
        for level in levels
    ]
    end = f". The knee is at {levels[knee].label}" if knee is not None else ""
    return "Throughput and TTFT against the load. " + "; ".join(parts) + end


def distribution_alt(levels: Sequence[LevelResult], measure: str) -> str:
    parts = [
        f"{level.label}: half within {millis(value_of(level, f'{measure}_p50_ms'))}, "
        f"95% within {millis(value_of(level, f'{measure}_p95_ms'))}"
        for level in levels
    ]
    return f"Distribution of {MEASURES[measure]}. " + "; ".join(parts)


def tradeoff_alt(levels: Sequence[LevelResult], part: str = "p95", convention: str = LAB) -> str:
    parts = [
        f"{level.label}: {speed(value_of(level, 'throughput_tok_s', convention))} at "
        f"E2E {part} {millis(value_of(level, f'e2e_{part}_ms', convention))}"
        for level in levels
    ]
    return "Time of an answer against throughput. " + "; ".join(parts)


def goodput_alt(levels: Sequence[LevelResult]) -> str:
    parts = [f"{level.label}: {short(level.goodput_req_s)} requests/s, {share(level.goodput_pct)}" for level in levels]
    return "Goodput against the load. " + "; ".join(parts)
