// Where each page of each table lies on the canvas, and how it is drawn. Knows no server.

import { label } from "./requests.js";
import { count } from "./format.js";

export const ROW = 26; // pixels
const CELL = 14; // high
const WIDEST = 14;
const NARROWEST = 4;
const GAP_TEXT = 64; // for "… 812 …" where the middle of a long table is left out

/** Rows with their cells: {table, y, step, labelWidth, cells: [{page, x}], left: how many pages are left out}. */
export function layoutRows(tables, width) {
  const labelWidth = width < 520 ? 108 : 196;
  const room = width - labelWidth - (tables.some(isCut) ? 52 : 4);
  const longest = Math.max(1, ...tables.map((table) => table.pages.length));
  const step = Math.max(NARROWEST, Math.min(WIDEST, Math.floor(room / longest)));
  const fits = Math.floor(room / step);
  return tables.map((table, index) => {
    const row = { table, y: index * ROW, step, labelWidth, cells: [], left: 0, gapAt: 0 };
    const { pages } = table;
    if (pages.length <= fits) {
      row.cells = pages.map((page, at) => ({ page, x: labelWidth + at * step }));
      return row;
    }
    const shown = Math.floor((room - GAP_TEXT) / step);
    const head = Math.ceil(shown * 0.6);
    const tail = shown - head;
    row.left = pages.length - shown;
    row.gapAt = labelWidth + head * step;
    const first = pages.slice(0, head).map((page, at) => ({ page, x: labelWidth + at * step }));
    const last = pages.slice(pages.length - tail).map((page, at) => ({ page, x: row.gapAt + GAP_TEXT + at * step }));
    row.cells = [...first, ...last];
    return row;
  });
}

/** Whether the server sent only its first pages. */
const isCut = (table) => (table.num_pages ?? 0) - (table.first_page ?? 0) > table.pages.length;

export function drawRows(context, rows, width, look) {
  context.clearRect(0, 0, width, rows.length * ROW + 4);
  look.hatch = makeHatch(context, look.value("--surface"));
  for (const row of rows) drawRow(context, row, look);
  drawArrows(context, rows, look);
}

function drawRow(context, row, look) {
  const { table, y, step, labelWidth } = row;
  const colour = look.colourOf(table.owner);
  const top = y + (ROW - CELL) / 2;
  const indent = table.depth ? 12 : 0;
  context.fillStyle = colour;
  context.fillRect(indent, y + ROW / 2 - 5, 10, 10);
  context.font = '12px "Plex Mono"';
  context.textAlign = "left";
  context.fillStyle = look.value("--ink");
  const group = table.group ? ` g${table.group}` : "";
  context.save();
  context.beginPath();
  context.rect(0, y, labelWidth - 10, ROW);
  context.clip();
  context.fillText((labelWidth < 120 ? `…${label(table).slice(-8)}` : label(table)) + group, indent + 17, y + ROW / 2 + 4);
  context.restore();
  const side = step > 5 ? step - 2 : step - 1;
  const colours = { colour, faint: look.faintOf(table.owner) };
  for (const cell of row.cells) drawPage(context, cell, top, side, colours, look);
  context.fillStyle = look.value("--ink-3");
  if (row.left) {
    context.textAlign = "center";
    context.fillText(`…${count(row.left)}…`, row.gapAt + GAP_TEXT / 2 - 2, y + ROW / 2 + 4);
  }
  const unsent = (table.num_pages ?? 0) - (table.first_page ?? 0) - table.pages.length;
  if (unsent > 0) {
    context.textAlign = "left";
    context.fillText(`+${count(unsent)}`, (row.cells.at(-1)?.x ?? labelWidth) + step + 4, y + ROW / 2 + 4);
  }
}

function drawPage(context, { page, x }, top, side, { colour, faint }, look) {
  if (page.block === null || page.block === undefined) {
    // Not on the device: a frame in the colour of the tier that has it, a faint one if it is gone for good.
    const isSomewhere = page.tier && page.tier !== "none";
    context.strokeStyle = look.value(isSomewhere ? `--tier-${look.tierIndex(page.tier)}` : "--line-2");
    context.lineWidth = isSomewhere ? 1.5 : 1;
    context.strokeRect(x + 0.75, top + 0.75, side - 1.5, CELL - 1.5);
    return;
  }
  const share = Math.min(1, (page.filled ?? look.pageSize) / look.pageSize);
  if (share < 1) {
    context.fillStyle = faint;
    context.fillRect(x, top, side, CELL);
  }
  context.fillStyle = colour;
  context.fillRect(x, top, side * share, CELL);
  if (page.shared) {
    context.fillStyle = look.hatch;
    context.fillRect(x, top, side, CELL);
  }
}

/** Diagonals as a pattern: thousands of cells are hatched by one call each. */
function makeHatch(context, colour) {
  const ratio = context.getTransform().a;
  const side = Math.round(5 * ratio);
  const tile = new OffscreenCanvas(side, side);
  const pen = tile.getContext("2d");
  pen.strokeStyle = colour;
  pen.lineWidth = 1.35 * ratio;
  for (const offset of [-side, 0, side]) {
    pen.moveTo(offset - 1, side + 1);
    pen.lineTo(offset + side + 1, -1);
  }
  pen.stroke();
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

/** From the page of the parent that was copied to the fork's own copy: the first page in which the two differ. */
function drawArrows(context, rows, look) {
  const rowOf = new Map(rows.map((row) => [`${row.table.owner}/${row.table.group ?? 0}`, row]));
  context.strokeStyle = context.fillStyle = look.value("--ink");
  context.lineWidth = 1.4;
  for (const row of rows) {
    const parent = rowOf.get(`${row.table.parent}/${row.table.group ?? 0}`);
    if (!parent || parent === row) continue;
    const blockOf = new Map(parent.cells.map((cell) => [cell.page.page, cell]));
    const isCopy = (cell) => {
      const other = blockOf.get(cell.page.page);
      return other && cell.page.block !== null && other.page.block !== null && other.page.block !== cell.page.block;
    };
    const copy = row.cells.find(isCopy);
    if (copy) drawArrow(context, blockOf.get(copy.page.page), parent, copy, row);
  }
}

function drawArrow(context, from, fromRow, to, toRow) {
  const half = (fromRow.step - 1) / 2;
  const [x0, y0] = [from.x + half, fromRow.y + (ROW + CELL) / 2];
  const [x1, y1] = [to.x + half, toRow.y + (ROW - CELL) / 2];
  const isNear = y1 - y0 < ROW;
  const bend = isNear ? 0 : Math.min(22, 8 + (y1 - y0) / 12);
  context.beginPath();
  context.moveTo(x0, y0);
  context.bezierCurveTo(x0 + bend, y0 + (y1 - y0) * 0.3, x1 + bend, y1 - (y1 - y0) * 0.3, x1, y1 - 1);
  context.stroke();
  context.beginPath();
  context.moveTo(x1, y1 + 1);
  context.lineTo(x1 - 3.5, y1 - 5);
  context.lineTo(x1 + 3.5, y1 - 5);
  context.fill();
}
