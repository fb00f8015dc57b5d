"""Swim-lanes: one lane a user, each request a bar from sent to answered. Drawn on a canvas in the browser.

Between two updates the browser lets open bars grow by its own clock, four pictures a second: what is measured runs on
the same cores. The same is said in words above the picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from components import palette
from engine.load.results import LaneRequest, LoadSnapshot, RequestState

HERE = Path(__file__).parent
HTML = '<div class="swim-lanes"></div>'
STATES = tuple(RequestState)
# While it runs a window is wide enough to see a few answers of everybody, and no wider than a browser draws and a
# socket carries without effort.
WINDOWS_S = (16.0, 8.0, 4.0, 2.0, 1.0)
MOST_BARS = 1500

_mount = st.components.v2.component(
    "vllm_lab_swim_lanes",
    html=HTML,
    css=(HERE / "swim_lanes.css").read_text("utf-8"),
    js=(HERE / "swim_lanes.js").read_text("utf-8"),
)


def swim_lanes(snapshot: LoadSnapshot, key: str) -> None:
    """Draw the level that runs, or the last one that ran."""
    _mount(key=key, data=swim_data(snapshot))


def swim_data(snapshot: LoadSnapshot) -> dict[str, Any]:
    """What the browser needs. Times are whole ms since the level began; a bar is [number, state, start, prefill,
    first token, end], -1 where a time isn't known."""
    now_s = snapshot.level_s or 0.0
    window_s = _window_s(snapshot, now_s)
    since_s = now_s - window_s
    states = [one.state for lane in snapshot.lanes for one in lane.requests if one.end_s is None]
    return {
        "level": f"{snapshot.level} {snapshot.warming_up}",
        "now": round(now_s * 1000),
        "window": round(window_s * 1000),
        "running": snapshot.running,
        "lane": "User" if _closed(snapshot) else "Lane",
        "tells": tells_queue(snapshot),
        "note": "Warming up, not counted" if snapshot.running and not snapshot.lanes else "",
        "lanes": [
            [lane.user, [_bar(one) for one in lane.requests if one.end_s is None or one.end_s >= since_s]]
            for lane in snapshot.lanes
        ],
        "live": [
            [round(point.at_s * 1000), round(point.tokens_s, 1), point.running, point.queued]
            for point in snapshot.live
            if point.at_s >= since_s
        ],
        "states": [str(state) for state in STATES],
        "colours": palette.PHASES | {"either": palette.PHASES["prefill"]},
        "legend": _legend(snapshot, states),
        "alt": _alt(snapshot, states),
    }


def _closed(snapshot: LoadSnapshot) -> bool:
    return snapshot.config is not None and (
        snapshot.config.profile == "closed" or (snapshot.config.profile == "ramp" and not snapshot.config.rates)
    )


def _window_s(snapshot: LoadSnapshot, now_s: float) -> float:
    """Seconds that are shown; of a level that is over, all of it where that isn't too much."""
    ends = [math.inf if one.end_s is None else one.end_s for lane in snapshot.lanes for one in lane.requests]
    grown = [window_s for window_s in WINDOWS_S if window_s < 2 * now_s] or [WINDOWS_S[2]]
    for window_s in grown if snapshot.running else (max(now_s, 1.0), *WINDOWS_S):
        if sum(end_s >= now_s - window_s for end_s in ends) <= MOST_BARS:
            return window_s
    return WINDOWS_S[-1]


def _bar(one: LaneRequest) -> list[int]:
    times = (one.start_s, one.prefill_s, one.first_token_s, one.end_s)
    return [one.request, STATES.index(one.state), *(-1 if at is None else max(0, round(at * 1000)) for at in times)]


def tells_queue(snapshot: LoadSnapshot) -> bool:
    """Whether the server says who waits: by a gauge, or afterwards for each request."""
    return any(point.queued is not None for point in snapshot.live) or any(
        one.prefill_s is not None for lane in snapshot.lanes for one in lane.requests
    )


def _legend(snapshot: LoadSnapshot, states: Sequence[RequestState]) -> list[list[str]]:
    """Phase, name, and how many are in it now (only those that can change)."""
    known = [["queued", "Queued"], ["prefill", "Prefill"]] if tells_queue(snapshot) else []
    either = [["either", "Queued or prefill"]] if _has_unsplit(snapshot) else []
    rows = [*known, *either, ["decode", "Decode"], ["failed", "Failed"]]
    return [[phase, name, _count(phase, snapshot, states)] for phase, name in rows]


def _has_unsplit(snapshot: LoadSnapshot) -> bool:
    """Some wait for a first token isn't split: the server tells when an answer is over, or never."""
    return not tells_queue(snapshot) or any(
        one.prefill_s is None and one.first_token_s is not None for lane in snapshot.lanes for one in lane.requests
    )


def _count(phase: str, snapshot: LoadSnapshot, states: Sequence[RequestState]) -> str:
    if phase == "failed":
        return f"{snapshot.requests_failed:,}"
    if phase == "either":
        waiting = sum(state in (RequestState.QUEUED, RequestState.PREFILL) for state in states)
        return str(waiting) if snapshot.running and not tells_queue(snapshot) else ""
    return str(sum(state == phase for state in states)) if snapshot.running else ""


def _alt(snapshot: LoadSnapshot, states: Sequence[RequestState]) -> str:
    counts = ", ".join(f"{count} {name.lower()}" for _, name, count in _legend(snapshot, states) if count)
    done = f"{snapshot.requests_done:,} answered"
    lanes = len(snapshot.lanes)
    return f"Requests of {lanes} lane{'' if lanes == 1 else 's'} over time: {done}, {counts}."
