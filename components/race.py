"""The race: two answers side by side, each at the pace it was measured. Runs in the browser.

The page hands over lanes with timed pieces of text; the clock between two updates and a replay after the race run
without the server. Text goes in as ``textContent``, so markup in an answer stays text.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from components import palette
from engine.compare_results import CompareSnapshot, Lane

LIVE_STATES = ("running", "warming", "loading")
NOTES = {
    "waiting": "Waiting for its turn",
    "loading": "Loading the weights",
    "warming": "Warm-up, not counted",
    "failed": "Failed",
}

HTML = '<div class="race"></div>'
CSS = """
.race { font-family: var(--st-font); color: var(--st-text-color); }
.lanes { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 1.1rem; }
.lane { border: 1px solid var(--st-border-color); border-top: 6px solid var(--lane); border-radius: 0.75rem; padding: 0.9rem 1.1rem 1rem;
  background: var(--st-secondary-background-color); min-width: 0; }
.head { display: flex; justify-content: space-between; align-items: baseline; gap: 0.8rem; }
.name { font-weight: 700; font-size: 1.25rem; }
.clock { font-size: 1.7rem; font-weight: 680; font-variant-numeric: tabular-nums; letter-spacing: -0.02em; white-space: nowrap; }
.sub { display: flex; justify-content: space-between; gap: 0.8rem; font-size: 0.95rem; min-height: 1.5rem; }
.note { opacity: 0.78; } .rate { font-variant-numeric: tabular-nums; font-weight: 650; white-space: nowrap; }
.track { height: 0.55rem; border-radius: 1rem; background: color-mix(in srgb, var(--st-text-color) 12%, transparent); overflow: hidden; margin: 0.5rem 0 0.8rem; }
.fill { height: 100%; width: 0; background: var(--lane); border-radius: 1rem; }
.text { height: 8.4rem; overflow-y: auto; white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.5; font-size: 1.08rem; }
.bar { display: flex; gap: 0.7rem; align-items: center; margin-top: 0.9rem; flex-wrap: wrap; font-size: 0.95rem; }
button { font: inherit; font-weight: 620; color: var(--st-text-color); background: var(--st-background-color); border: 1px solid var(--st-border-color);
  border-radius: var(--st-button-radius, 0.6rem); padding: 0.42rem 1rem; cursor: pointer; }
