// What one memory holds after any step, worked out from the recording alone. No drawing here.
const KINDS = ['tokens', 'reserved', 'internal', 'external', 'free'];
const TOKENS = 0, RESERVED = 1, INTERNAL = 2, EXTERNAL = 3, FREE = 4, CACHED = 5;
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/** Indices 0..n-1 of `keys` grouped by key, in their own order: group k is order[start[k]..start[k+1]). */
function grouped(keys, groups) {
  const start = new Int32Array(groups + 1), order = new Int32Array(keys.length);
  for (const key of keys) start[key + 1] += 1;
  for (let k = 0; k < groups; k += 1) start[k + 1] += start[k];
  const next = start.slice();
  for (let i = 0; i < keys.length; i += 1) { order[next[keys[i]]] = i; next[keys[i]] += 1; }
  return { start, order };
}

/** Position in group `key` of the last entry whose frame is not after `frame`; start[key] - 1 where there is none. */
function lastAt(group, frames, key, frame) {
  let low = group.start[key], high = group.start[key + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (frames[group.order[middle]] <= frame) low = middle + 1; else high = middle;
  }
  return low - 1;
}

class Memory {
  constructor(side, payload) {
    this.side = side;
    this.requests = payload.requests;
    this.slots = payload.slots;
    this.unit = side.unit;
    this.units = side.blocks;
    this.paged = side.allocator.startsWith('paged');
    const stays = side.stays.from.length;
    this.anchors = grouped(side.anchors.stay, stays);
    this.holds = grouped(side.holds.stay, stays);
    this.cached = grouped(side.cached.physical, this.units);
    this.kind = new Uint8Array(this.slots);   // per slot
    this.holder = new Int32Array(this.units); // per unit: the first stay that holds it, -1 for none
    this.sharers = new Int32Array(this.units);
    this.mark = new Int32Array(this.units);   // changes whenever the set of holders does
    this.running = [];                        // stays in memory
    this.tables = new Map();                  // stay → physical unit of each logical unit, -1 for none
    this.frame = -1;
  }

  /** Work out the state after step `frame`. */
  at(frame) {
    if (frame === this.frame) return;
    const { from, to } = this.side.stays;
    this.frame = frame;
    this.kind.fill(FREE).fill(EXTERNAL, this.units * this.unit);
    this.holder.fill(-1); this.sharers.fill(0); this.mark.fill(0);
    this.running = []; this.tables.clear();
    for (let stay = 0; stay < from.length; stay += 1) {
      if (from[stay] > frame || to[stay] <= frame) continue;
      this.running.push(stay);
      const table = this.table(stay, frame);
      this.tables.set(stay, table);
      const tokens = this.tokensOf(stay, frame), final = Math.max(tokens, this.finalOf(stay));
      const assumed = this.paged ? Infinity : Math.max(final, this.side.stays.estimate[stay]);
      table.forEach((physical, logical) => { if (physical >= 0) this.place(stay, logical, physical, tokens, final, assumed); });
    }
    this.markCached(frame);
  }

  /** Tokens of a stay after step `frame`: from the last anchor on one more with every step. */
  tokensOf(stay, frame) {
    const { frame: frames, tokens } = this.side.anchors;
    const position = lastAt(this.anchors, frames, stay, frame);
    if (position < this.anchors.start[stay]) return 0;
    const anchor = this.anchors.order[position];
    return tokens[anchor] + frame - frames[anchor];
  }

  finalOf(stay) {
    const request = this.side.stays.request[stay];
    return this.requests.prompt[request] + this.requests.output[request];
  }

  table(stay, frame) {
    const { frame: frames, logical, physical, count } = this.side.holds;
    const table = [];
    const last = lastAt(this.holds, frames, stay, frame);
    for (let i = this.holds.start[stay]; i <= last; i += 1) {
      const hold = this.holds.order[i];
      while (table.length < logical[hold]) table.push(-1);
      for (let n = 0; n < count[hold]; n += 1) table[logical[hold] + n] = physical[hold] + n;
    }
    return table;
  }

  place(stay, logical, physical, tokens, final, assumed) {
    const offset = logical * this.unit, base = physical * this.unit;
    for (let cell = 0; cell < this.unit; cell += 1) {
      const position = offset + cell;
      const kind = position < tokens ? TOKENS : position < final ? RESERVED : position < assumed ? INTERNAL : EXTERNAL;
      if (kind < this.kind[base + cell]) this.kind[base + cell] = kind; // a shared block counts once, at its fullest
    }
    if (this.holder[physical] < 0) this.holder[physical] = stay;
    this.sharers[physical] += 1;
    this.mark[physical] = Math.imul(this.mark[physical] ^ (stay + 1), 0x01000193);
  }

  markCached(frame) {
    const { frame: frames, on } = this.side.cached;
    if (!frames.length) return;
    for (let physical = 0; physical < this.units; physical += 1) {
      if (this.holder[physical] >= 0) continue;
      const position = lastAt(this.cached, frames, physical, frame);
      if (position < this.cached.start[physical] || !on[this.cached.order[position]]) continue;
      this.kind.fill(CACHED, physical * this.unit, (physical + 1) * this.unit);
    }
  }

  /** Token states of the slots that requests hold (KV utilisation), from the simulation; null while nothing is held. */
  utilisation(frame) {
    const { tokens, free } = this.side.series, held = this.units * this.unit - free[frame];
    return held > 0 ? tokens[frame] / held : null;
  }

  /** The first step after which every request that could be served is finished, -1 for never. */
  doneAt() {
    const { finished } = this.side.series, rejected = this.side.events.kind.filter((kind) => kind === 'reject').length;
    const wanted = this.requests.arrival.length - rejected;
    return wanted > 0 ? finished.findIndex((number) => number >= wanted) : -1;
  }

  /** Slots of each kind on the map, in the order of KINDS; a cached free block is free. */
  counts() {
    const counts = [0, 0, 0, 0, 0];
    for (const kind of this.kind) counts[Math.min(kind, FREE)] += 1;
    return counts;
  }

  requestOf(stay) { return this.side.stays.request[stay]; }

  /** Who holds a unit: [stay, logical unit] of every holder. */
  holdersOf(physical) {
    const found = [];
    this.tables.forEach((table, stay) => {
      const logical = table.indexOf(physical);
      if (logical >= 0) found.push([stay, logical]);
    });
    return found;
  }

  staysOf(request) { return this.running.filter((stay) => this.requestOf(stay) === request); }

  /** Requests in memory, in the order in which they came in. */
  requestsRunning() { return [...new Set(this.running.map((stay) => this.requestOf(stay)))]; }
}
