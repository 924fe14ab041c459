// The block map: every block of the pool as one cell, in order, row by row. Draws pixels; knows no pointer.
//
// All cells live in one ImageData. A frame rewrites the cells it names and puts back the band of rows they lie in.

import { CACHED, FREE, MOVING } from "./frame.js";
import { fitCanvas, themeValue } from "./dom.js";
import { LEVELS, LOOK_CACHED, LOOK_FREE, LOOK_NO_OWNER, Sprites } from "./sprites.js";

const SMALLEST = 2; // device pixels
const LARGEST = 44; // of the page
const MARGIN = 4; // of the overlay around the map, so that a ring at the edge is whole; as in map.css
const PERIODS = [32, 16, 8, 4, 1]; // rows are multiples of the first of these that costs little room: easy to count
const WORTH = 0.9; // of the largest cells, and of the width

export class BlockMap {
  constructor(canvas, overlay, colouring) {
    this.canvas = canvas;
    this.overlay = overlay;
    this.colouring = colouring;
    this.count = 0;
    this.columns = 1;
    this.rows = 0;
    this.cell = SMALLEST;
    this.gutter = 0;
    this.marks = { hover: null, followed: null, owner: 0 };
  }

  /** Chooses the cells' size for the room there is, and draws everything. `width`, `height`: of the page. */
  layout(memory, pageSize, width, height) {
    const ratio = window.devicePixelRatio || 1;
    this.ratio = ratio;
    this.count = memory.count;
    this.pageSize = Math.min(pageSize, 255);
    const digits = String(Math.max(this.count - 1, 0)).length;
    this.gutter = width < 480 ? 0 : Math.round((digits * 6.6 + 10) * ratio);
    const room = Math.floor(width * ratio) - this.gutter;
    this.fit(room, Math.floor(height * ratio), Math.floor(LARGEST * ratio));
    this.rows = Math.ceil(this.count / this.columns);
    const size = [(this.gutter + this.columns * this.cell) / ratio, (this.rows * this.cell) / ratio];
    this.context = fitCanvas(this.canvas, ...size).context;
    this.marker = fitCanvas(this.overlay, size[0] + 2 * MARGIN, size[1] + 2 * MARGIN).context;
    this.image = new ImageData(this.columns * this.cell, Math.max(1, this.rows * this.cell));
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.drawAll(memory);
  }

  /** The largest cells that fit, or a little smaller ones if rows can be round then. */
  fit(width, height, largest) {
    const fits = PERIODS.map((period) => this.largestCell(width, height, largest, period));
    const most = fits[fits.length - 1].cell; // with rows of any length
    const chosen = fits.find(({ cell, columns }) => cell >= most * WORTH && cell * columns >= width * WORTH);
    const { cell, columns } = chosen ?? fits[fits.length - 1];
    Object.assign(this, { cell, columns });
  }

  largestCell(width, height, largest, period) {
    const columnsOf = (cell) => Math.floor(width / cell / period) * period; // 0 where there is no room for one period
    const fits = (cell) => Math.ceil(this.count / columnsOf(cell)) * cell <= height;
    let cell = largest;
    while (cell > SMALLEST && !fits(cell)) cell--;
    return { cell, columns: Math.max(1, columnsOf(cell)) }; // the smallest may need more rows than fit: the map scrolls
  }

  drawAll(memory) {
    this.sprites = new Sprites(this.cell);
    this.pixels.fill(this.sprites.background);
    for (let block = 0; block < this.count; block++) this.write(memory, block);
    this.context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.context.putImageData(this.image, this.gutter, 0);
    this.drawGutter();
    this.drawMarks(memory);
  }

  /** Draws the blocks that have changed. */
  draw(memory, changed) {
    if (changed.length === 0) return;
    let first = this.rows;
    let last = 0;
    for (let i = 0; i < changed.length; i++) {
      const row = Math.floor(changed[i] / this.columns);
      if (row < first) first = row;
      if (row > last) last = row;
      this.write(memory, changed[i]);
    }
    const [top, height] = [first * this.cell, (last - first + 1) * this.cell];
    this.context.putImageData(this.image, this.gutter, 0, 0, top, this.image.width, height);
  }

  write(memory, block) {
    const { cell, columns, pixels } = this;
    const sprite = this.sprites.get(this.spriteOf(memory, block));
    const width = columns * cell;
    let to = Math.floor(block / columns) * cell * width + (block % columns) * cell;
    if (cell === 2) {
      pixels[to] = sprite[0];
      pixels[to + 1] = sprite[1];
      pixels[to + width] = sprite[2];
      pixels[to + width + 1] = sprite[3];
      return;
    }
    for (let y = 0, from = 0; y < cell; y++, to += width) {
      for (let x = 0; x < cell; x++) pixels[to + x] = sprite[from++];
    }
  }

