"""Figures of simulated KV caches: values of ``engine.kv.figure_data`` in, a Plotly figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from components import palette
from components.figures import layout
from components.format import short
from engine.kv.figure_data import Bar, PageSize, RunningRequests
from engine.kv.presets import ALLOCATOR_TITLES, SHARES

# The paper counts free memory as external fragmentation "& others".
SHARE_KINDS = dict(zip(SHARES, ("tokens", "reserved", "internal", "external"), strict=True))
SHARE_NAMES = {name: palette.MEMORY_NAMES[kind] for name, kind in SHARE_KINDS.items()}
SHARE_NAMES["external_fragmentation_pct"] = "External and others"
LEAST_LABELLED_PCT = 4.0


def shares_figure(bars: Sequence[Bar], colours: Mapping[str, str]) -> go.Figure:
    """Shares of the memory (%) by allocator, stacked; yellow marks where the paper's published shares end."""
    figure = go.Figure()
    titles = [bar.title for bar in bars]
    for share, kind in SHARE_KINDS.items():
        values = [getattr(bar.result, share) for bar in bars]
        figure.add_bar(
            y=titles,
            x=values,
            orientation="h",
            name=SHARE_NAMES[share],
            marker={"color": colours[kind], "pattern": _pattern(kind, colours), "line": {"width": 0}},
            text=[f"{value:.1f}%" if value is not None and value >= LEAST_LABELLED_PCT else "" for value in values],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"size": 17, "color": "#FFFFFF" if kind == "tokens" else None},
            hovertemplate=f"{SHARE_NAMES[share]}: %{{x:.1f}}%<extra>%{{y}}</extra>",
        )
    ends = [(bar.title, *end) for bar in bars for end in published_ends(bar)]
    if ends:
        figure.add_scatter(
            y=[title for title, _, _ in ends],
            x=[end for _, end, _ in ends],
            customdata=[said for _, _, said in ends],
            mode="markers",
            name="Published in the paper",
            marker={"symbol": "line-ns", "size": 34, "line": {"color": palette.MARK, "width": 5}},
            hovertemplate="Published: %{customdata}<extra>%{y}</extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.3)
    figure = layout(figure, "Share of the KV memory (%)", "", 390)
    figure.update_layout(hovermode="closest", legend={"traceorder": "normal"})
    figure.update_xaxes(range=[0, 100.5])
    figure.update_yaxes(autorange="reversed", tickfont={"size": 15})
    return figure


def published_ends(bar: Bar) -> list[tuple[float, str]]:
    """Where the paper's shares end when they are stacked (%), each with the share in words; a gap ends the stack."""
    ends: list[tuple[float, str]] = []
    top = 0.0
    for share in SHARES[:-1]:
        value = bar.result.published.get(share)
        if value is None:
            break
        top += value
        ends.append((top, f"{SHARE_NAMES[share].lower()} {value:.1f}%"))
    return ends


def _pattern(kind: str, colours: Mapping[str, str]) -> dict[str, object]:
    if kind != "reserved":
        return {"shape": ""}
    return {"shape": "/", "fgcolor": colours["tokens"], "bgcolor": colours["reserved"], "size": 9, "solidity": 0.25}


def running_figure(series: RunningRequests) -> go.Figure:
    """Requests in memory after each step, one line per allocator."""
    figure = go.Figure()
    for name, running in series.running.items():
        figure.add_scatter(
            x=series.steps,
            y=running,
            name=ALLOCATOR_TITLES[name],
            mode="lines",
            line={
                "color": palette.allocator(name),
                "width": 3,
                "dash": palette.CONTIGUOUS_DASH.get(name, "solid"),
                "shape": "hv",
            },
            hovertemplate="%{y}",
        )
    return layout(figure, "Step of the model", "Requests in memory", 300)


def running_alt(series: RunningRequests) -> str:
    """The chart in words."""
    parts = [f"{ALLOCATOR_TITLES[name]}: at most {max(values)}" for name, values in series.running.items()]
    return f"Requests in memory over {series.steps[-1] + 1} steps. " + "; ".join(parts)


def page_size_figure(sizes: Sequence[PageSize], chosen: int) -> go.Figure:
    """KV utilisation (%) against the page size; the chosen one is marked."""
    return _by_page_size(sizes, chosen, [size.utilisation_pct for size in sizes], "KV utilisation (%)", "%{y:.1f}%")


def table_length_figure(sizes: Sequence[PageSize], chosen: int) -> go.Figure:
    """Blocks in the block table of a mean request, against the page size: what small pages cost."""
    values = [size.blocks_per_request for size in sizes]
    return _by_page_size(sizes, chosen, values, "Blocks per request", "%{y:,.1f} blocks")


def _by_page_size(
    sizes: Sequence[PageSize], chosen: int, values: Sequence[float | None], title: str, hover: str
) -> go.Figure:
    figure = go.Figure()
    figure.add_scatter(
        x=[str(size.block_size) for size in sizes],
        y=list(values),
        mode="lines+markers",
        showlegend=False,
        line={"color": palette.PAGED, "width": 3},
        marker={
            "opacity": 1,
            "size": [18 if size.block_size == chosen else 9 for size in sizes],
            "line": {"width": [3 if size.block_size == chosen else 0 for size in sizes], "color": palette.MARK},
        },
        hovertemplate=f"page of %{{x}} tokens: {hover}<extra></extra>",
    )
    figure = layout(figure, "Page size (tokens)", title, 280)
    figure.update_xaxes(type="category")
    figure.update_layout(hovermode="closest")
    return figure


def page_size_alt(sizes: Sequence[PageSize]) -> str:
    parts = [f"{size.block_size}: {short(size.utilisation_pct)}%" for size in sizes if size.utilisation_pct is not None]
    return "KV utilisation by page size. " + "; ".join(parts)


def table_length_alt(sizes: Sequence[PageSize]) -> str:
    known = [size for size in sizes if size.blocks_per_request is not None]
    return "Blocks per request by page size. " + "; ".join(
        f"{size.block_size}: {short(size.blocks_per_request)}" for size in known
    )


def shares_alt(bars: Sequence[Bar]) -> str:
    parts = []
    for bar in bars:
        shares = ", ".join(
            f"{SHARE_NAMES[share].lower()} {getattr(bar.result, share):.1f}%"
            for share in SHARES
            if getattr(bar.result, share) is not None
        )
        published = "".join(f", {said} published" for _, said in published_ends(bar)[:1])
        parts.append(f"{bar.title}: {shares}{published}")
    return "Shares of the KV memory by allocator. " + "; ".join(parts)
