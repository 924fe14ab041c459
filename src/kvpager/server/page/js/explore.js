// Pointer and keyboard on the block map: which block is pointed at, and which one is followed.

import { setText } from "./dom.js";
import { describe, factList, headline, spoken } from "./facts.js";

const OFFSET = 16; // pixels from the pointer to the tip
const EDGE = 8;

export class Explore {
  constructor({ sheet, stage, tip, speech }, map, colouring, { view, pageOfBlock, onFollow }) {
    Object.assign(this, { sheet, stage, tip, speech, map, colouring, view, pageOfBlock, onFollow });
    this.hover = null;
    this.at = null; // of the pointer, in the window
    sheet.addEventListener("pointermove", (event) => this.pointAt(event));
    sheet.addEventListener("pointerleave", () => this.leave());
    sheet.addEventListener("click", (event) => this.click(event));
    sheet.addEventListener("keydown", (event) => this.key(event));
    sheet.addEventListener("blur", () => this.leave());
    stage.addEventListener("scroll", () => this.leave(), { passive: true });
  }

  pointAt(event) {
    const box = this.sheet.getBoundingClientRect();
    this.at = { x: event.clientX, y: event.clientY };
    this.set(this.map.blockAt(event.clientX - box.left, event.clientY - box.top));
  }

  leave() {
    this.at = null;
    this.set(null);
  }

  /** Points at a block, or at none. Without a pointer the tip stands beside the block's cell. */
  set(block) {
    const view = this.view();
    if (!view || (block !== null && block >= view.memory.count)) block = null;
    if (block !== this.hover) {
      this.hover = block;
      this.map.mark(view?.memory, { hover: block });
    }
    this.refresh();
  }

  /** After a new frame: what is pointed at may be another page now. */
  refresh() {
    const view = this.view();
    if (this.hover === null || !view) {
      this.tip.hidden = true;
      return;
    }
    const known = describe(this.hover, view, this.pageOfBlock());
    const text = spoken(known);
    if (text !== this.text || this.tip.hidden) {
      this.text = text;
      this.tip.replaceChildren(headline(known, this.colouring), factList(known));
      this.tip.hidden = false;
      this.size = { width: this.tip.offsetWidth, height: this.tip.offsetHeight };
    }
    this.place();
  }

  place() {
    const at = this.at ?? this.cellInWindow();
    let x = at.x + OFFSET;
    let y = at.y + OFFSET;
    if (x + this.size.width > innerWidth - EDGE) x = at.x - OFFSET - this.size.width;
    if (y + this.size.height > innerHeight - EDGE) y = at.y - OFFSET - this.size.height;
    this.tip.style.transform = `translate(${Math.max(EDGE, Math.round(x))}px, ${Math.max(EDGE, Math.round(y))}px)`;
  }

  cellInWindow() {
    const box = this.sheet.getBoundingClientRect();
    const cell = this.map.centreOf(this.hover);
    return { x: box.left + cell.x, y: box.top + cell.y };
  }

  click(event) {
    this.pointAt(event);
    if (this.hover !== null) this.onFollow(this.hover);
  }

  key(event) {
    const { columns, count } = this.map;
    const steps = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: columns,
      ArrowUp: -columns,
      PageDown: columns * 8,
      PageUp: -columns * 8,
      Home: -count,
      End: count,
    };
    if (event.key in steps) {
      const from = this.hover ?? 0;
      const to = this.hover === null ? 0 : Math.min(Math.max(from + steps[event.key], 0), count - 1);
      this.at = null;
      this.set(to);
      this.scrollTo(to);
      setText(this.speech, this.text ?? "");
    } else if ((event.key === "Enter" || event.key === " ") && this.hover !== null) this.onFollow(this.hover);
    else if (event.key === "Escape") {
      this.leave();
      this.onFollow(null);
    } else return;
    event.preventDefault();
  }

  scrollTo(block) {
    const { y, half } = this.map.centreOf(block);
    const [top, height] = [this.stage.scrollTop, this.stage.clientHeight];
    const wanted = y - half < top ? y - half * 3 : y + half > top + height ? y + half * 3 - height : top;
    if (wanted !== top) this.stage.scrollTop = wanted;
  }
}
