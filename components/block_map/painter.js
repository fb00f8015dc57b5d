// One memory on canvas: cells in rows, each drawn again only when it changed; above it the block table as arrows.
const STRIP_PX = 34, STRIP_BOX_PX = 15, MAX_ARROWS = 80;

function hexParts(hex) { return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)); }

/** Colours of the theme that Streamlit shows now; the kinds of memory have one set for light and one for dark. */
function readTheme(element, kinds) {
  const read = (name) => getComputedStyle(element).getPropertyValue(name).trim();
  const [red, green, blue] = hexParts(read('--st-background-color'));
  const own = red + green + blue > 384 ? kinds.light : kinds.dark;
  Object.entries(own).forEach(([kind, colour]) => element.style.setProperty(`--${kind}`, colour));
  return { ...own, text: read('--st-text-color'), panel: read('--st-secondary-background-color') };
}

function mixed(colour, other, share) {
  const [a, b] = [hexParts(colour), hexParts(other)];
  return `rgb(${a.map((value, i) => Math.round(value * share + b[i] * (1 - share))).join(',')})`;
}

/** Diagonal stripes of a colour on its pale tint: memory that is kept for later. */
function hatch(context, colour, pale, scale) {
  const size = Math.round(6 * scale);
  const tile = document.createElement('canvas');
  tile.width = size; tile.height = size;
  const on = tile.getContext('2d');
  on.fillStyle = pale; on.fillRect(0, 0, size, size);
  on.strokeStyle = colour; on.lineWidth = size / 3.2;
  for (const shift of [-size, 0, size]) {
    on.beginPath(); on.moveTo(shift - 1, size + 1); on.lineTo(shift + size + 1, -1); on.stroke();
  }
  return context.createPattern(tile, 'repeat');
}

/** Columns (a power of two, so that blocks line up) that make cells as square as can be. */
function columnsFor(slots, width, height) {
  let best = 1, least = Infinity;
  for (let columns = 4; columns <= 1024; columns *= 2) {
    const off = Math.abs(Math.log((width / columns) / (height / Math.ceil(slots / columns))));
    if (off < least) { least = off; best = columns; }
  }
  return best;
}

class Painter {
  constructor(canvas, overlay, memory, palette) {
    this.canvas = canvas; this.overlay = overlay;
    this.on = canvas.getContext('2d', { alpha: false });
    this.over = overlay.getContext('2d');
    this.show(memory, palette);
  }

  show(memory, palette) {
    this.memory = memory;
    this.palette = palette;
    this.drawn = new Int32Array(memory.slots);
    this.stale = true;
  }

  layout(width, height, theme) {
    const scale = window.devicePixelRatio || 1;
    Object.assign(this, { width, height, scale, theme });
    this.columns = columnsFor(this.memory.slots, width, height);
    this.rows = Math.ceil(this.memory.slots / this.columns);
    this.canvas.width = Math.round(width * scale); this.canvas.height = Math.round(height * scale);
    this.overlay.width = Math.round(width * scale); this.overlay.height = Math.round((height + STRIP_PX) * scale);
    this.x = Array.from({ length: this.columns + 1 }, (_, i) => Math.round(i * this.canvas.width / this.columns));
    this.y = Array.from({ length: this.rows + 1 }, (_, i) => Math.round(i * this.canvas.height / this.rows));
    this.styles = this.palette.map((colour) => {
      const pale = mixed(colour, theme.free, 0.24);
      return { solid: colour, hatched: hatch(this.on, colour, pale, scale), pale };
    });
    this.lines = this.drawLines();
    this.stale = true;
  }

  /** The gaps between cells and units, drawn once and laid over every repaint. */
  drawLines() {
    const lines = document.createElement('canvas');
    lines.width = this.canvas.width; lines.height = this.canvas.height;
    const on = lines.getContext('2d');
    const thin = Math.max(1, Math.round(this.scale)), cell = Math.min(this.x[1], this.y[1]) / this.scale;
    const { unit, slots, paged } = this.memory;
    on.fillStyle = this.theme.panel;
    const thick = paged && unit > 1 && cell >= 5 ? 2 * thin : thin;
    for (let slot = 0; slot < slots; slot += 1) {
      const row = Math.floor(slot / this.columns), column = slot % this.columns;
      const edge = slot % unit === 0;
      if (column && (edge || cell >= 4)) {
        on.globalAlpha = edge && paged ? 1 : 0.4;
        on.fillRect(this.x[column], this.y[row], edge ? thick : thin, this.y[row + 1] - this.y[row]);
      }
    }
    on.globalAlpha = 1;
    for (let row = 1; row < this.rows && cell >= 3; row += 1) {
      on.fillRect(0, this.y[row], lines.width, (row * this.columns) % unit === 0 ? thick : thin);
    }
    return lines;
  }