  spriteOf(memory, block) {
    const state = memory.state[block];
    const colour = this.colouring.ofOwner[memory.owner[block]];
    let look = LOOK_NO_OWNER + colour;
    if (state === FREE) look = LOOK_FREE;
    else if (state === CACHED || (state === MOVING && colour === 0)) look = LOOK_CACHED;
    const isShared = memory.mappings[block] > 1 ? 2 : 0;
    const isMoving = state === MOVING ? 1 : 0;
    let level = LEVELS;
    if (this.sprites.hasLevels && look >= LOOK_NO_OWNER) {
      level = Math.min(LEVELS, Math.ceil((memory.filled[block] * LEVELS) / this.pageSize));
    }
    return ((look << 2) | isShared | isMoving) * (LEVELS + 1) + level;
  }

  /** Numbers of the first block of a row, as in a listing of memory. */
  drawGutter() {
    if (this.gutter === 0) return;
    const context = this.context;
    const size = Math.round(10.5 * this.ratio);
    const every = Math.max(1, Math.ceil((size * 1.9) / this.cell));
    context.font = `${size}px ${themeValue("--mono")}`;
    context.fillStyle = themeValue("--ink-3");
    context.textAlign = "right";
    context.textBaseline = "alphabetic";
    const side = this.cell >= 4 ? this.cell - 1 : this.cell;
    for (let row = 0; row < this.rows; row += every) {
      const y = every === 1 ? row * this.cell + side / 2 + size * 0.36 : row * this.cell + size * 0.78;
      if (y > this.rows * this.cell) break;
      context.fillText(String(row * this.columns), this.gutter - Math.round(8 * this.ratio), y);
    }
  }

  /** `hover`, `followed`: blocks or null; `owner`: whose cells stand out, 0 for nobody's. */
  mark(memory, marks) {
    Object.assign(this.marks, marks);
    this.drawMarks(memory);
  }

  drawMarks(memory) {
    const context = this.marker;
    const margin = Math.round(MARGIN * this.ratio);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.overlay.width, this.overlay.height);
    context.translate(margin, margin);
    if (this.marks.owner) this.drawSpotlight(context, memory);
    if (this.marks.followed !== null) this.drawRing(context, this.marks.followed, themeValue("--accent"), 2.5);
    if (this.marks.hover !== null) this.drawRing(context, this.marks.hover, themeValue("--ink"), 1.75);
  }

  drawSpotlight(context, memory) {
    const { cell, columns, gutter } = this;
    context.globalAlpha = 0.72;
    context.fillStyle = themeValue("--map-back");
    context.fillRect(gutter, 0, columns * cell, this.rows * cell);
    context.globalAlpha = 1;
    const { owner } = memory;
    for (let block = 0; block < this.count; block++) {
      if (owner[block] !== this.marks.owner || memory.state[block] === FREE) continue;
      context.clearRect(gutter + (block % columns) * cell, Math.floor(block / columns) * cell, cell, cell);
    }
  }

  drawRing(context, block, colour, width) {
    const { cell, columns, gutter, ratio } = this;
    const pad = Math.max(cell >= 7 ? 1.5 * ratio : 3 * ratio, 1);
    const [x, y] = [gutter + (block % columns) * cell, Math.floor(block / columns) * cell];
    const side = (cell >= 7 ? cell - Math.max(1, Math.round(cell / 10)) : cell) + pad * 2;
    context.lineWidth = width * ratio;
    context.strokeStyle = colour;
    context.beginPath();
    context.roundRect(x - pad, y - pad, side, side, 2.5 * ratio);
    context.stroke();
  }

  /** The block under a point of the canvas, in pixels of the page; null beside the cells. */
  blockAt(x, y) {
    const column = Math.floor((x * this.ratio - this.gutter) / this.cell);
    const row = Math.floor((y * this.ratio) / this.cell);
    if (column < 0 || column >= this.columns || row < 0 || row >= this.rows) return null;
    const block = row * this.columns + column;
    return block < this.count ? block : null;
  }

  /** The middle of a block's cell, in pixels of the page from the canvas' corner. */
  centreOf(block) {
    const half = this.cell / 2;
    const x = this.gutter + (block % this.columns) * this.cell + half;
    const y = Math.floor(block / this.columns) * this.cell + half;
    return { x: x / this.ratio, y: y / this.ratio, half: half / this.ratio };
  }
}
