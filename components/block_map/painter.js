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

/** Where slots lie: every unit is a tile of `wide` × `tall` cells, tiles stand in rows; slots of a tile run row by row. */
class Tiling {
  constructor(slots, unit, width, height, scale) {
    this.unit = unit;
    this.wide = 2 ** Math.ceil(Math.log2(unit) / 2);
    this.tall = Math.ceil(unit / this.wide);
    this.tiles = Math.ceil(slots / unit);
    this.across = this.bestAcross(width / height);
    this.down = Math.ceil(this.tiles / this.across);
    const edges = (cells, size) => Array.from({ length: cells + 1 }, (_, i) => Math.round(i * size * scale / cells));
    this.x = edges(this.across * this.wide, width);
    this.y = edges(this.down * this.tall, height);
  }

  /** Tiles in a row so that cells are as square as can be; powers of two are preferred, because chunks line up then. */
  bestAcross(shape) {
    let best = 1, least = Infinity;
    for (let across = 1; across <= this.tiles; across += 1) {
      const down = Math.ceil(this.tiles / across);
      const off = Math.abs(Math.log(shape * down * this.tall / (across * this.wide))) + (Number.isInteger(Math.log2(across)) ? 0 : 0.6);
      if (off < least) { least = off; best = across; }
    }
    return best;
  }

  column(slot) { return (Math.floor(slot / this.unit) % this.across) * this.wide + (slot % this.unit) % this.wide; }

  row(slot) { return Math.floor(slot / this.unit / this.across) * this.tall + Math.floor((slot % this.unit) / this.wide); }

  /** The slot in a column and row of cells, -1 where a tile has no such cell. */
  slot(column, row) {
    const tile = Math.floor(row / this.tall) * this.across + Math.floor(column / this.wide);
    const inside = (row % this.tall) * this.wide + column % this.wide;
    return inside < this.unit ? tile * this.unit + inside : -1;
  }

  /** Left, top, width and height of a unit (device pixels). */
  box(unit) {
    const column = (unit % this.across) * this.wide, row = Math.floor(unit / this.across) * this.tall;
    return [this.x[column], this.y[row], this.x[column + this.wide] - this.x[column], this.y[row + this.tall] - this.y[row]];
  }
}

class Painter {
  constructor(canvas, overlay, memory, palette) {
    this.canvas = canvas; this.overlay = overlay;
    this.on = canvas.getContext('2d', { alpha: false });
    this.over = overlay.getContext('2d');
    this.memory = memory; this.palette = palette;
    this.selected = null;
    this.drawn = new Int32Array(memory.slots); // what every slot looks like now
    this.stale = true;                         // nothing of it holds any more
  }

  layout(width, height, theme) {
    const scale = window.devicePixelRatio || 1;
    Object.assign(this, { width, height, scale, theme });
    this.tiling = new Tiling(this.memory.slots, this.memory.unit, width, height, scale);
    this.canvas.width = Math.round(width * scale); this.canvas.height = Math.round(height * scale);
    this.overlay.width = Math.round(width * scale); this.overlay.height = Math.round((height + STRIP_PX) * scale);
    this.styles = this.palette.map((colour) => {
      const pale = mixed(colour, theme.free, 0.24);
      return { solid: colour, hatched: hatch(this.on, colour, pale, scale), pale };
    });
    this.lines = this.drawLines();
    this.stale = true;
  }

  /** The gaps between cells and between units, drawn once and laid over every repaint. */
  drawLines() {
    const { x, y, wide, tall } = this.tiling, { paged, unit } = this.memory;
    const lines = document.createElement('canvas');
    lines.width = this.canvas.width; lines.height = this.canvas.height;
    const on = lines.getContext('2d');
    const thin = Math.max(1, Math.round(this.scale)), cell = Math.min(x[1], y[1]) / this.scale;
    const width = (edge) => (edge && paged && unit > 1 ? 2 * thin : thin);
    const strength = (edge) => (edge && (paged || unit === 1) ? 1 : cell >= 4 ? 0.45 : 0);
    on.fillStyle = this.theme.panel;
    for (let i = 1; i < x.length - 1; i += 1) { on.globalAlpha = strength(i % wide === 0); on.fillRect(x[i], 0, width(i % wide === 0), lines.height); }
    for (let i = 1; i < y.length - 1; i += 1) { on.globalAlpha = strength(i % tall === 0); on.fillRect(0, y[i], lines.width, width(i % tall === 0)); }
    return lines;
  }

  /** Draw what changed since the last call; everything when the selection or the size did. */
  paint(selected) {
    const { kind, mark, unit, units, slots, sharers } = this.memory, { wide } = this.tiling;
    if (selected !== this.selected) { this.selected = selected; this.stale = true; }
    if (this.stale) {
      this.on.fillStyle = this.theme.panel; this.on.fillRect(0, 0, this.canvas.width, this.canvas.height);
      this.drawn.fill(-1);
    }
    const shared = new Set();
    for (let slot = 0; slot < slots;) {
      const block = Math.floor(slot / unit), of = block < units ? Math.imul(mark[block], 8) : 0;
      const end = Math.min(slots, (block + 1) * unit, slot - (slot % unit) % wide + wide);
      while (slot < end) {
        const code = of | kind[slot], first = slot;
        if (code === this.drawn[slot]) { slot += 1; continue; }
        while (slot < end && (of | kind[slot]) === code) { this.drawn[slot] = code; slot += 1; }
        this.paintRun(first, slot, block < units ? block : -1);
        if (block < units && sharers[block] > 1) shared.add(block);
      }
    }
    this.on.globalAlpha = 1;
    if (this.stale) this.on.drawImage(this.lines, 0, 0);
    this.stale = false;
    shared.forEach((block) => this.frame(block));
  }

