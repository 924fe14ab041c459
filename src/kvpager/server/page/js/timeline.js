// Faults and migrations of the last minute: a lane for each kind, a mark for each event, as long as it took.

import { ask } from "./ask.js";
import { fitCanvas, setText, themeValue, watchWidth } from "./dom.js";
import * as format from "./format.js";

const SHOWN = 60; // seconds
const MOST = 6000; // events kept
const LANE = 24; // pixels
const KINDS = [
  ["minor_fault", "minor fault", "--ink-3"],
  ["demand_fault", "demand fault", "--tier-0"],
  ["major_fault", "major fault", "--bad"],
  ["copy_on_write", "copy on write", "--tier-2"],
  ["promote", "promote", "--tier-2"],
  ["demote", "demote", "--tier-1"],
  ["eviction", "eviction", "--ink-2"],
  ["preemption", "preemption", "--bad"],
];
const LANE_OF = new Map(KINDS.map(([kind], index) => [kind, index]));

export class Timeline {
  constructor(root, canvas, { button, words }) {
    Object.assign(this, { root, canvas, button, words });
    this.events = [];
    this.last = 0; // time of the newest event
    this.atLast = new Set(); // those of that very time, which the next frame may name again
    this.width = root.clientWidth;
    watchWidth(root, (width) => {
      this.width = width;
      if (this.view) this.show(this.view);
    });
    document.addEventListener("theme", () => this.view && this.show(this.view));
    button.addEventListener("click", () => this.download());
  }

  clear() {
    this.events.length = 0;
    this.last = 0;
    this.atLast.clear();
  }

  /** Frames may name an event more than once: what is not newer than what is known has been seen. */
  record(meta) {
    for (const event of meta.activity ?? []) {
      if (event.time < this.last || !LANE_OF.has(event.kind)) continue;
      const name = `${event.kind}|${event.tier}|${event.pages}|${event.seconds}`;
      if (event.time > this.last) {
        this.last = event.time;
        this.atLast.clear();
      } else if (this.atLast.has(name)) continue;
      this.atLast.add(name);
      this.events.push(event);
    }
    if (this.events.length > MOST) this.events.splice(0, MOST / 4);
  }

  show(view) {
    this.view = view;
    if (!this.width) return;
    const { context, width, ratio } = fitCanvas(this.canvas, this.width, LANE * KINDS.length + 24);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const w = width / ratio;
    context.clearRect(0, 0, w, LANE * KINDS.length + 24);
    const isNarrow = w < 520;
    const left = isNarrow ? 0 : 104;
    const right = w - (isNarrow ? 0 : 52);
    const x = (time) => right - ((view.time - time) / SHOWN) * (right - left);
    this.drawAxis(context, x, left, right, view.time);
    this.drawLanes(context, left, right, isNarrow, this.drawEvents(context, x, left, right, view.time), w);
  }

  drawAxis(context, x, left, right, now) {
    context.font = '12px "Plex Sans"';
    context.fillStyle = themeValue("--ink-3");
    context.strokeStyle = themeValue("--line");
    context.lineWidth = 1;
    const bottom = LANE * KINDS.length;
    for (let ago = 0; ago <= SHOWN; ago += 10) {
      const at = Math.round(x(now - ago)) + (ago === 0 ? -0.5 : 0.5);
      context.beginPath();
      context.moveTo(at, 0);
      context.lineTo(at, bottom);
      context.stroke();
      context.textAlign = ago === 0 ? "right" : ago === SHOWN ? "left" : "center";
      if (ago % 20 === 0) context.fillText(ago ? `${ago} s ago` : format.clock(now), at, bottom + 17);
    }
  }

  /** Returns the pages of each lane that are in sight. */
  drawEvents(context, x, left, right, now) {
    const pages = new Array(KINDS.length).fill(0);
    const colours = KINDS.map(([, , name]) => themeValue(name));
    for (let i = this.events.length - 1; i >= 0; i--) {
      const event = this.events[i];
      if (event.time > now) continue;
      if (event.time < now - SHOWN) break;
      const lane = LANE_OF.get(event.kind);
      pages[lane] += event.pages ?? 1;
      const width = Math.max(2, ((event.seconds || 0) / SHOWN) * (right - left));
      const height = Math.min(LANE - 9, 4 + 2.2 * Math.log2(1 + (event.pages || 1)));
      const from = Math.max(left, x(event.time));
      context.fillStyle = colours[lane];
      context.fillRect(from, LANE * lane + (LANE - height) / 2, Math.min(width, right - from), height);
    }
    return pages;
  }

  drawLanes(context, left, right, isNarrow, pages, width) {
    context.strokeStyle = themeValue("--line");
    context.textAlign = "left";
    KINDS.forEach(([, name], lane) => {
      const y = LANE * lane;
      context.beginPath();
      context.moveTo(0, y + LANE - 0.5);
      context.lineTo(width, y + LANE - 0.5);
      context.stroke();
      context.fillStyle = themeValue(pages[lane] ? "--ink" : "--ink-3");
      context.font = '13px "Plex Sans"';
      context.fillText(name, 0, y + LANE / 2 + 4.5);
      if (isNarrow) return;
      context.font = '12px "Plex Mono"';
      context.textAlign = "right";
      context.fillText(pages[lane] ? format.count(pages[lane]) : "", width, y + LANE / 2 + 4.5);
      context.textAlign = "left";
    });
  }

  async download() {
    this.button.disabled = true;
    setText(this.words, "Fetching");
    let words = "Download trace";
    try {
      const answer = await ask("/v1/kv/trace");
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([await answer.arrayBuffer()], { type: "application/json" }));
      link.download = `kvpager-trace-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.json`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    } catch {
      words = "No trace came; try again";
    }
    this.button.disabled = false;
    setText(this.words, words);
  }
}
