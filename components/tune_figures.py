"""Figures of a study: trials in, a Plotly figure out, and each in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from components import palette
from components.figures import TITLE_FONT, layout
from components.format import millis, percent, short, speed
from engine.tuning.knobs import KNOBS
from engine.tuning.study import Trial

MOST_BARS = 12
BAR_PX, AXIS_PX = 38, 90
PARETO_PX = 420
LABEL_FONT = {"size": 15}
KNOB_NAMES = {knob.name: knob.label for knob in KNOBS}


def measured(trials: Sequence[Trial]) -> list[Trial]:
    """Those with throughput and TTFT, the most throughput first."""
    whole = [t for t in trials if t.level and t.level.throughput_tok_s is not None and t.level.ttft_ms]
    return sorted(whole, key=lambda trial: trial.level.throughput_tok_s or 0.0 if trial.level else 0.0, reverse=True)


def bars_figure(trials: Sequence[Trial], chosen: int | None) -> go.Figure:
    """Throughput (tok/s) and TTFT p95 (ms) of each configuration, side by side; the recommended one is full colour."""
    shown = measured(trials)[:MOST_BARS]
    names = [f"{trial.name} ★" if trial.number == chosen else trial.name for trial in shown]
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.06)
    for column, (measure, values, show) in enumerate(
        (("throughput", [_speed(t) for t in shown], short), ("ttft", [_ttft(t) for t in shown], millis)), start=1
    ):
        figure.add_bar(
            x=values,
            y=names,
            orientation="h",
            text=[show(value) for value in values],
            textposition="outside",
            textfont=LABEL_FONT,
            cliponaxis=False,
            marker={
                "color": palette.MEASURES[measure],
                "opacity": [1.0 if chosen in (None, trial.number) else 0.55 for trial in shown],
            },
            hovertemplate="%{y}: %{x:,.0f}<extra></extra>",
            row=1,
            col=column,
        )
    figure = layout(figure, "", "", AXIS_PX + BAR_PX * len(shown))
    for column, title in enumerate(("Throughput (tok/s)", "TTFT p95 (ms)"), start=1):
        figure.update_xaxes(title={"text": title, "font": TITLE_FONT}, rangemode="tozero", row=1, col=column)
    figure.update_yaxes(autorange="reversed", rangemode="normal")
    figure.update_layout(showlegend=False, hovermode="closest", bargap=0.3, margin={"r": 60})
    return figure


def pareto_figure(
    trials: Sequence[Trial], front: Sequence[int], chosen: int | None, limit_ms: float | None
) -> go.Figure:
    """Throughput (tok/s) against TTFT p95 (ms): up and to the left is better. ``limit_ms``: the SLO's TTFT."""
    shown = measured(trials)
    figure = go.Figure()
    on = sorted((t for t in shown if t.number in front), key=_ttft)
    figure.add_scatter(
        x=[_ttft(t) for t in on],
        y=[_speed(t) for t in on],
        name="Pareto front",
        mode="lines+markers",
        line={"color": palette.MEASURES["throughput"], "width": 4, "shape": "hv"},
        marker={"size": 13},
        hovertext=[t.name for t in on],
        hovertemplate="%{hovertext}<br>%{y:,.0f} tok/s at %{x:,.0f} ms<extra></extra>",
    )
    rest = [t for t in shown if t.number not in front]
    figure.add_scatter(
        x=[_ttft(t) for t in rest],
        y=[_speed(t) for t in rest],
        name="Beaten by another",
        mode="markers",
        marker={"size": 11, "color": palette.NEUTRAL},
        hovertext=[t.name for t in rest],
        hovertemplate="%{hovertext}<br>%{y:,.0f} tok/s at %{x:,.0f} ms<extra></extra>",
    )
    for trial in (t for t in shown if t.number == chosen):
        figure.add_scatter(
            x=[_ttft(trial)],
            y=[_speed(trial)],
            name=f"Recommended: {trial.name}",
            mode="markers",
            marker={"size": 26, "symbol": "star", "color": palette.MARK, "line": {"width": 1}},
            hoverinfo="skip",
        )
    if limit_ms is not None:
        figure.add_vline(
            limit_ms,
            line={"color": palette.NEUTRAL, "width": 3, "dash": "dash"},
            annotation={"text": f"SLO: {limit_ms:g} ms", "font": LABEL_FONT},
        )
    figure = layout(figure, "TTFT p95 (ms), less is better", "Throughput (tok/s), more is better", PARETO_PX)
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(rangemode="tozero")
    return figure


def importance_figure(importance: Mapping[str, float]) -> go.Figure:
    """Share (%) of each setting in what sets the better half of the trials apart."""
    ranked = sorted(importance.items(), key=lambda item: item[1], reverse=True)
    figure = go.Figure(
        go.Bar(
            x=[100 * share for _, share in ranked],
            y=[knob_name(name) for name, _ in ranked],
            orientation="h",
            text=[percent(share) for _, share in ranked],
            textposition="outside",
            textfont={"size": 18},
            cliponaxis=False,
            marker={"color": palette.MEASURES["throughput"]},
            hovertemplate="%{y}: %{x:.0f}%<extra></extra>",
        )
    )
    figure = layout(figure, "Share in what sets the better half apart (%)", "", AXIS_PX + BAR_PX * 1.4 * len(ranked))
    figure.update_yaxes(autorange="reversed", rangemode="normal")
    figure.update_xaxes(range=[0, 105])
    figure.update_layout(hovermode="closest", bargap=0.35, margin={"r": 40})
    return figure


def knob_name(name: str) -> str:
    return f"{KNOB_NAMES[name]} ({name})" if name in KNOB_NAMES else name


def _speed(trial: Trial) -> float | None:
    return trial.level.throughput_tok_s if trial.level else None


def _ttft(trial: Trial) -> float:
    return trial.level.ttft_ms.p95 if trial.level and trial.level.ttft_ms else float("nan")


def trials_alt(trials: Sequence[Trial]) -> str:
    parts = (f"{trial.name}: {speed(_speed(trial))}, TTFT p95 {millis(_ttft(trial))}" for trial in measured(trials))
    return "Throughput and TTFT of each configuration. " + "; ".join(parts)


def importance_alt(importance: Mapping[str, float]) -> str:
    ranked = sorted(importance.items(), key=lambda item: item[1], reverse=True)
    return "What matters. " + "; ".join(f"{knob_name(name)}: {percent(share)}" for name, share in ranked)
