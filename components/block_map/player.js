// Time and the controls. Everything runs in the browser from one recording.
const MAP_MAX_PX = 640, MAP_MIN_PX = 180, BELOW_PX = 12, NUMBERS_EVERY_MS = 110, WHOLE_RECORDING_S = 60;

class Player {
  constructor(root) {
    this.root = root;
    this.frame = 0; this.playing = false; this.selected = null; this.hover = null; this.carry = 0;
    this.onKey = (event) => this.key(event);
    this.onTheme = (event) => { if (event.target === this.probe) this.layout(); };
    this.onResize = () => this.layout();
    this.resized = new ResizeObserver(this.onResize);
  }

  show(data) {
    const first = !this.payload;
    this.id = data.id; this.payload = data.payload; this.palette = data.palette; this.kinds = data.kinds;
    this.steps = this.payload.steps;
    if (first || !this.speed) this.speed = SPEEDS.find((speed) => speed * WHOLE_RECORDING_S >= this.steps) || SPEEDS[SPEEDS.length - 1];
    this.frame = Math.min(this.frame, this.steps - 1);
    if (this.selected !== null && this.selected >= this.payload.requests.arrival.length) this.selected = null;
    this.build();
    const still = window.matchMedia('(prefers-reduced-motion: reduce)').matches || data.autoplay === false;
    if (first && still) this.frame = this.fullest();
    if (first && !still) this.playing = true;
    this.layout();
  }

  /** The first step in which the paged memory has the most requests. */
  fullest() {
    const { running } = this.payload.sides[1].series;
    return running.indexOf(running.reduce((most, number) => Math.max(most, number), 0));
  }

  build() {
    this.root.replaceChildren();
    this.sides = this.payload.sides.map((side) => new SideView(side, new Memory(side, this.payload), this.palette, (request) => this.select(request)));
    const sides = element('div', 'sides');
    sides.append(...this.sides.map((side) => side.box));
    this.tip = element('div', 'tip'); this.tip.hidden = true;
    this.summary = element('div', 'unseen'); this.summary.setAttribute('aria-live', 'polite');
    this.probe = element('div', 'probe');
    this.root.append(sides, this.controls(), this.tip, this.summary, this.probe);
    this.sides.forEach((side, i) => this.listen(side, i));
    this.labelToggle();
  }

  controls() {
    const bar = element('div', 'controls');
    const button = (name, label, action) => {
      const made = element('button', 'control'); made.type = 'button'; icon(made, name); made.onclick = action;
      made.setAttribute('aria-label', label); made.title = label;
      return made;
    };
    this.toggle = button('play', 'Play', () => this.play(!this.playing)); this.toggle.classList.add('main');
    this.range = element('input'); Object.assign(this.range, { type: 'range', min: 0, max: this.steps - 1, step: 1 });
    this.range.setAttribute('aria-label', 'Step');
    this.range.oninput = () => { this.playing = false; this.seek(Number(this.range.value)); };
    this.timeline = element('canvas', 'timeline'); this.timeline.setAttribute('aria-hidden', 'true');
    const scrub = element('div', 'scrub'); scrub.append(this.timeline, this.range);
    this.clock = element('div', 'clock');
    const speed = element('select'); speed.setAttribute('aria-label', 'Speed');
    SPEEDS.forEach((value) => { const option = element('option', '', `${value} ${this.payload.step_label}s/s`); option.value = String(value); speed.append(option); });
    speed.value = String(this.speed);
    speed.onchange = () => { this.speed = Number(speed.value); };
    bar.append(this.toggle, button('back', 'One step back (←)', () => this.step(-1)), button('forward', 'One step on (→)', () => this.step(1)), speed, scrub, this.clock);
    return bar;
  }

