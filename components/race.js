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
  race.bar.append(element('span', 'note', race.data.footer));
}
function put(e, text) { if (e.textContent !== text) e.textContent = text; }
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
    put(p.clock, clock > 0 || lane.pieces.length ? clock.toFixed(2) + ' s' : '—');
    put(p.note, finished && !lane.follow ? lane.finished : lane.note);
    put(p.rate, finished && lane.rate ? lane.rate : '');
    const width = (finished ? 100 : lane.total ? Math.min(100, 100 * count / lane.total) : 0) + '%';
    if (p.fill.style.width !== width) p.fill.style.width = width;
  });
  if (race.data.replay && race.playing && !running) race.playing = false;
}
function moves(race) { return race.playing || (!race.data.replay && race.data.lanes.some((lane) => lane.ticking)); }
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
  draw(race);
  // Five pictures a second while something is measured on the same cores: drawing must not take them away.
  const wait = data.replay ? 40 : 200;
  clearInterval(race.timer);
  race.timer = setInterval(() => { if (moves(race)) draw(race); }, wait);
  return () => { clearInterval(race.timer); race.timer = null; };
}
