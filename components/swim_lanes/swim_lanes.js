// Lanes above, throughput and waiting requests below, on one time axis. Five pictures a second at most.
const FRAME_MS = 250;
const LANES_PX = 300, STRIP_PX = 74, AXIS_PX = 24, GUTTER_PX = 82, RIGHT_PX = 10, TOP_PX = 8;
const NUMBER = 0, STATE = 1, START = 2, PREFILL = 3, FIRST = 4, END = 5;
const shown = new WeakMap();

function element(tag, name, text) { const e = document.createElement(tag); if (name) e.className = name; if (text !== undefined) e.textContent = text; return e; }

function build(root) {
  root.replaceChildren();
  const head = element('div', 'head'), stage = element('div', 'stage'), canvas = element('canvas'), tip = element('div', 'tip');
  canvas.setAttribute('role', 'img'); tip.hidden = true;
  stage.append(canvas, tip); root.append(head, stage);
  const view = { root, head, stage, canvas, tip, on: canvas.getContext('2d'), pointer: null };
  canvas.addEventListener('pointermove', (event) => { view.pointer = [event.offsetX, event.offsetY]; point(view); });
  canvas.addEventListener('pointerleave', () => { view.pointer = null; tip.hidden = true; });
  return view;
}

function legend(view) {
  view.head.replaceChildren(...view.data.legend.map(([phase, name, count]) => {
    const key = element('div', `key ${phase}`);
    key.style.setProperty('--phase', view.data.colours[phase]);
    key.append(element('span', 'swatch'), element('span', '', name));
    if (count) key.append(element('span', 'count', count));
    return key;
  }));
}

/** Size of the picture, and colours of the theme that Streamlit shows now. */
function layout(view) {
  const style = getComputedStyle(view.root), read = (name) => style.getPropertyValue(name).trim();
  view.theme = { text: read('--st-text-color'), line: read('--st-border-color'), panel: read('--st-secondary-background-color') };
  view.font = read('--st-font') || 'sans-serif';
  view.width = view.stage.clientWidth;
  const lanes = Math.max(1, view.data.lanes.length);
  view.row = Math.min(26, Math.max(1.2, (LANES_PX - TOP_PX) / lanes));
  view.lanesEnd = TOP_PX + view.row * lanes;
  view.height = Math.ceil(view.lanesEnd + AXIS_PX + STRIP_PX);
  const scale = window.devicePixelRatio || 1;
  const size = [Math.round(view.width * scale), Math.round(view.height * scale)];
  if (view.canvas.width !== size[0] || view.canvas.height !== size[1]) {
    [view.canvas.width, view.canvas.height] = size;
    view.canvas.style.height = `${view.height}px`;
  }
  view.scale = scale;
}

function clock(view) { return view.data.now + (view.data.running ? performance.now() - view.from : 0); }
function left(view) { return Math.max(0, clock(view) - view.data.window); }
function x(view, ms) { return GUTTER_PX + (ms - left(view)) / view.data.window * (view.width - GUTTER_PX - RIGHT_PX); }

function draw(view) {
  if (!view.data || document.hidden) return;
  layout(view);
  const { on } = view;
  on.setTransform(view.scale, 0, 0, view.scale, 0, 0);
  on.clearRect(0, 0, view.width, view.height);
  axis(view); strip(view); lanes(view);
  if (view.data.note) label(view, view.data.note, (GUTTER_PX + view.width) / 2, (view.lanesEnd + TOP_PX) / 2, 'center', 1);
}

function lanes(view) {
  const { on, data, row } = view, gap = row > 6 ? 2 : row > 3 ? 1 : 0;
  on.save();
  on.beginPath(); on.rect(GUTTER_PX, 0, view.width - GUTTER_PX - RIGHT_PX, view.lanesEnd); on.clip();
  data.lanes.forEach(([, bars], place) => bars.forEach((bar) => request(view, bar, TOP_PX + place * row, row - gap)));
  on.restore();
  names(view);
}

