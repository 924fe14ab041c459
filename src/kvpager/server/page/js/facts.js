// What is known of a block, in words: for the tip under the pointer, the followed page and the screen reader.

import { CACHED, FREE, MOVING, USED } from "./frame.js";
import { element } from "./dom.js";
import { label } from "./requests.js";
import * as format from "./format.js";

const STATES = { [FREE]: "free", [USED]: "used", [CACHED]: "cached", [MOVING]: "moving" };

/** {block, state, owner, facts: [[name, value]]}; `pageOfBlock` from the page tables, where they have been asked for. */
export function describe(block, { memory, meta }, pageOfBlock) {
  const state = memory.state[block];
  const owner = (meta.owners ?? []).find((each) => each.owner === memory.owner[block] && each.owner !== 0) ?? null;
  const facts = [];
  const mappings = memory.mappings[block];
  if (owner) facts.push(["owner", label(owner)]);
  if (owner?.session) facts.push(["session", format.shortId(owner.session, 24)]);
  const place = pageOfBlock.get(block);
  if (place && state !== FREE) facts.push(["page", `${format.count(place.page)} of ${label(place.table)}`]);
  if (state !== FREE) {
    const size = meta.pool.page_size;
    const filled = size > 255 && memory.filled[block] === 255 ? "255 or more" : format.count(memory.filled[block]);
    facts.push(["tokens", `${filled} of ${format.count(size)}`]);
  }
  facts.push(["tier", (meta.tiers ?? []).find((tier) => tier.kind === "device")?.name ?? "device"]);
  if (state !== FREE) facts.push(["mapped by", mappings === 0 ? "no page table" : format.many(mappings, "page table")]);
  return { block, state: STATES[state] ?? "unknown", isShared: mappings > 1, owner: memory.owner[block], facts };
}

export function headline({ block, state, isShared, owner }, colouring) {
  const swatch = element("span", { class: "swatch" });
  const colours = { free: "var(--map-line)", cached: "var(--map-cached)" };
  swatch.style.background = colours[state] ?? colouring.css(owner);
  const words = isShared ? `${state}, shared` : state;
  return element("p", { class: "headline" }, swatch, `Block ${format.count(block)}`, element("span", { class: "state" }, words));
}

export function factList({ facts }) {
  return element("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

export const spoken = ({ block, state, isShared, facts }) =>
  `Block ${block}, ${state}${isShared ? ", shared" : ""}. ${facts.map(([name, value]) => `${name}: ${value}`).join(", ")}.`;