  listen(side, index) {
    const at = (event) => {
      const box = side.overlay.getBoundingClientRect();
      return side.painter.slotAt(event.clientX - box.left, event.clientY - box.top - STRIP_PX);
    };
    side.overlay.onpointermove = (event) => { this.hover = { index, slot: at(event), left: event.clientX, top: event.clientY }; this.draw(); };
    side.overlay.onpointerleave = () => { this.hover = null; this.draw(); };
    side.overlay.onclick = (event) => {
      const slot = at(event), block = slot < 0 ? -1 : Math.floor(slot / side.memory.unit);
      const stay = block >= 0 && block < side.memory.units ? side.memory.holder[block] : -1;
      this.select(stay < 0 ? null : side.memory.requestOf(stay));
    };
  }

  select(request) {
    this.selected = request === this.selected ? null : request;
    this.draw(true);
  }

  play(on) {
    if (on && this.frame >= this.steps - 1) this.frame = 0;
    this.playing = on; this.carry = 0; this.before = null;
    this.draw(true); this.tick();
  }

  step(by) { this.playing = false; this.seek(this.frame + by); }

  seek(frame) { this.frame = clamp(frame, 0, this.steps - 1); this.draw(true); }

  key(event) {
    const target = event.composedPath()[0];
    const inside = event.composedPath().includes(this.root);
    if (event.ctrlKey || event.metaKey || event.altKey || !(inside || target === document.body)) return;
    if (inside && ['INPUT', 'SELECT'].includes(target.tagName) && event.key !== ' ') return; // they step by themselves
    if (target.tagName === 'BUTTON' && event.key === ' ') return;
    const actions = {
      ' ': () => this.play(!this.playing), ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1),
      Home: () => this.step(-this.steps), End: () => this.step(this.steps), Escape: () => this.select(null),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  start() {
    document.addEventListener('keydown', this.onKey);
    this.root.addEventListener('transitionend', this.onTheme);
    this.resized.observe(this.root);
    window.addEventListener('resize', this.onResize);
    this.tick();
  }

  stop() {
    document.removeEventListener('keydown', this.onKey);
    this.root.removeEventListener('transitionend', this.onTheme);
    this.resized.disconnect();
    window.removeEventListener('resize', this.onResize);
    cancelAnimationFrame(this.next); this.next = null; this.before = null;
  }

  tick() {
    if (this.next || !this.playing) return;
    this.next = requestAnimationFrame((now) => {
      this.next = null;
      this.advance(now);
      this.tick();
    });
  }

  advance(now) {
    this.carry += this.before ? Math.min(250, now - this.before) * this.speed / 1000 : 0;
    this.before = now;
    const whole = Math.floor(this.carry);
    if (!whole) return;
    this.carry -= whole;
    this.frame = Math.min(this.steps - 1, this.frame + whole);
    if (this.frame === this.steps - 1) this.playing = false;
    this.draw(!this.playing);
  }

  /** Fit both maps, the numbers and the controls into the window. */
  layout() {
    const width = this.sides[0].stage.clientWidth;
    if (!width) return;
    const rest = this.root.offsetHeight - this.sides[0].stage.offsetHeight;
    const above = this.root.getBoundingClientRect().top + this.scrolled();
    const height = clamp(Math.floor(window.innerHeight - above - rest - STRIP_PX - BELOW_PX), MAP_MIN_PX, Math.max(MAP_MIN_PX, Math.min(MAP_MAX_PX, width)));
    const theme = readTheme(this.root, this.kinds);
    this.sides.forEach((side) => {
      side.stage.style.height = `${height + STRIP_PX}px`;
      side.painter.layout(width, height, theme);
    });
    this.theme = theme;
    this.drawTimeline();
    this.draw(true);
  }

  /** How far the page is scrolled: what counts is where the map is on the page, not in the window. */
  scrolled() {
    let sum = 0;
    for (let node = this.root.getRootNode().host || this.root; node; node = node.parentElement) sum += node.scrollTop;
    return sum;
  }

  /** The picture; numbers and words only now and then while it plays, and exactly when it stands still. */
  draw(exact = false) {
    const now = performance.now(), all = exact || now - (this.drawnAt || 0) > NUMBERS_EVERY_MS;
    this.sides.forEach((side, i) => {
      side.draw(this.frame, this.selected, this.hover && this.hover.index === i ? this.hover.slot : -1);
      if (all) side.account(this.frame, this.selected);
      side.callOut(this.frame, this.playing, now);
    });
    this.range.value = String(this.frame);
    this.drawTip();
    if (all) { this.drawnAt = now; this.report(); }
    if (!this.playing) this.announce();
  }

  report() {
    if (this.root.dataset.playing !== String(this.playing)) this.labelToggle();
    put(this.clock, `${this.payload.step_label} ${this.frame + 1} of ${this.steps}`);
    this.range.setAttribute('aria-valuetext', this.clock.textContent);
    const { dataset } = this.root;
    dataset.frame = String(this.frame); dataset.playing = String(this.playing); dataset.selected = this.selected === null ? '' : String(this.selected);
    this.sides.forEach((side, i) => { dataset[`map${i}`] = side.memory.counts().join(' '); });
  }

  labelToggle() {
    const name = this.playing ? 'Pause' : 'Play';
    icon(this.toggle, name.toLowerCase());
    this.toggle.setAttribute('aria-label', name); this.toggle.title = `${name} (space)`;
  }

  announce() {
    const parts = this.sides.map((side) => {
      const { series } = side.side, at = this.frame, share = (kind) => percent(series[kind][at] / side.memory.slots);
      const text = `${side.side.title}: utilisation ${percent(side.memory.utilisation(at))}, ${count(series.running[at], 'request')} in memory, ${series.waiting[at]} waiting`;
      side.canvas.setAttribute('aria-label', `${text}. ${KINDS.slice(1).map((kind) => `${KIND_NAMES[kind]} ${share(kind)}`).join(', ')}.`);
      return text;
    });
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => put(this.summary, `${this.clock.textContent}. ${parts.join('. ')}.`), 400);
  }