function request(view, bar, top, height) {
  const { on } = view, { colours, states } = view.data, now = clock(view), state = states[bar[STATE]];
  const over = bar[END] >= 0, end = over ? bar[END] : now, first = bar[FIRST] >= 0 ? bar[FIRST] : end;
  const from = left(view);
  if (end < from) return;
  on.globalAlpha = over ? 0.62 : 1;
  if (bar[PREFILL] >= 0) {
    piece(view, bar[START], Math.min(bar[PREFILL], first), top, height, colours.queued, true);
    piece(view, Math.min(bar[PREFILL], first), first, top, height, colours.prefill);
  } else { // how much of the wait was queue isn't known: not yet, or the server never tells
    const told = view.data.tells && bar[FIRST] < 0 && !over;
    piece(view, bar[START], first, top, height, told && state === 'queued' ? colours.queued : colours.prefill, !told || state === 'queued');
  }
  piece(view, first, end, top, height, state === 'failed' ? colours.failed : colours.decode);
  if (state === 'failed') piece(view, Math.max(bar[START], end - view.data.window / 120), end, top, height, colours.failed);
  on.globalAlpha = 1;
  if (over && height > 3) { on.fillStyle = view.theme.panel; on.fillRect(x(view, end) - 1, top, 2, height); }
}

function piece(view, from, to, top, height, colour, hatched) {
  const start = x(view, Math.max(from, left(view))), width = x(view, to) - start;
  if (width <= 0) return;
  const { on } = view, strength = on.globalAlpha;
  on.fillStyle = hatched && height > 4 ? hatch(view, colour) : colour;
  if (hatched && height <= 4) on.globalAlpha = strength * 0.5; // too thin for stripes
  on.fillRect(start, top, Math.max(width, 1), height);
  on.globalAlpha = strength;
}

function hatch(view, colour) {
  if (view.hatched[colour]) return view.hatched[colour];
  const tile = document.createElement('canvas'); tile.width = 6; tile.height = 6;
  const on = tile.getContext('2d'); on.strokeStyle = colour; on.lineWidth = 2.2;
  for (const shift of [-6, 0, 6]) { on.beginPath(); on.moveTo(shift - 1, 7); on.lineTo(shift + 7, -1); on.stroke(); }
  view.hatched[colour] = view.on.createPattern(tile, 'repeat');
  return view.hatched[colour];
}

function label(view, text, at, y, align, strength = 0.75) {
  const { on } = view;
  on.globalAlpha = strength; on.fillStyle = view.theme.text; on.font = `13px ${view.font}`;
  on.textAlign = align; on.textBaseline = 'middle'; on.fillText(text, at, y); on.globalAlpha = 1;
}

function names(view) {
  const every = Math.max(1, Math.ceil(16 / view.row));
  view.data.lanes.forEach(([user], place) => {
    const text = place ? String(user + 1) : `${view.data.lane} ${user + 1}`;
    if (place % every === 0) label(view, text, GUTTER_PX - 8, TOP_PX + (place + 0.5) * view.row, 'right');
  });
}

function axis(view) {
  const { on } = view, from = left(view), window_ms = view.data.window;
  const step = [250, 500, 1000, 2000, 5000, 10000, 20000, 30000].find((ms) => window_ms / ms <= 8) || 60000;
  for (let at = Math.ceil(from / step) * step; at <= from + window_ms; at += step) {
    const place = x(view, at);
    on.fillStyle = view.theme.line; on.fillRect(place, TOP_PX, 1, view.height - TOP_PX - 4);
    if (place < view.width - 40) label(view, `${at / 1000} s`, place + 4, view.lanesEnd + AXIS_PX / 2, 'left');
  }
}

