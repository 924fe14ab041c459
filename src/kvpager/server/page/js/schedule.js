// Work for the screen: a few milliseconds in each animation frame, what does not fit waits for the next one.

const SLICE = 3; // milliseconds; what a slice writes, the browser lays out and paints in the same frame

export class Schedule {
  constructor() {
    this.waiting = new Map(); // name -> task; of the same name only the newest runs
    this.isAsked = false;
    this.longest = 0; // milliseconds of the longest slice so far
  }

  add(name, task) {
    this.waiting.set(name, task);
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => this.slice());
  }

  slice() {
    this.isAsked = false;
    const start = performance.now();
    for (const [name, task] of this.waiting) {
      this.waiting.delete(name);
      task();
      if (performance.now() - start > SLICE) break;
    }
    this.longest = Math.max(this.longest, performance.now() - start);
    if (this.waiting.size && !this.isAsked) {
      this.isAsked = true;
      requestAnimationFrame(() => this.slice());
    }
  }
}
