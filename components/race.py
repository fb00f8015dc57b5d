"""The race: the answers side by side, each at the pace it was measured. Runs in the browser.

The page hands over lanes with timed pieces of text; the clock between two updates and a replay after the race run
without the server. Text goes in as ``textContent``, so markup in an answer stays text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from components import palette
from components.results import name_in
from engine.compare_results import CompareSnapshot, Lane
from engine.config import PEER_ENGINES

RACERS = ("hf", *PEER_ENGINES, "vllm")
UNFINISHED = ("waiting", "loading", "warming", "running")
NOTES = {
    "waiting": "Waiting for its turn",
    "loading": "Loading the weights",
    "warming": "Warm-up, not counted",
    "cancelled": "Cancelled",
    "failed": "Failed",
}

HERE = Path(__file__).parent
_mount = st.components.v2.component(
    "vllm_lab_race",
    html='<div class="race"></div>',
    css=(HERE / "race.css").read_text(),
    js=(HERE / "race.js").read_text(),
)


def race(snapshot: CompareSnapshot, key: str) -> None:
    """Draw the lanes of a comparison, live or as a replay."""
    _mount(key=key, data=race_data(snapshot))


def race_data(snapshot: CompareSnapshot) -> dict[str, Any]:
    """What the browser needs. While one is measured, finished lanes replay what was measured a moment ago."""
    running = snapshot.state == "running"
    lanes = [lane for engine in RACERS if (lane := snapshot.lane(engine)) is not None]
    live = next((lane for lane in lanes if lane.state == "running"), None)
    total = snapshot.config.max_tokens if snapshot.config else None
    repeats = snapshot.config.repeats if snapshot.config else 1
    name_of = name_in(snapshot.results) if snapshot.results else palette.name
    return {
        "footer": _footer(repeats),
        "replay": not running and all(lane.state == "done" and lane.text_pieces for lane in lanes) and bool(lanes),
        "autoplay": snapshot.state == "done",
        "lanes": [_lane_data(lane, live, running, total, repeats) | {"label": name_of(lane.engine)} for lane in lanes],
    }


def _footer(repeats: int) -> str:
    """What a replay shows: the last repeat of each, while the headline is the median of all."""
    if repeats == 1:
        return "Recorded one after the other, shown here as if started together."
    return (
        f"Recorded one after the other, shown here as if started together: repeat {repeats} of {repeats}. "
        f"The large number is the median of all {repeats}."
    )


def _lane_data(lane: Lane, live: Lane | None, running: bool, total: int | None, repeats: int) -> dict[str, Any]:
    pieces = [[round(time_s, 4), text] for time_s, text in lane.text_pieces]
    follow = running and live is not None and lane is not live and lane.state == "done"
    clock = live.elapsed_s if follow and live else lane.elapsed_s
    return {
        "colour": palette.colour(lane.engine),
        "state": str(lane.state),
        "pieces": pieces,
        "clock": clock or 0.0,
        "ticking": follow or (running and lane.state == "running"),
        "follow": follow,
        "note": "Replay at its measured pace" if follow else _note(lane, running),
        "rate": _rate(pieces, total) if lane.state == "done" else "",
        "finished": "Finished" if repeats == 1 else f"Finished: repeat {repeats} of {repeats}",
        "total": total or len(pieces),
    }


def _note(lane: Lane, running: bool) -> str:
    if not running and lane.state in UNFINISHED:
        return "Not measured" if lane.state == "waiting" else "Ended before the answer was complete"
    if lane.state == "running":
        return "Measuring now"
    return NOTES.get(str(lane.state), "")


def _rate(pieces: list[list[Any]], total: int | None) -> str:
    """Tokens per second of the whole answer. Every lane is forced to the same number of tokens."""
    return f"{total / pieces[-1][0]:,.0f} tok/s" if pieces and total and pieces[-1][0] > 0 else ""
