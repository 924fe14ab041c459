// The live requests twice: as pages hold them, and as one contiguous room each, reserved for the longest answer.

import { $, element, setText } from "./dom.js";
import * as format from "./format.js";

export class Waste {
  constructor(root) {
    this.paged = half("Paged");
    this.reserved = half("Contiguous");
    this.fits = element("p");
    this.context = element("p");
    this.empty = element("p", { class: "empty" }, "No request runs: nothing to compare.");
    this.body = element("div", {}, element("div", { class: "versus" }, this.paged.root, this.reserved.root), this.fits, this.context);
    root.append(this.body, this.empty);
  }

  show({ meta }) {
    const now = meta.contiguous;
    const hasRequests = Boolean(now && (now.paged_used_bytes || now.reserved_bytes));
    this.body.hidden = !hasRequests;
    this.empty.hidden = hasRequests;
    if (!hasRequests) return;
    const scale = Math.max(now.reserved_bytes, now.paged_used_bytes, 1);
    write(this.paged, now.paged_used_bytes, now.paged_waste_share, scale, "held");
    write(this.reserved, now.reserved_bytes, now.reserved_waste_share, scale, "reserved");
    const [paged, contiguous] = [now.fits_paged, now.fits_contiguous];
    const words = `Of requests like these, ${format.count(paged)} fit in pages and ${format.count(contiguous)} contiguously.`;
    setText(this.fits, Number.isFinite(paged) && Number.isFinite(contiguous) ? words : "");
    const whole = `Reserving the longest context for each: ${format.bytes(now.context_bytes)}, ${format.percent(now.context_waste_share)} wasted.`;
    setText(this.context, Number.isFinite(now.context_bytes) ? whole : "");
  }
}

function write(part, bytes, waste, scale, how) {
  const [value, unit] = format.percent(waste).split(" ");
  setText(part.value, value);
  setText(part.unit, ` ${unit ?? ""} wasted`);
  part.held.style.width = `${((bytes * (1 - waste)) / scale) * 100}%`;
  part.wasted.style.width = `${((bytes * waste) / scale) * 100}%`;
  setText(part.note, `${format.bytes(bytes)} ${how}, ${format.bytes(bytes * (1 - waste))} of it tokens`);
}

function half(title) {
  const root = element(
    "div",
    {},
    element("h3", {}, title),
    element("p", { class: "share" }, element("span", { class: "value" }), element("small")),
    element("div", { class: "block", "aria-hidden": "true" }, element("span", { class: "held" }), element("span", { class: "wasted" })),
    element("p", { class: "note" }),
  );
  return { root, value: $(".value", root), unit: $("small", root), held: $(".held", root), wasted: $(".wasted", root), note: $(".note", root) };
}