  /** Draw what changed since the last call; everything when the selection or the size did. */
  paint(selected) {
    const { kind, mark, unit, units, slots } = this.memory;
    if (selected !== this.selected) { this.selected = selected; this.stale = true; }
    if (this.stale) {
      this.on.fillStyle = this.theme.panel; this.on.fillRect(0, 0, this.canvas.width, this.canvas.height);
      this.drawn.fill(-1);
      this.stale = false;
    }
    const codeOf = (slot) => {
      const block = Math.floor(slot / unit);
      return (block < units ? Math.imul(mark[block], 8) : 0) | kind[slot];
    };
    for (let row = 0; row < this.rows; row += 1) {
      const end = Math.min(slots, (row + 1) * this.columns);
      let slot = row * this.columns;
      while (slot < end) {
        const code = codeOf(slot);
        if (code === this.drawn[slot]) { slot += 1; continue; }
        const first = slot;
        while (slot < end && codeOf(slot) === code && this.drawn[slot] !== code) { this.drawn[slot] = code; slot += 1; }
        this.paintRun(row, first - row * this.columns, slot - row * this.columns, first);
      }
    }
  }

  paintRun(row, from, to, slot) {
    const { on, x, y } = this, { kind, unit, units, holder, sharers } = this.memory;
    const left = x[from], width = x[to] - left, top = y[row], height = y[row + 1] - top;
    const block = Math.floor(slot / unit), stay = block < units ? holder[block] : -1;
    on.globalAlpha = 1;
    on.fillStyle = this.theme.free; on.fillRect(left, top, width, height);
    if (kind[slot] === EXTERNAL) { on.fillStyle = this.theme.external; on.fillRect(left, top, width, height); }
    else if (kind[slot] === CACHED) this.paintCached(row, from, to);
    else if (stay >= 0 && sharers[block] > 1) this.paintShared(block, slot, left, top, width, height);
    else if (stay >= 0) this.fill(stay, kind[slot], left, top, width, height);
    on.globalAlpha = 1;
    on.drawImage(this.lines, left, top, width, height, left, top, width, height);
  }

  fill(stay, kind, left, top, width, height) {
    const request = this.memory.requestOf(stay), style = this.styles[request % this.styles.length];
    this.on.globalAlpha = this.selected === null || this.selected === request ? 1 : 0.2;
    this.on.fillStyle = kind === TOKENS ? style.solid : kind === RESERVED ? style.hatched : style.pale;
    this.on.fillRect(left, top, width, height);
  }

  /** A block of several requests shows the colour of each. */
  paintShared(block, slot, left, top, width, height) {
    const holders = this.memory.holdersOf(block).slice(0, 4);
    holders.forEach(([stay], i) => {
      const from = Math.round(i * height / holders.length), to = Math.round((i + 1) * height / holders.length);
      this.fill(stay, this.memory.kind[slot], left, top + from, width, to - from);
    });
    this.on.globalAlpha = 1;
    this.on.fillStyle = this.theme.text;
    const bar = Math.max(1, Math.round(1.5 * this.scale));
    this.on.fillRect(left, top, width, bar);
    this.on.fillRect(left, top + height - bar, width, bar);
  }

  paintCached(row, from, to) {
    const { on, x, y } = this;
    on.fillStyle = this.theme.tokens;
    for (let column = from; column < to; column += 1) {
      const size = Math.max(1, Math.round(Math.min(x[column + 1] - x[column], y[row + 1] - y[row]) * 0.36));
      on.fillRect(Math.round((x[column] + x[column + 1] - size) / 2), Math.round((y[row] + y[row + 1] - size) / 2), size, size);
    }
  }

  /** The slot under a point of the map (CSS pixels), -1 outside. */
  slotAt(left, top) {
    if (left < 0 || top < 0 || left >= this.width || top >= this.height) return -1;
    const slot = Math.floor(top * this.rows / this.height) * this.columns + Math.floor(left * this.columns / this.width);
    return slot < this.memory.slots ? slot : -1;
  }

