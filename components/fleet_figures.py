"""One line per target over the last minutes; where a target said nothing, its line has a gap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape

import plotly.graph_objects as go

from components import palette
from components.figures import layout
from engine.fleet import Moment, TargetView

COLOURS = (*palette.COLOURS.values(), palette.MARK, palette.NEUTRAL)
DASHES = ("solid", "dash", "dot", "dashdot")


def lines(targets: Sequence[TargetView], title: str, value: Callable[[Moment], float | None]) -> go.Figure:
    """Time (s ago is to the left) against what ``value`` takes of a moment."""
    figure = go.Figure()
    for index, target in enumerate(targets):
        round_, colour = divmod(index, len(COLOURS))
        figure.add_scatter(
            x=[datetime.fromtimestamp(moment.at_s, UTC) for moment in target.moments],
            y=[value(moment) for moment in target.moments],
            name=escape(target.name),  # Plotly takes a few tags for markup
            mode="lines",
            line={"width": 3, "color": COLOURS[colour], "dash": DASHES[round_ % len(DASHES)]},
            hovertemplate="%{y:,.1f}",
        )
    figure = layout(figure, "", title, 300)
    figure.update_layout(showlegend=True, uirevision="fleet")
    return figure


def percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