  drawTip() {
    const { hover, tip } = this;
    if (!hover || hover.slot < 0) { tip.hidden = true; return; }
    const lines = this.sides[hover.index].describe(hover.slot);
    if (tip.dataset.lines !== lines.join('\n')) { tip.dataset.lines = lines.join('\n'); tip.replaceChildren(...lines.map((line) => element('div', '', line))); }
    tip.hidden = false;
    const box = this.root.getBoundingClientRect();
    const left = Math.min(hover.left - box.left + 14, box.width - tip.offsetWidth - 4);
    tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(hover.top - box.top + 16)}px)`;
  }

  drawTimeline() {
    const { timeline, theme } = this, scale = window.devicePixelRatio || 1;
    const width = timeline.clientWidth, height = timeline.clientHeight;
    timeline.width = Math.round(width * scale); timeline.height = Math.round(height * scale);
    const on = timeline.getContext('2d');
    on.setTransform(scale, 0, 0, scale, 0, 0); on.clearRect(0, 0, width, height);
    this.sides.forEach((side) => {
      on.beginPath();
      let pen = false;
      for (let x = 0; x <= width; x += 1) {
        const share = side.memory.utilisation(Math.round(x * (this.steps - 1) / width)), y = height - 2 - (height - 4) * share;
        if (share === null) pen = false; else if (pen) on.lineTo(x, y); else { on.moveTo(x, y); pen = true; }
      }
      on.strokeStyle = side.memory.paged ? theme.tokens : theme.text; on.globalAlpha = side.memory.paged ? 1 : 0.55; on.lineWidth = 2;
      on.stroke();
    });
    on.globalAlpha = 0.7; on.fillStyle = theme.text; on.font = '11px sans-serif'; on.fillText('utilisation', 8, height / 2 + 3);
  }
}

const players = new WeakMap();
export default function (component) {
  const root = component.parentElement.querySelector('.block-map');
  let player = players.get(root);
  if (!player) { player = new Player(root); players.set(root, player); }
  if (player.id !== component.data.id) player.show(component.data);
  player.start();
  return () => player.stop();
}
