"""The figure of “How many fit?”: users on each card, paged beside contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from components import palette
from components.figures import layout
from components.format import number

SIDES = (("paged", "Paged", palette.PAGED), ("contiguous", "Contiguous", palette.NEUTRAL))
OTHERS_OPACITY = 0.55


@dataclass(frozen=True)
class Users:
    """How many fit on a card; None is unknown or refused."""

    card: str
    paged: int | None
    contiguous: int | None
    chosen: bool = False


def users_figure(users: Sequence[Users]) -> go.Figure:
    """Two bars a card; the chosen card stands out."""
    figure = go.Figure()
    for side, name, colour in SIDES:
        values = [getattr(one, side) for one in users]
        figure.add_bar(
            x=[one.card for one in users],
            y=values,
            name=name,
            marker={
                "color": colour,
                "opacity": [1.0 if one.chosen else OTHERS_OPACITY for one in users],
                "line": {"width": 0},
            },
            text=[number(value) for value in values],
            textposition="outside",
            textfont={"size": 14},
            cliponaxis=False,
            hovertemplate=f"{name}: %{{y:,}} users<extra>%{{x}}</extra>",
        )
    figure = layout(figure, "", "Users at once", 300)
    figure.update_layout(barmode="group", bargap=0.3, bargroupgap=0.06, hovermode="closest")
    return figure


def users_alt(users: Sequence[Users]) -> str:
    """The chart in words."""
    parts = [f"{one.card}: {number(one.paged)} paged, {number(one.contiguous)} contiguous" for one in users]
    return "Users that fit at once. " + "; ".join(parts)