/** Tokens per second as an area, requests that wait in the server as a line on a scale of their own. */
function strip(view) {
  const { on, data } = view, bottom = view.height - 6, room = STRIP_PX - 18, top = bottom - room;
  const most = Math.max(1, ...data.live.map((point) => point[1])), waiting = Math.max(0, ...data.live.map((point) => point[3] ?? 0));
  label(view, 'tok/s', GUTTER_PX - 8, top + 4, 'right');
  if (!data.live.length) return;
  label(view, Math.round(most).toLocaleString('en-US'), GUTTER_PX - 8, top + 22, 'right', 1);
  if (waiting) label(view, `${waiting} queued`, GUTTER_PX - 8, top + 44, 'right');
  on.save(); on.beginPath(); on.rect(GUTTER_PX, top - 4, view.width - GUTTER_PX - RIGHT_PX, room + 6); on.clip();
  const area = (close) => {
    on.beginPath();
    data.live.forEach(([at, speed], i) => { const place = [x(view, at), bottom - speed / most * room]; if (i || close) on.lineTo(...place); else on.moveTo(...place); });
  };
  on.fillStyle = data.colours.decode; on.globalAlpha = 0.25;
  on.beginPath(); on.moveTo(x(view, data.live[0][0]), bottom);
  data.live.forEach(([at, speed]) => on.lineTo(x(view, at), bottom - speed / most * room));
  on.lineTo(x(view, data.live.at(-1)[0]), bottom); on.fill();
  on.globalAlpha = 1; on.strokeStyle = data.colours.decode; on.lineWidth = 2.5; area(false); on.stroke();
  if (waiting) {
    on.strokeStyle = data.colours.queued; on.lineWidth = 2; on.setLineDash([5, 3]); on.beginPath();
    data.live.forEach(([at, , , queued], i) => { const place = [x(view, at), bottom - (queued ?? 0) / waiting * room]; if (i) on.lineTo(...place); else on.moveTo(...place); });
    on.stroke(); on.setLineDash([]);
  }
  on.restore();
}

function seconds(ms) { return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`; }

function point(view) {
  const [left_px, top_px] = view.pointer, place = Math.floor((top_px - TOP_PX) / view.row), lane = view.data.lanes[place];
  const at = left(view) + (left_px - GUTTER_PX) / (view.width - GUTTER_PX - RIGHT_PX) * view.data.window;
  const bar = lane && left_px >= GUTTER_PX && lane[1].find((one) => at >= one[START] && at <= (one[END] >= 0 ? one[END] : clock(view)));
  view.tip.hidden = !bar;
  if (!bar) return;
  const lines = [`Request ${bar[NUMBER] + 1}: ${view.data.states[bar[STATE]]}`];
  if (bar[PREFILL] >= 0) lines.push(`Queued ${seconds(bar[PREFILL] - bar[START])}`);
  if (bar[FIRST] >= 0) lines.push(`First text after ${seconds(bar[FIRST] - bar[START])}`);
  if (bar[END] >= 0) lines.push(`Over after ${seconds(bar[END] - bar[START])}`);
  view.tip.textContent = lines.join('\n');
  view.tip.style.left = `${Math.min(left_px + 14, view.width - 190)}px`;
  view.tip.style.top = `${Math.max(4, Math.min(top_px + 12, view.height - 100))}px`;
}

export default function (component) {
  const root = component.parentElement.querySelector('.swim-lanes');
  let view = shown.get(root);
  if (!view) { view = build(root); shown.set(root, view); }
  view.data = component.data;
  view.from = performance.now();
  view.hatched = {};
  view.canvas.setAttribute('aria-label', view.data.alt);
  legend(view); draw(view);
  if (view.pointer) point(view);
  clearInterval(view.timer);
  view.timer = setInterval(() => { if (view.data.running) draw(view); }, FRAME_MS);
  if (view.watch) view.watch.disconnect();
  view.watch = new ResizeObserver(() => draw(view)); view.watch.observe(view.stage);
  return () => { clearInterval(view.timer); view.watch.disconnect(); };
}
