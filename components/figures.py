"""Pure figure builders: values in, a Plotly figure out. Every axis has a title with its unit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import plotly.graph_objects as go

from components import palette
from engine.compare_results import MODE_LABELS, Level

MODE_DASH = {"sequential": "solid", "static_batch": "dash", "concurrent": "solid"}
MODE_SYMBOL = {"sequential": "circle", "static_batch": "square", "concurrent": "diamond"}
TITLE_FONT = {"size": 14}


def layout(figure: go.Figure, x_title: str, y_title: str, height: int) -> go.Figure:
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 12, "b": 8},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 14}},
        hovermode="x unified",
        font={"size": 14},
    )
    text = {"tickfont": TITLE_FONT, "automargin": True}
    figure.update_xaxes(title={"text": x_title, "font": TITLE_FONT}, showgrid=False, **text)
    figure.update_yaxes(title={"text": y_title, "font": TITLE_FONT}, rangemode="tozero", **text)
    return figure


NameOf = Callable[[str], str]


def level_name(engine: str, mode: str, name_of: NameOf = palette.name) -> str:
    return f"{name_of(engine)}, {MODE_LABELS.get(str(mode), str(mode))}"


def levels_figure(levels: Iterable[Level], name_of: NameOf = palette.name) -> go.Figure:
    """Throughput (tok/s) against users, one line per engine and way of serving."""
    groups: dict[tuple[str, str], list[Level]] = defaultdict(list)
    for level in levels:
        groups[(level.engine, str(level.mode))].append(level)
    figure = go.Figure()
    for (engine, mode), members in groups.items():
        members = sorted((m for m in members if m.throughput_tok_s is not None), key=lambda level: level.users)
        figure.add_trace(
            go.Scatter(
                x=[m.users for m in members],
                y=[m.throughput_tok_s for m in members],
                name=level_name(engine, mode, name_of),
                mode="lines+markers",
                line={"color": palette.colour(engine), "width": 4, "dash": MODE_DASH.get(mode, "solid")},
                marker={"size": 10, "symbol": MODE_SYMBOL.get(mode, "circle")},
                error_y=_spread(members),
                hovertemplate="%{y:,.0f} tok/s",
            )
        )
    users = sorted({level.users for members in groups.values() for level in members})
    figure.update_xaxes(tickvals=users)
    return layout(figure, "Users at the same time", "Throughput (tok/s)", 340)


def _spread(members: Sequence[Level]) -> dict[str, object] | None:
    if not members or any(m.spread is None for m in members):
        return None
    middle = [m.throughput_tok_s or 0 for m in members]
    return {
        "type": "data",
        "array": [m.spread[1] - y for m, y in zip(members, middle, strict=True) if m.spread],
        "arrayminus": [y - m.spread[0] for m, y in zip(members, middle, strict=True) if m.spread],
        "thickness": 1.5,
    }


def gaps_figure(gaps_ms: Sequence[float]) -> go.Figure:
    """Every gap between two chunks of an answer (ms), in order."""
    figure = go.Figure(
        go.Bar(
            x=list(range(2, len(gaps_ms) + 2)),
            y=list(gaps_ms),
            marker={"color": palette.colour("vllm"), "line": {"width": 0}},
            hovertemplate="chunk %{x}: %{y:.1f} ms<extra></extra>",
        )
    )
    figure.update_layout(bargap=0.15, showlegend=False)
    figure = layout(figure, "Chunk of the answer", "Gap before it (ms)", 170)
    figure.update_layout(hovermode="closest")
    return figure


def levels_alt(levels: Iterable[Level], name_of: NameOf = palette.name) -> str:
    """The chart in words."""
    parts = [
        f"{level_name(level.engine, str(level.mode), name_of)}, {users_words(level.users)}: "
        f"{level.throughput_tok_s:,.0f} tok/s"
        for level in levels
        if level.throughput_tok_s is not None
    ]
    return "Throughput against users. " + "; ".join(parts)


def users_words(users: int) -> str:
    return "1 user" if users == 1 else f"{users} users"


def gaps_alt(gaps_ms: Sequence[float]) -> str:
    if not gaps_ms:
        return "No gaps between chunks yet."
    ordered = sorted(gaps_ms)
    middle, longest = ordered[len(ordered) // 2], ordered[-1]
    return f"{len(gaps_ms)} gaps between chunks, middle one {middle:.1f} ms, longest {longest:.1f} ms."
