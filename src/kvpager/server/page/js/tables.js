// Page tables as rows: one for each running answer (and layer group), its pages in order, forks below their parent.
//
// They are asked for only while somebody can see them. What is drawn where is in table-rows.js.

import { ask } from "./ask.js";
import { fitCanvas, setText, themeValue, watchWidth } from "./dom.js";
import { drawRows, layoutRows, ROW } from "./table-rows.js";
import * as format from "./format.js";

const PAUSE = 1000; // milliseconds from an answer to the next question
const MOST_ROWS = 48;
const MOST_PAGES = 6000; // of all tables together

export class Tables {
  constructor({ stage, canvas, empty, caption }, colouring, { view, onPoint, onPick }) {
    Object.assign(this, { stage, canvas, empty, caption, colouring, view, onPoint, onPick });
    this.rows = [];
    this.pageOfBlock = new Map();
    this.isWanted = false;
    this.width = stage.clientWidth;
    watchWidth(stage, (width) => {
      this.width = width;
      this.draw();
    });
    document.addEventListener("theme", () => this.draw());
    canvas.addEventListener("pointermove", (event) => this.point(event, onPoint));
    canvas.addEventListener("pointerleave", () => onPoint(null, null));
    canvas.addEventListener("click", (event) => this.point(event, onPick));
  }

  /** Whether the panel is in view. */
  want(isWanted) {
    this.isWanted = isWanted;
    if (isWanted) this.draw();
    if (isWanted && !this.isAsking) this.poll();
  }

  async poll() {
    this.isAsking = true;
    while (this.isWanted) {
      await this.read();
      await new Promise((done) => setTimeout(done, PAUSE));
    }
    this.isAsking = false;
  }

  async read() {
    try {
      const answer = await ask(`/v1/kv/tables?limit=${MOST_PAGES}`);
      if (!answer.ok) return;
      const body = await answer.json();
      this.take(body.tables);
    } catch {
      // the stream says what is wrong with the connection
    }
  }

  take(tables) {
    this.pageOfBlock.clear();
    for (const table of tables) {
      for (const page of table.pages) if (page.block !== null) this.pageOfBlock.set(page.block, { page: page.page, table });
    }
    this.total = tables.length;
    this.rows = inFamilies(tables).slice(0, MOST_ROWS);
    this.draw();
  }

  draw() {
    const isEmpty = this.rows.length === 0;
    this.empty.hidden = !isEmpty;
    this.stage.hidden = isEmpty;
    this.width ||= this.stage.clientWidth;
    const isLate = isEmpty && this.view()?.meta.running > 0;
    setText(this.empty, isLate ? "Waiting for the page tables." : "No request runs.");
    if (isEmpty) return setText(this.caption, "");
    const more = this.total > MOST_ROWS ? `${MOST_ROWS} of ${format.count(this.total)}; ` : "";
    const when = this.view()?.isLive ? "" : "as they are now, not at the moment shown; ";
    setText(this.caption, `${when}${more}hatched: shared; arrow: copied on write`);
    if (!this.width) return undefined;
    const { context, width, ratio } = fitCanvas(this.canvas, this.width, this.rows.length * ROW + 4);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.placed = layoutRows(this.rows, width / ratio);
    const meta = this.view()?.meta;
    const tiers = (meta?.tiers ?? []).map((tier) => tier.kind);
    return drawRows(context, this.placed, width / ratio, {
      pageSize: meta?.pool.page_size ?? 1,
      tierIndex: (kind) => Math.min(Math.max(tiers.indexOf(kind), 0), 3),
      colourOf: (owner) => this.resolve(this.colouring.css(owner)),
      faintOf: (owner) => `color-mix(in srgb, ${this.resolve(this.colouring.css(owner))} 28%, transparent)`,
      value: themeValue,
    });
  }

  resolve(colour) {
    return colour.startsWith("var(") ? themeValue(colour.slice(4, -1)) : colour;
  }

  point(event, tell) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const row = this.placed?.[Math.floor(y / ROW)];
    const cell = row?.cells.find((each) => x >= each.x && x < each.x + row.step);
    tell(cell?.page.block ?? null, event);
  }
}

/** Parents first, each followed by its forks. */
function inFamilies(tables) {
  const childrenOf = new Map();
  const known = new Set(tables.map((table) => table.owner));
  const roots = [];
  for (const table of tables) {
    if (table.parent !== null && table.parent !== undefined && table.parent !== table.owner && known.has(table.parent)) {
      if (!childrenOf.has(table.parent)) childrenOf.set(table.parent, []);
      childrenOf.get(table.parent).push(table);
    } else roots.push(table);
  }
  const ordered = [];
  const seen = new Set();
  const visit = (table, depth) => {
    if (seen.has(table)) return;
    seen.add(table);
    ordered.push({ ...table, depth });
    for (const child of childrenOf.get(table.owner) ?? []) if ((child.group ?? 0) === (table.group ?? 0)) visit(child, depth + 1);
  };
  for (const root of roots) visit(root, 0);
  for (const table of tables) visit(table, 0); // whose parent has no row in its group
  return ordered;
}
