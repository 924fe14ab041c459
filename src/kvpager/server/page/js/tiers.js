// How full each tier is, and what it had to evict.

import { $, element, setText, syncRows } from "./dom.js";
import * as format from "./format.js";

export class Tiers {
  constructor(list, series) {
    this.list = list;
    this.series = series;
  }

  show({ meta, time }) {
    syncRows(this.list, meta.tiers ?? [], row, (node, tier) => this.write(node, tier, meta, time));
  }

  write(node, tier, meta, time) {
    const index = Math.min([...node.parentNode.children].indexOf(node), 3);
    node.className = `tier-${index}`;
    setText($(".name", node), tier.name);
    setText($(".state", node), tier.state && tier.state !== "ok" ? tier.state : "");
    const size = tier.capacity_bytes ? ` of ${format.bytes(tier.capacity_bytes)}` : "";
    setText($(".amount", node), `${format.bytes(tier.used_bytes)}${size}`);
    const [used, cached, moving] = shares(tier, meta.pool);
    width($(".used", node), used);
    width($(".cached", node), cached);
    width($(".moving", node), moving);
    setText($(".pages", node), format.many(tier.pages, "page"));
    const pace = this.series.rise(time, 10, (sample) => sample.evicted[tier.name] ?? 0);
    const now = pace ? `, ${format.rate(pace)}/s` : "";
    setText($(".evicted", node), `${format.count(tier.evicted)} evicted${now}`);
    const words = `${tier.name}: ${format.percent(used + cached + moving)} full`;
    $(".bar", node).setAttribute("aria-label", words);
  }
}

/** The device's bar tells apart what is used, cached and moving; the others hold only what is cached. */
function shares(tier, pool) {
  if (tier.kind === "device") return [pool.used, pool.cached, pool.moving ?? 0].map((n) => n / Math.max(1, pool.blocks));
  return [tier.capacity_bytes ? tier.used_bytes / tier.capacity_bytes : 0, 0, 0];
}

function width(node, share) {
  node.style.width = `${(Math.min(1, share) * 100).toFixed(2)}%`;
}

const part = (kind) => element("span", { class: `part ${kind}` });

function row() {
  return element(
    "li",
    {},
    element("div", { class: "tier-head" }, element("span", { class: "name" }), element("span", { class: "state" }), element("span", { class: "amount" })),
    element("div", { class: "bar", role: "img" }, part("used"), part("moving"), part("cached")),
    element("div", { class: "tier-foot" }, element("span", { class: "pages" }), element("span", { class: "evicted" })),
  );
}
