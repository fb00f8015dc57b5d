// The parts on the page: built once for a recording, then filled in.
const KIND_NAMES = { tokens: 'Token states', reserved: 'Reserved', internal: 'Internal waste', external: 'External waste', free: 'Free' };
const ICONS = {
  play: 'M8 5v14l11-7z', pause: 'M6 5h4v14H6zM14 5h4v14h-4z', back: 'M6 5h2.5v14H6zM20 5v14L9.5 12z', forward: 'M15.5 5H18v14h-2.5zM4 5v14l10.5-7z',
};
const SPEEDS = [2, 5, 10, 20, 40, 80, 160, 320];
const URGENT = ['reject', 'preempt', 'wait', 'copy', 'share', 'evict', 'admit', 'finish', 'arrive'];

function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text) made.textContent = text;
  return made;
}
function put(node, text) { if (node.textContent !== text) node.textContent = text; }
function percent(share) {
  if (share === null) return '—';
  return share > 0 && share < 0.00995 ? `${(share * 100).toFixed(1)}%` : `${Math.round(share * 100)}%`;
}
function icon(node, name) {
  node.innerHTML = `<svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true"><path fill="currentColor" d="${ICONS[name]}"/></svg>`;
}

class SideView {
  constructor(side, memory, palette, select) {
    this.side = side; this.memory = memory; this.palette = palette; this.select = select;
    this.box = element('section', `side ${memory.paged ? 'paged' : 'contiguous'}`);
    this.box.setAttribute('aria-label', side.title);
    const head = element('div', 'head');
    this.about = element('div', 'line about');
    this.event = element('div', 'line event');
    head.append(element('h3', '', side.title), this.about);
    this.stage = element('div', 'stage');
    this.hint = element('div', 'hint', memory.paged ? 'Click a block or a request to see its block table' : 'Click a request to see where it lies');
    this.canvas = element('canvas', 'map'); this.overlay = element('canvas', 'overlay');
    this.canvas.setAttribute('role', 'img');
    this.done = element('div', 'done'); this.doneAt = memory.doneAt();
    this.done.textContent = `All finished after ${this.doneAt + 1} steps`;
    this.stage.append(this.hint, this.canvas, this.done, this.overlay);
    this.painter = new Painter(this.canvas, this.overlay, memory, palette);
    this.box.append(head, this.stage, this.event, this.numbers(), this.bar());
    this.byFrame = this.eventsByFrame();
    this.shownEvent = null; this.eventSince = 0;
  }

  numbers() {
    const row = element('div', 'numbers');
    const number = (label, size) => {
      const box = element('div', `number ${size || ''}`), value = element('div', 'value');
      box.append(value, element('div', 'label', label)); row.append(box);
      return value;
    };
    this.utilisation = number('utilisation', 'big');
    this.utilisation.parentElement.title = 'KV utilisation: token states of the slots that requests hold';
    this.running = number('requests in memory', 'big');
    this.waiting = number('waiting');
    this.finished = number('finished');
    this.preempted = this.memory.paged ? number('preempted') : null;
    this.chips = element('div', 'chips');
    this.chips.setAttribute('role', 'group'); this.chips.setAttribute('aria-label', 'Requests in memory');
    const all = element('div', 'account');
    all.append(row, this.chips);
    return all;
  }

  bar() {
    const box = element('div', 'shares'), bar = element('div', 'bar'), text = element('div', 'words');
    this.parts = KINDS.map((kind) => { const part = element('div', `part ${kind}`); bar.append(part); return part; });
    this.words = KINDS.map((kind) => {
      const word = element('span', 'word'), value = element('b');
      word.append(element('i', `swatch ${kind}`), value, document.createTextNode(` ${kind}`)); text.append(word);
      return value;
    });
    bar.title = 'Shares of the whole memory'; text.title = bar.title;
    box.append(bar, text);
    return box;
  }

  eventsByFrame() {
    const { frame, kind } = this.side.events;
    const chosen = new Map();
    frame.forEach((at, i) => {
      const before = chosen.get(at);
      if (before === undefined || URGENT.indexOf(kind[i]) < URGENT.indexOf(kind[before])) chosen.set(at, i);
    });
    return [...chosen.entries()].sort((a, b) => a[0] - b[0]);
  }

  /** Index of the event to call out after a step, -1 before the first. */
  eventAt(frame) {
    let low = 0, high = this.byFrame.length;
    while (low < high) { const middle = (low + high) >> 1; if (this.byFrame[middle][0] <= frame) low = middle + 1; else high = middle; }
    return low ? this.byFrame[low - 1][1] : -1;
  }

  draw(frame, selected, hovered) {
    this.memory.at(frame);
    this.painter.paint(selected);
    if (selected !== null || hovered >= 0 || this.overlaid) this.painter.paintOver(selected, hovered);
    this.overlaid = selected !== null || hovered >= 0;
  }

