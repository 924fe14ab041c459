// One picture for each way a block can look, drawn once and then copied as pixels. Knows no block and no frame.
//
//   free     the surface with a hairline        used     the owner's colour, up to where the page is filled
//   cached   grey                               shared   hatched
//   moving   a ring of ink around a smaller cell

import { COLOURS, mix, packed, toRgb } from "./palette.js";
import { themeValue } from "./dom.js";

export const LEVELS = 8; // of filling that are told apart
export const LOOK_FREE = 0;
export const LOOK_CACHED = 1;
export const LOOK_NO_OWNER = 2; // then colour + 2
const NUM_LOOKS = LOOK_NO_OWNER + 1 + COLOURS.length;
const LARGE = 7; // device pixels: from here on shapes can be seen

/** Index of a picture: ((look * 2 + shared) * 2 + moving) * (LEVELS + 1) + level. */
export const NUM_SPRITES = NUM_LOOKS * 4 * (LEVELS + 1);

export class Sprites {
  /** `cell`: side in device pixels, the gap to the next cell included. */
  constructor(cell) {
    this.cell = cell;
    this.hasLevels = cell >= LARGE + 1;
    this.made = new Array(NUM_SPRITES).fill(null);
    this.surface = toRgb(themeValue("--map-free"));
    this.ink = toRgb(themeValue("--ink"));
    this.cached = toRgb(themeValue("--map-cached"));
    this.line = toRgb(themeValue("--map-line"));
    this.back = toRgb(themeValue("--map-back"));
    this.background = packed(this.back);
  }

  get(index) {
    return this.made[index] ?? (this.made[index] = this.draw(index));
  }

  draw(index) {
    const level = index % (LEVELS + 1);
    const flags = Math.floor(index / (LEVELS + 1));
    const look = flags >> 2;
    const shape = { look, level, isMoving: (flags & 1) === 1, isShared: (flags & 2) === 2, colour: this.colour(look) };
    return this.cell >= LARGE ? this.large(shape) : this.small(shape);
  }

  colour(look) {
    if (look === LOOK_FREE) return this.surface;
    if (look === LOOK_CACHED) return this.cached;
    if (look === LOOK_NO_OWNER) return mix(this.ink, this.surface, 0.45);
    return COLOURS[look - LOOK_NO_OWNER - 1];
  }

  /** Single pixels: hatch is every other diagonal, moving is a border of ink (or all ink where there is no inside). */
  small({ look, isMoving, isShared, colour }) {
    const cell = this.cell;
    const side = cell >= 4 ? cell - 1 : cell;
    const pixels = new Uint32Array(cell * cell).fill(this.background);
    const fill = packed(colour);
    const hatch = packed(mix(colour, this.back, 0.62));
    const ink = packed(this.ink);
    for (let y = 0; y < side; y++) {
      for (let x = 0; x < side; x++) {
        const isEdge = side < 4 || x === 0 || y === 0 || x === side - 1 || y === side - 1;
        let value = isShared && look !== LOOK_FREE && (x + y) % 2 === 1 ? hatch : fill;
        if (isMoving && isEdge) value = ink;
        pixels[y * cell + x] = value;
      }
    }
    return pixels;
  }

  large({ look, level, isMoving, isShared, colour }) {
    const cell = this.cell;
    const canvas = new OffscreenCanvas(cell, cell);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = css(this.back);
    context.fillRect(0, 0, cell, cell);
    const gap = Math.max(1, Math.round(cell / 10));
    const side = cell - gap;
    const inset = isMoving ? Math.max(2, Math.round(side * 0.2)) : 0;
    const radius = Math.min(side * 0.16, 4);
    if (isMoving) this.ring(context, side, radius);
    this.body(context, { look, level, colour, isShared, at: inset, side: side - 2 * inset, radius: inset ? 1 : radius });
    return new Uint32Array(context.getImageData(0, 0, cell, cell).data.buffer);
  }

  ring(context, side, radius) {
    const width = Math.max(1, side * 0.1);
    context.strokeStyle = css(this.ink);
    context.lineWidth = width;
    context.beginPath();
    context.roundRect(width / 2, width / 2, side - width, side - width, radius);
    context.stroke();
  }

  body(context, { look, level, colour, isShared, at, side, radius }) {
    context.save();
    context.beginPath();
    context.roundRect(at, at, side, side, radius);
    context.clip();
    const isOwned = look >= LOOK_NO_OWNER;
    const isPartial = isOwned && this.hasLevels && level < LEVELS;
    context.fillStyle = css(isPartial ? mix(colour, this.back, 0.72) : colour);
    context.fillRect(at, at, side, side);
    if (isPartial) {
      context.fillStyle = css(colour);
      context.fillRect(at, at, Math.round((side * level) / LEVELS), side);
    }
    if (isShared && look !== LOOK_FREE) this.hatch(context, at, side);
    if (look === LOOK_FREE) {
      context.strokeStyle = css(this.line);
      context.lineWidth = 2; // half of it is clipped away
      context.beginPath();
      context.roundRect(at, at, side, side, radius);
      context.stroke();
    }
    context.restore();
  }

  hatch(context, at, side) {
    const step = side < 12 ? side / 2 : side < 20 ? side / 3 : side / 4;
    context.strokeStyle = css(this.back);
    context.lineWidth = Math.max(1, step * 0.32);
    context.beginPath();
    for (let offset = -side + step / 2; offset < side; offset += step) {
      context.moveTo(at + offset, at + side);
      context.lineTo(at + offset + side, at);
    }
    context.stroke();
  }
}

const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
