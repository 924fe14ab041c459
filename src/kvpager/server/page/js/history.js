// Past frames, for scrubbing: full ones now and then, between them only changes; bounded in bytes.

import { Memory } from "./frame.js";

const BUDGET = 64 * 1024 * 1024;
const FRAMES_BETWEEN_FULL = 48; // what going to a moment costs at most, in deltas

export class History {
  constructor(budget = BUDGET) {
    this.budget = budget;
    this.frames = [];
    this.bytes = 0;
    this.sinceFull = 0;
    this.dropped = 0; // how many have gone, so that a number names the same frame for good
  }

  clear() {
    this.dropped += this.frames.length;
    this.frames.length = 0;
    this.bytes = 0;
    this.sinceFull = 0;
  }

  /** `memory`: as it is once the frame has been applied. Numbers of frames go up by one and are never reused. */
  push(frame, memory) {
    let kept = frame;
    if (!frame.full && (this.frames.length === 0 || this.sinceFull >= FRAMES_BETWEEN_FULL)) {
      kept = memory.snapshot(frame.meta);
    }
    this.sinceFull = kept.full ? 0 : this.sinceFull + 1;
    this.frames.push(kept);
    this.bytes += kept.bytes;
    this.trim();
  }

  /** Whole runs go, so that the first frame kept is always a full one. */
  trim() {
    while (this.bytes > this.budget) {
      let next = 1;
      while (next < this.frames.length && !this.frames[next].full) next++;
      if (next >= this.frames.length) return;
      for (const frame of this.frames.splice(0, next)) this.bytes -= frame.bytes;
      this.dropped += next;
    }
  }

  get first() {
    return this.dropped;
  }

  get last() {
    return this.dropped + this.frames.length - 1;
  }

  meta(number) {
    return this.frames[number - this.dropped].meta;
  }

  clamp(number) {
    return Math.min(Math.max(number, this.first), this.last);
  }

  /** The last frame at or before a time; the first if there is none. */
  numberAt(time) {
    let low = 0;
    let high = this.frames.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.frames[middle].meta.time <= time) low = middle;
      else high = middle - 1;
    }
    return low + this.dropped;
  }

  /** The memory as it was once this frame had come. */
  rebuild(number, memory = new Memory()) {
    const index = number - this.dropped;
    let from = index;
    while (!this.frames[from].full) from--;
    for (let i = from; i <= index; i++) memory.apply(this.frames[i]);
    return memory;
  }
}
