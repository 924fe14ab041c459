// The running requests as a table. Pointing at a row lets its blocks stand out on the map.

import { element, setText, syncRows } from "./dom.js";
import * as format from "./format.js";

const MOST = 48; // rows; more are counted

export class Requests {
  constructor({ rows, empty, caption }, colouring, onPoint) {
    Object.assign(this, { rows, empty, caption, colouring });
    this.scroll = rows.closest(".scroll");
    const point = (event) => onPoint(Number(event.target.closest("tr")?.dataset.owner ?? 0));
    rows.addEventListener("pointerover", point);
    rows.addEventListener("pointerleave", () => onPoint(0));
    rows.addEventListener("focusin", point);
    rows.addEventListener("focusout", () => onPoint(0));
  }

  show({ meta }) {
    const owners = meta.owners ?? [];
    this.empty.hidden = owners.length > 0;
    this.scroll.hidden = owners.length === 0;
    const more = owners.length > MOST ? `the first ${MOST} of ${format.count(owners.length)}` : "";
    setText(this.caption, more);
    syncRows(this.rows, owners.slice(0, MOST), row, (node, each) => this.write(node, each));
  }

  write(node, each) {
    const [name, state, ...numbers] = node.children;
    const colour = this.colouring.css(each.owner);
    if (node.dataset.owner !== String(each.owner)) node.dataset.owner = each.owner;
    if (name.firstChild.dataset.colour !== colour) {
      name.firstChild.dataset.colour = colour;
      name.firstChild.style.background = colour;
    }
    setText(name.lastChild, label(each));
    name.title = [each.request, each.session && `session ${each.session}`, each.attention !== "exact" && each.attention].filter(Boolean).join(" · ");
    setText(state, each.is_slow ? "slow" : each.state);
    state.title = each.is_slow ? `${each.state}, slower than its neighbours` : "";
    const kind = each.is_slow ? "slow" : `state-${each.state}`;
    if (state.className !== kind) state.className = kind;
    const values = [each.prompt_tokens, each.prefix_tokens, each.generated, each.pages, each.shared_pages];
    numbers.forEach((cell, index) => setText(cell, format.count(values[index])));
  }
}

export const label = (each) => `${format.shortId(each.request || `owner ${each.owner}`)}${each.choice ? ` #${each.choice}` : ""}`;

function row() {
  const number = () => element("td", { class: "number" });
  const name = element("td", { class: "mono" }, element("span", { class: "swatch" }), element("span"));
  return element("tr", { tabindex: 0 }, name, element("td"), number(), number(), number(), number(), number());
}
