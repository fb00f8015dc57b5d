"""A load test while it runs: how far it is, its lanes, and what the server does at this moment."""

from __future__ import annotations

import streamlit as st

from components import errors, html, load_tables
from components.format import UNKNOWN, number, plain, roughly, seconds, short
from components.load_shown import Shown
from components.swim_lanes import swim_lanes
from engine.load.results import LivePoint, LoadSnapshot
from engine.services import LabServices


def show(services: LabServices, now: LoadSnapshot) -> None:
    progress(services, now)
    if now.level is not None:
        with st.container(key="load_live"):
            html.facts(_facts(now), big=True)
        swim_lanes(now, key="load_lanes")
    if now.levels:
        load_tables.table(Shown(now.results, now.config, "load_live"), labels=now.labels)


def progress(services: LabServices, now: LoadSnapshot) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(min(1.0, max(0.0, now.progress)), text=_words(now))
        if st.button("Cancel", icon=":material/stop_circle:", key="load_cancel"):
            with errors.shown():
                services.load.cancel()


def _words(now: LoadSnapshot) -> str:
    level = f"Level {now.level + 1} of {len(now.labels)} · " if now.level is not None and len(now.labels) > 1 else ""
    elapsed = f" · {seconds(now.elapsed_s)}" if now.elapsed_s is not None else ""
    left = f" · {roughly(now.left_s, now.left_s)} left" if now.left_s else ""
    return level + plain(now.message) + elapsed + left


def _facts(now: LoadSnapshot) -> list[tuple[str, str, str]]:
    point = now.live[-1] if now.live else None
    if now.warming_up or point is None:
        return [(label, UNKNOWN, note) for label, _, note in _named(now, None)]
    return _named(now, point)


def _named(now: LoadSnapshot, point: LivePoint | None) -> list[tuple[str, str, str]]:
    planned = "" if now.requests_planned is None else f"of {number(now.requests_planned)}"
    failed = f"{number(now.requests_failed)} failed" if now.requests_failed else ""
    return [
        ("Throughput now", f"{short(point.tokens_s)} tok/s" if point else UNKNOWN, "chunks of text, half a second"),
        ("Running", number(point.running if point else now.requests_running), "requests"),
        ("Queued", number(point.queued if point else None), "in the server, by its own word"),
        ("Answered", number(now.requests_done), " · ".join(filter(None, (planned, failed)))),
    ]
