// The slider over past frames, and the way back to now.

import { setText } from "./dom.js";
import * as format from "./format.js";

export class Scrub {
  constructor({ root, slider, live, moment }, history, onMove) {
    Object.assign(this, { root, slider, live, moment, history, onMove });
    this.number = null; // the frame that is shown; null: the newest, always
    slider.addEventListener("input", () => this.go(Number(slider.value)));
    live.addEventListener("click", () => this.go(null));
  }

  get isLive() {
    return this.number === null;
  }

  go(number) {
    this.number = number === null || number >= this.history.last ? null : this.history.clamp(number);
    this.onMove();
    this.show();
  }

  /** After each frame: the slider's ends move. Returns whether the moment shown had to move, its frame being gone. */
  show() {
    const { first, last } = this.history;
    const isEmpty = last < first;
    this.slider.disabled = isEmpty;
    if (isEmpty) return false;
    const hasMoved = !this.isLive && this.number < first;
    if (hasMoved) this.number = first;
    this.slider.min = first;
    this.slider.max = last;
    this.slider.value = this.number ?? last;
    this.live.setAttribute("aria-pressed", String(this.isLive));
    this.root.classList.toggle("is-past", !this.isLive);
    const time = this.history.meta(this.number ?? last).time;
    const ago = this.history.meta(last).time - time;
    const words = this.isLive ? format.clock(time) : `${format.clock(time, 1)}, ${format.seconds(ago)} ago`;
    setText(this.moment, words);
    this.slider.setAttribute("aria-valuetext", this.isLive ? "live" : words);
    return hasMoved;
  }
}
