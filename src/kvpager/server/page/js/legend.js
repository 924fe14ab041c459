// What the looks of a cell mean, with cells drawn by the map's own hand, and how many blocks look so.

import { element, setText } from "./dom.js";
import { LEVELS, LOOK_CACHED, LOOK_FREE, LOOK_NO_OWNER, Sprites } from "./sprites.js";
import * as format from "./format.js";

const index = (look, flags, level = LEVELS) => ((look << 2) | flags) * (LEVELS + 1) + level;
const ENTRIES = [
  ["used", "used", index(LOOK_NO_OWNER + 1, 0), "used"],
  ["partly filled", null, index(LOOK_NO_OWNER + 1, 0, 3), null],
  ["shared", "shared", index(LOOK_NO_OWNER + 1, 2), "shared"],
  ["moving", "moving", index(LOOK_NO_OWNER + 1, 1), "moving"],
  ["cached", "cached", index(LOOK_CACHED, 0), "cached"],
  ["free", "free", index(LOOK_FREE, 0), "free"],
];
const SIZE = 14; // pixels of the page

export class Legend {
  constructor(list) {
    this.samples = ENTRIES.map(([words, , sprite, count]) => {
      const canvas = element("canvas", { "aria-hidden": "true" });
      const number = count ? element("span", { class: "count" }) : null;
      list.append(element("li", {}, canvas, words, number));
      return { canvas, sprite, count, number };
    });
    this.draw();
    document.addEventListener("theme", () => this.draw());
  }

  draw() {
    const side = Math.round(SIZE * (window.devicePixelRatio || 1));
    const sprites = new Sprites(side);
    for (const { canvas, sprite } of this.samples) {
      canvas.width = canvas.height = side;
      const pixels = new Uint8ClampedArray(sprites.get(sprite).buffer);
      canvas.getContext("2d").putImageData(new ImageData(pixels, side, side), 0, 0);
    }
  }

  show({ meta }) {
    for (const { count, number } of this.samples) if (number) setText(number, format.count(meta.pool[count]));
  }
}