button:hover, button[aria-pressed="true"] { border-color: var(--st-primary-color); color: var(--st-link-color); }
button:focus-visible { outline: 3px solid var(--st-primary-color); outline-offset: 2px; }
"""
JS = """
const races = new WeakMap();
const SPEEDS = [[1, 'Real speed'], [0.5, '2× slower'], [0.25, '4× slower']];
function element(tag, name, text) { const e = document.createElement(tag); e.className = name || ''; if (text) e.textContent = text; return e; }
function build(root, data) {
  root.replaceChildren();
  const lanes = element('div', 'lanes');
  root.append(lanes);
  const parts = data.lanes.map((lane) => {
    const box = element('section', 'lane'); box.style.setProperty('--lane', lane.colour); box.setAttribute('aria-label', lane.label);
    const head = element('div', 'head'), sub = element('div', 'sub'), track = element('div', 'track');
    const p = { name: element('div', 'name', lane.label), clock: element('div', 'clock'), note: element('div', 'note'),
      rate: element('div', 'rate'), fill: element('div', 'fill'), text: element('div', 'text'), shown: -1 };
    head.append(p.name, p.clock); sub.append(p.note, p.rate); track.append(p.fill); box.append(head, sub, track, p.text); lanes.append(box);
    p.text.tabIndex = 0;
    return p;
  });
  const bar = element('div', 'bar');
  root.append(bar);
  return { parts, bar };
}
function controls(race) {
  race.bar.replaceChildren();
  if (!race.data.replay) return;
  const again = element('button', 'again', '↻ Replay the race'); again.type = 'button';
  again.onclick = () => { race.from = performance.now(); race.playing = true; };
  race.bar.append(again);
  SPEEDS.forEach(([speed, label]) => {
    const b = element('button', 'speed', label); b.type = 'button'; b.setAttribute('aria-pressed', String(speed === race.speed));
    b.onclick = () => { race.speed = speed; race.from = performance.now(); race.playing = true; controls(race); };
    race.bar.append(b);
  });
  race.bar.append(element('span', 'note', 'Recorded times of this run, both started together.'));
}
function draw(race) {
  const since = (performance.now() - race.from) / 1000;
  let running = false;
  race.data.lanes.forEach((lane, i) => {
    const p = race.parts[i];
    const end = lane.pieces.length ? lane.pieces[lane.pieces.length - 1][0] : 0;
    let clock = lane.clock, all = !lane.follow;
    if (race.data.replay) { clock = race.playing ? since * race.speed : end; all = false; }
    else if (lane.ticking) clock = lane.clock + since;
    const finished = (race.data.replay || lane.follow || lane.state === 'done') && lane.pieces.length > 0 && clock >= end;
    if (finished) clock = end; else if (race.data.replay) running = true;
    const count = all ? lane.pieces.length : lane.pieces.filter(([t]) => t <= clock + 1e-6).length;
    if (count !== p.shown) {
      p.text.textContent = lane.pieces.slice(0, count).map(([, text]) => text).join('');
      p.text.scrollTop = p.text.scrollHeight; p.shown = count;
    }
    p.clock.textContent = clock > 0 || lane.pieces.length ? clock.toFixed(2) + ' s' : '—';
    p.fill.style.width = (lane.total ? Math.min(100, 100 * count / lane.total) : 0) + '%';
    p.note.textContent = finished && !lane.follow ? 'Finished' : lane.note;
    p.rate.textContent = finished && lane.rate ? lane.rate : '';
  });
  if (race.data.replay && race.playing && !running) race.playing = false;
}
export default function (component) {
  const root = component.parentElement.querySelector('.race');
  const data = component.data;
  const shape = JSON.stringify(data.lanes.map((lane) => [lane.label, lane.colour]));
  let race = races.get(root);
  if (!race || race.shape !== shape) {
    race = { ...build(root, data), shape, speed: 1, playing: false };
    races.set(root, race);
  }
  const started = data.replay && !(race.data && race.data.replay) && data.autoplay;
  race.data = data;
  if (!race.playing || started) race.from = performance.now();
  if (started) race.playing = true;
  race.parts.forEach((part) => { part.shown = -1; });
  controls(race);
  if (!race.timer) {
    const tick = () => { draw(race); race.timer = requestAnimationFrame(tick); };
    race.timer = requestAnimationFrame(tick);
  }
  return () => { cancelAnimationFrame(race.timer); race.timer = null; };
}
"""
_mount = st.components.v2.component("vllm_lab_race", html=HTML, css=CSS, js=JS)


def race(snapshot: CompareSnapshot, key: str) -> None:
    """Draw the lanes of a comparison, live or as a replay."""
    _mount(key=key, data=race_data(snapshot))


def race_data(snapshot: CompareSnapshot) -> dict[str, Any]:
    """What the browser needs. While vLLM is measured, the HF lane replays what was measured a moment ago."""
    running = snapshot.state == "running"
    lanes = [lane for lane in snapshot.lanes if lane.engine in ("hf", "vllm")]
    live = next((lane for lane in lanes if lane.state == "running"), None)
    total = snapshot.config.max_tokens if snapshot.config else None
    return {
        "replay": not running and all(lane.text_pieces for lane in lanes) and bool(lanes),
        "autoplay": snapshot.state == "done",
        "lanes": [_lane_data(lane, live, running, total) for lane in lanes],
    }


def _lane_data(lane: Lane, live: Lane | None, running: bool, total: int | None) -> dict[str, Any]:
    pieces = [[round(time_s, 4), text] for time_s, text in lane.text_pieces]
    follow = running and live is not None and lane is not live and lane.state == "done"
    clock = live.elapsed_s if follow and live else lane.elapsed_s
    return {
        "label": palette.name(lane.engine),
        "colour": palette.colour(lane.engine),
        "state": str(lane.state),
        "pieces": pieces,
        "clock": clock or 0.0,
        "ticking": follow or lane.state == "running",
        "follow": follow,
        "note": "Replay at its measured pace" if follow else _note(lane),
        "rate": _rate(pieces, total),
        "total": total or len(pieces),
    }


def _note(lane: Lane) -> str:
    if lane.state == "running":
        return "Measuring now"
    return NOTES.get(str(lane.state), "")


def _rate(pieces: list[list[Any]], total: int | None) -> str:
    """Tokens per second of the whole answer. Every lane is forced to the same number of tokens."""
    return f"{total / pieces[-1][0]:,.0f} tok/s" if pieces and total and pieces[-1][0] > 0 else ""
