const trees = new WeakMap();
const GAP_REM = 0.32, HEAD_REM = 2.2, LINE_REM = 1.18;
// High enough for some words; lower where there are many rows, so that all of them are on one screen.
function rowRem(rows) { return rows <= 4 ? 5.75 : rows <= 6 ? 4.75 : 4.4; }
const SQUARE = 9, PITCH = 11;
function element(tag, name, text) { const e = document.createElement(tag); e.className = name || ''; if (text) e.textContent = text; return e; }
function build(root) {
  const parts = { tree: element('div', 'tree'), empty: element('div', 'empty', 'No block is cached yet. Send a request: every full block of it appears here.'),
    caption: element('div', 'caption'), map: document.createElement('canvas'), cells: new Map(), drawn: false };
  parts.tree.setAttribute('role', 'list');
  parts.tree.setAttribute('aria-label', 'Cached blocks, each below the block that comes before it');
  parts.map.setAttribute('role', 'img');
  root.replaceChildren(parts.tree, parts.empty, parts.caption, parts.map);
  return parts;
}
function blocks(count) { return count === 1 ? '1 block' : count.toLocaleString('en') + ' blocks'; }
function spoken(cell) {
  if (cell.hidden) return blocks(cell.hidden) + ' not drawn';
  const place = cell.number ? 'Block ' + cell.number : 'Block of a chain whose beginning is gone';
  const users = cell.marks.length ? 'of request ' + cell.marks.map((m) => m.label).join(', ') : 'of no request that is followed';
  const copies = cell.copies > 1 ? ', held ' + cell.copies + ' times' : '';
  return place + ', ' + cell.tokens + ' tokens, ' + users + copies + ': ' + (cell.words ?? 'words not known');
}
function fill(box, cell, row) {
  const shape = ['cell', cell.hidden ? 'hidden' : '', cell.orphan ? 'orphan' : '', cell.marks.length ? 'marked' : '', cell.marks.length > 1 ? 'shared' : '', cell.rows > 1 ? 'tall' : ''];
  const isNew = box.classList.contains('new');
  box.className = shape.filter(Boolean).join(' ') + (isNew ? ' new' : '');
  box.style.gridArea = `${cell.row} / ${cell.column} / span ${cell.rows} / span 1`;
  if (cell.marks.length === 1) box.style.setProperty('--tint', cell.marks[0].colour);
  else box.style.removeProperty('--tint');
  box.setAttribute('role', 'listitem');
  box.setAttribute('aria-label', spoken(cell));
  box.title = cell.hidden ? '' : spoken(cell);
  const words = element('div', 'words', cell.hidden ? '+' + cell.hidden.toLocaleString('en') : cell.words ?? cell.tokens + ' tokens');
  if (cell.hidden) { box.replaceChildren(words); return; }
  const head = element('div', 'head');
  cell.marks.forEach((m) => { const mark = element('div', 'mark', m.label); mark.style.background = m.colour; mark.title = m.title; head.append(mark); });
  const where = cell.orphan ? 'beginning gone' : cell.number ? 'block ' + cell.number : '';
  const number = element('div', 'number', where + (cell.copies > 1 ? ' · ' + cell.copies + ' copies' : ''));
  const height = cell.rows * row + (cell.rows - 1) * GAP_REM - HEAD_REM;
  words.style.webkitLineClamp = String(Math.max(2, Math.floor(height / LINE_REM)));
  box.replaceChildren(head, words);
  (cell.rows > 1 ? box : head).append(number);
}
function drawTree(parts, data) {
  const row = rowRem(Math.max(0, ...data.cells.map((cell) => cell.row + cell.rows - 1)));
  parts.tree.style.gridTemplateColumns = data.columns.join(' ');
  parts.tree.style.gridAutoRows = row + 'rem';
  const wanted = new Set(data.cells.map((cell) => cell.id));
  parts.cells.forEach((entry, id) => { if (!wanted.has(id)) { entry.box.remove(); parts.cells.delete(id); } });
  data.cells.forEach((cell) => {
    const known = parts.cells.get(cell.id), text = row + JSON.stringify(cell);
    if (known && known.text === text) return;
    const box = known ? known.box : element('div');
    if (!known && parts.drawn) box.classList.add('new');
    fill(box, cell, row);
    if (!known) parts.tree.append(box);
    parts.cells.set(cell.id, { box, text });
  });
  parts.drawn = true;
}
function drawMap(parts, data) {
  const few = data.map.length <= data.cells.filter((cell) => !cell.hidden).length;
  parts.caption.hidden = parts.map.hidden = few;
  if (few) return;
  const all = data.map.length === data.different;
  const newest = `${all ? 'All' : 'The newest ' + data.map.length.toLocaleString('en') + ' of'} ${data.different.toLocaleString('en')} different blocks`;
  const equal = data.copies > data.different ? ` (${blocks(data.copies - data.different)} more hold the same as another)` : '';
  parts.caption.textContent = `${newest}, the newest first${equal}. Coloured: of one marked request. Solid: of several. Pale: of others.`;
  parts.map.setAttribute('aria-label', newest);
  const width = Math.max(PITCH, parts.map.parentElement.clientWidth), scale = window.devicePixelRatio || 1;
  const perRow = Math.max(1, Math.floor(width / PITCH)), height = Math.ceil(data.map.length / perRow) * PITCH;
  parts.map.width = width * scale; parts.map.height = height * scale; parts.map.style.height = height + 'px';
  const pen = parts.map.getContext('2d'), text = getComputedStyle(parts.map).color;
  pen.scale(scale, scale);
  data.map.forEach((users, i) => {
    pen.globalAlpha = users ? 1 : 0.4;
    pen.fillStyle = users === 'shared' ? text : users || data.neutral;
    pen.fillRect((i % perRow) * PITCH, Math.floor(i / perRow) * PITCH, SQUARE, SQUARE);
  });
}
export default function (component) {
  const root = component.parentElement.querySelector('.block-tree');
  const data = component.data;
  const parts = trees.get(root) || build(root);
  trees.set(root, parts);
  parts.empty.hidden = data.cells.length > 0;
  drawTree(parts, data);
  drawMap(parts, data);
}