  /** Middle (CSS pixels, overlay) of a unit's first row. */
  middleOf(physical) {
    const slot = physical * this.memory.unit, row = Math.floor(slot / this.columns), column = slot % this.columns;
    const across = Math.min(this.memory.unit, this.columns - column);
    return [(column + across / 2) * this.width / this.columns, STRIP_PX + (row + 0.5) * this.height / this.rows];
  }

  /** The selected request's block table, and the outline of what the pointer is on. */
  paintOver(selected, hovered) {
    const { over, scale } = this;
    over.setTransform(1, 0, 0, 1, 0, 0);
    over.clearRect(0, 0, this.overlay.width, this.overlay.height);
    over.setTransform(scale, 0, 0, scale, 0, 0);
    if (hovered >= 0) this.outline(hovered);
    if (selected === null) return;
    const stays = this.memory.staysOf(selected).slice(0, 4);
    stays.forEach((stay, i) => this.paintTable(stay, i, stays.length, selected));
  }

  paintTable(stay, line, lines, selected) {
    const { over, memory, theme } = this;
    const colour = this.palette[selected % this.palette.length];
    const spans = this.spansOf(memory.tables.get(stay));
    const units = spans.reduce((sum, span) => sum + span.count, 0);
    const box = Math.min(memory.paged ? 22 : 14, this.width / Math.max(1, units));
    const height = STRIP_BOX_PX / lines, top = 1 + line * height;
    const gap = box > 6 ? 2 : box > 3 ? 1 : 0;
    const every = Math.ceil(spans.length / Math.max(1, Math.floor(MAX_ARROWS / lines)));
    spans.forEach((span, i) => {
      const left = span.logical * box, width = span.count * box - gap;
      over.fillStyle = colour; over.strokeStyle = theme.panel;
      over.fillRect(left, top, width, height - (lines > 1 ? 1 : 0));
      if (lines === 1 && width >= 13) {
        over.fillStyle = '#fff'; over.font = '600 10px sans-serif'; over.textAlign = 'center'; over.textBaseline = 'middle';
        over.fillText(span.count > 1 ? `${span.logical}–${span.logical + span.count - 1}` : String(span.logical), left + width / 2, top + height / 2 + 0.5);
      }
      if (i % every === 0) this.arrow(left + width / 2, top + height, ...this.middleOf(span.physical), colour);
    });
  }

  /** Logical units one after the other: paged ones each for itself, a contiguous chunk as one piece. */
  spansOf(table) {
    const spans = [];
    table.forEach((physical, logical) => {
      const last = spans[spans.length - 1];
      if (physical < 0) return;
      if (last && !this.memory.paged && last.physical + last.count === physical) last.count += 1;
      else spans.push({ logical, physical, count: 1 });
    });
    return spans;
  }

  arrow(x0, y0, x1, y1, colour) {
    const { over, theme } = this;
    const bend = Math.max(14, (y1 - y0) * 0.45), tip = y1 - 3;
    const curve = () => { over.beginPath(); over.moveTo(x0, y0); over.bezierCurveTo(x0, y0 + bend, x1, tip - bend, x1, tip); over.stroke(); };
    over.lineCap = 'round';
    over.strokeStyle = theme.panel; over.lineWidth = 3.5; curve();
    over.strokeStyle = colour; over.lineWidth = 1.6; curve();
    over.fillStyle = theme.text;
    over.beginPath(); over.moveTo(x1 - 4, y1 - 5); over.lineTo(x1 + 4, y1 - 5); over.lineTo(x1, y1 + 2); over.closePath(); over.fill();
  }

  outline(slot) {
    const { over, memory } = this;
    const block = Math.floor(slot / memory.unit);
    const first = block < memory.units ? block * memory.unit : slot, end = block < memory.units ? first + memory.unit : slot + 1;
    over.strokeStyle = this.theme.text; over.lineWidth = 2;
    for (let at = first; at < end;) {
      const row = Math.floor(at / this.columns), stop = Math.min(end, (row + 1) * this.columns);
      const cell = this.width / this.columns, tall = this.height / this.rows;
      over.strokeRect((at % this.columns) * cell, STRIP_PX + row * tall, (stop - at) * cell, tall);
      at = stop;
    }
  }
}