  /** Slots first..end-1 of one row of a tile, all of one kind; `block` is -1 behind the last whole unit. */
  paintRun(first, end, block) {
    const { on } = this, { x, y } = this.tiling, { kind, holder } = this.memory;
    const column = this.tiling.column(first), row = this.tiling.row(first);
    const box = [x[column], y[row], x[column + end - first] - x[column], y[row + 1] - y[row]];
    on.globalAlpha = 1;
    on.fillStyle = kind[first] === EXTERNAL ? this.theme.external : this.theme.free;
    on.fillRect(...box);
    if (kind[first] === CACHED) this.paintCached(row, column, column + end - first);
    else if (block >= 0 && holder[block] >= 0 && kind[first] !== EXTERNAL) this.fill(this.painted(block, row % this.tiling.tall), kind[first], box);
    on.globalAlpha = 1;
    if (!this.stale) on.drawImage(this.lines, ...box, ...box);
  }

  /** The stay whose colour a row of a tile has: a shared block shows the requests that share it, row by row. */
  painted(block, row) {
    if (this.memory.sharers[block] < 2) return this.memory.holder[block];
    const stays = this.memory.holdersOf(block).map(([stay]) => stay);
    const chosen = stays.find((stay) => this.memory.requestOf(stay) === this.selected);
    return chosen === undefined ? stays[row % stays.length] : chosen;
  }

  fill(stay, kind, box) {
    const request = this.memory.requestOf(stay), style = this.styles[request % this.styles.length];
    this.on.globalAlpha = this.selected === null || this.selected === request ? 1 : 0.2;
    this.on.fillStyle = kind === TOKENS ? style.solid : kind === RESERVED ? style.hatched : style.pale;
    this.on.fillRect(...box);
  }

  /** A shared block: a frame, and by how many it is shared where there is room. */
  frame(block) {
    const { on, scale, theme } = this, [left, top, width, height] = this.tiling.box(block);
    const bar = Math.max(1, Math.round(1.5 * scale)), gap = Math.round(2 * scale);
    const chosen = this.selected === null || this.memory.holdersOf(block).some(([stay]) => this.memory.requestOf(stay) === this.selected);
    on.globalAlpha = chosen ? 1 : 0.35;
    on.strokeStyle = theme.text; on.lineWidth = bar;
    on.strokeRect(left + gap + bar / 2, top + gap + bar / 2, width - gap - bar, height - gap - bar);
    on.globalAlpha = 1;
    if (!chosen || Math.min(width, height) < 16 * scale) return;
    const text = `×${this.memory.sharers[block]}`;
    on.font = `700 ${Math.round(Math.min(0.5 * height, (width - 4 * gap) / (0.66 * text.length), 16 * scale))}px sans-serif`;
    on.textAlign = 'center'; on.textBaseline = 'middle'; on.lineJoin = 'round';
    on.lineWidth = 3 * scale; on.strokeStyle = theme.panel; on.fillStyle = theme.text;
    on.strokeText(text, left + (width + gap) / 2, top + (height + gap) / 2); on.fillText(text, left + (width + gap) / 2, top + (height + gap) / 2);
  }

  paintCached(row, from, to) {
    const { on } = this, { x, y } = this.tiling;
    on.globalAlpha = this.selected === null ? 1 : 0.3;
    on.fillStyle = this.theme.tokens;
    for (let column = from; column < to; column += 1) {
      const size = Math.max(1, Math.round(Math.min(x[column + 1] - x[column], y[row + 1] - y[row]) * 0.36));
      on.fillRect(Math.round((x[column] + x[column + 1] - size) / 2), Math.round((y[row] + y[row + 1] - size) / 2), size, size);
    }
  }

  /** The slot under a point of the map (CSS pixels), -1 outside. */
  slotAt(left, top) {
    if (left < 0 || top < 0 || left >= this.width || top >= this.height) return -1;
    const { x, y } = this.tiling;
    const slot = this.tiling.slot(Math.floor(left * (x.length - 1) / this.width), Math.floor(top * (y.length - 1) / this.height));
    return slot < this.memory.slots ? slot : -1;
  }

  /** A unit's box on the overlay (CSS pixels). */
  boxOf(unit) {
    const [left, top, width, height] = this.tiling.box(unit).map((pixels) => pixels / this.scale);
    return [left, top + STRIP_PX, width, height];
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
      if (i % every === 0) this.arrow(left + width / 2, top + height, ...this.target(span), colour);
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

  /** Where an arrow ends: in the middle of a page, at the beginning of a chunk. */
  target(span) {
    const [left, top, width, height] = this.boxOf(span.physical);
    return [left + width / 2, top + height / 2];
  }

  outline(slot) {
    this.over.strokeStyle = this.theme.text; this.over.lineWidth = 2;
    this.over.strokeRect(...this.boxOf(Math.floor(slot / this.memory.unit)));
  }
}
