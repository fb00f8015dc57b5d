"""What a million output tokens cost at each level, from a price that the reader gives."""

from __future__ import annotations

import streamlit as st

from components import html
from engine.report import cost, points_of
from engine.report.html import PRICE_RULE
from engine.report.measures import text_of
from engine.store import Run


def show(run: Run) -> float | None:
    """The price per hour that was given; nothing for a run without a throughput."""
    points = [point for point in points_of(run) if point.values.get("throughput_tok_s")]
    if not points:
        return None
    with st.expander("Cost of a million output tokens", icon=":material/payments:"):
        price = st.number_input(
            f"Price per {cost.unit_of(run)} hour",
            min_value=0.0,
            max_value=cost.DEAREST_PER_HOUR,
            value=None,
            placeholder="What you pay, in any currency",
            key="runs_price",
            width=320,
            persist_state="session",
        )
        known = price or None
        per_hour = None if known is None else cost.per_hour_of(run, known)
        rows = [
            (point.name, text_of("throughput_tok_s", point.values["throughput_tok_s"]), cost.text_of(each))
            for point, each in zip(points, cost.costs(points, per_hour), strict=True)
        ]
        html.table(("Load", "Throughput", "Per million output tokens"), rows)
        gpus = cost.gpus_of(run)
        of_all = f" The price is multiplied by the {gpus} GPUs of this server." if gpus and gpus > 1 else ""
        st.caption(f"{PRICE_RULE}{of_all} The report has it too.".replace("*", "\\*"))
    return known