  /** The numbers of the simulation, never counted from the picture. */
  account(frame, selected) {
    const series = this.side.series, slots = this.memory.slots;
    put(this.utilisation, percent(this.memory.utilisation(frame)));
    put(this.running, String(series.running[frame]));
    put(this.waiting, String(series.waiting[frame]));
    put(this.finished, String(series.finished[frame]));
    if (this.preempted) put(this.preempted, String(series.preempted[frame]));
    KINDS.forEach((kind, i) => {
      const share = percent(series[kind][frame] / slots);
      put(this.words[i], share);
      this.parts[i].style.width = `${100 * series[kind][frame] / slots}%`;
    });
    this.done.hidden = this.doneAt < 0 || frame < this.doneAt;
    this.drawChips(selected);
    this.drawAbout(selected, frame);
  }

  drawChips(selected) {
    const running = this.memory.requestsRunning(), wanted = `${running.join()}|${selected}`;
    if (wanted === this.chipsShown) return;
    this.chipsShown = wanted;
    while (this.chips.children.length > running.length) this.chips.lastChild.remove();
    while (this.chips.children.length < running.length) {
      const chip = element('button', 'chip'); chip.type = 'button';
      chip.onclick = () => this.select(Number(chip.dataset.request));
      this.chips.append(chip);
    }
    running.forEach((request, i) => {
      const chip = this.chips.children[i];
      chip.dataset.request = String(request);
      chip.style.background = this.palette[request % this.palette.length];
      chip.setAttribute('aria-pressed', String(request === selected));
      chip.setAttribute('aria-label', requestName(this.memory, request));
      chip.title = requestName(this.memory, request);
    });
  }

  drawAbout(selected, frame) {
    this.hint.hidden = selected !== null;
    put(this.about, selected === null ? '' : this.aboutRequest(selected, frame));
  }

  aboutRequest(request, frame) {
    const stays = this.memory.staysOf(request), name = `Request ${request}`;
    if (!stays.length) return this.memory.requests.arrival[request] > frame ? `${name}: not here yet` : `${name}: not in memory`;
    const tokens = this.memory.tokensOf(stays[0], frame), tables = stays.map((stay) => this.memory.tables.get(stay));
    const what = stays.length > 1 ? count(stays.length, 'sample') : count(tokens, 'token');
    const where = this.memory.paged ? count(new Set(tables.flat()).size, 'block') : `${count(tables.length, 'chunk')} of ${tables[0].length * this.memory.unit}`;
    return `${name}: ${what} in ${where}`;
  }

  /** One calm line: while playing an event stays long enough to be read. */
  callOut(frame, playing, now) {
    const event = this.eventAt(frame);
    if (event === this.shownEvent || (playing && now - this.eventSince < 1600 && event > this.shownEvent)) return;
    this.shownEvent = event; this.eventSince = now;
    const events = this.side.events;
    put(this.event, event < 0 ? '' : events.text[event]);
    this.event.title = event < 0 ? '' : events.text[event];
    this.event.dataset.kind = event < 0 ? '' : events.kind[event];
  }

  /** What is in a slot, as lines of text. */
  describe(slot) {
    const { memory } = this, block = Math.floor(slot / memory.unit), kind = memory.kind[slot];
    const unit = memory.paged ? 'block' : 'unit';
    if (block >= memory.units) return ['External waste', `Too small for a whole ${unit}`];
    const holders = memory.holdersOf(block);
    const inside = `Physical ${unit} ${block}, slot ${slot % memory.unit} of ${memory.unit}`;
    if (!holders.length) return [kind === CACHED ? 'Free, its prefix can still be found' : 'Free', inside];
    const names = holders.slice(0, 4).map(([stay, logical]) => `${sequenceName(memory, stay)}: logical ${unit} ${logical}`);
    if (holders.length > 4) names.push(`and ${holders.length - 4} more`);
    let filled = 0;
    for (let cell = block * memory.unit; cell < (block + 1) * memory.unit; cell += 1) filled += memory.kind[cell] === TOKENS ? 1 : 0;
    return [...names, inside, `${filled} of ${memory.unit} slots hold tokens · this one: ${KIND_NAMES[KINDS[kind]].toLowerCase()}`];
  }
}

function count(number, noun) { return `${number} ${noun}${number === 1 ? '' : 's'}`; }
function requestName(memory, request) {
  const name = memory.requests.name[request];
  return name ? `Request ${request} (${name})` : `Request ${request}`;
}
function sequenceName(memory, stay) {
  const request = memory.requestOf(stay), siblings = memory.staysOf(request).length;
  return siblings > 1 ? `${requestName(memory, request)}, sample ${memory.side.stays.sequence[stay]}` : requestName(memory, request);
}
