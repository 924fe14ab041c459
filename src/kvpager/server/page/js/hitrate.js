// The share of prompt tokens that came from each tier, as lines over time.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { element, svg, syncRows, setText, themeValue, watchWidth } from "./dom.js";
import * as format from "./format.js";

const SHOWN = 180; // seconds
const OVER = 15; // seconds that one point sums up
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]]; // lines differ in more than colour
const POINTS = 180;

export class HitRate {
  constructor(root, keys, series) {
    this.root = root;
    this.keys = keys;
    this.series = series;
    this.names = [];
    this.plot = null;
    document.addEventListener("theme", () => this.plot?.redraw(false, true));
    watchWidth(root, () => this.plot?.setSize(this.size()));
  }

  size() {
    return { width: Math.max(120, this.root.clientWidth), height: this.root.clientHeight || 176 };
  }

  show({ meta, time }) {
    const names = (meta.tiers ?? []).map((tier) => tier.name);
    if (names.join("\n") !== this.names.join("\n") || !this.plot) this.make(names);
    const data = this.data(time);
    this.plot.setData(data, false);
    this.plot.setScale("x", { min: time - SHOWN, max: time });
    const last = data.slice(1).map((column) => column[column.length - 1] ?? null);
    syncRows(this.keys, names, key, (node, name) => {
      const index = names.indexOf(name);
      node.children[0].firstChild.style.stroke = `var(--tier-${index % 4})`;
      node.children[0].firstChild.setAttribute("stroke-dasharray", DASHES[index % 4].join(" "));
      setText(node.children[1], name);
      setText(node.children[2], last[index] === null ? "" : format.percent(last[index]));
    });
  }

  /** Columns: times, then a share per tier; null while no prompt has come. */
  data(time) {
    const samples = this.series.window(time, SHOWN + OVER);
    const step = Math.max(1, Math.floor(samples.length / POINTS));
    const columns = [[], ...this.names.map(() => [])];
    let from = 0;
    for (let i = (samples.length - 1) % step; i < samples.length; i += step) {
      const now = samples[i];
      while (samples[from].time < now.time - OVER) from++;
      const before = samples[from];
      const prompts = now.prompt - before.prompt;
      columns[0].push(now.time);
      this.names.forEach((name, tier) => {
        const hits = (now.byTier[name] ?? 0) - (before.byTier[name] ?? 0);
        columns[tier + 1].push(prompts > 0 && now.time - before.time > OVER / 2 ? Math.min(1, Math.max(0, hits / prompts)) : null);
      });
    }
    return columns;
  }

  make(names) {
    this.plot?.destroy();
    this.names = names;
    const axis = {
      stroke: () => themeValue("--ink-3"),
      font: '12px "Plex Sans"',
      grid: { stroke: () => themeValue("--line"), width: 1 },
      ticks: { show: false },
    };
    const options = {
      ...this.size(),
      legend: { show: false },
      cursor: { show: false },
      padding: [8, 26, 0, 0],
      scales: { x: { time: true, auto: false }, y: { auto: false, range: [0, 1] } },
      axes: [
        { ...axis, size: 26, space: 76, grid: { show: false }, values: (_, times) => times.map((time) => format.clock(time)) },
        { ...axis, size: 46, gap: 6, splits: () => [0, 0.5, 1], values: (_, shares) => shares.map((share) => `${share * 100} %`) },
      ],
      series: [
        {},
        ...names.map((name, index) => ({
          label: name,
          width: 2,
          points: { show: false },
          spanGaps: false,
          dash: DASHES[index % 4],
          stroke: () => themeValue(`--tier-${index % 4}`),
        })),
      ],
    };
    this.plot = new uPlot(options, [[], ...names.map(() => [])], this.root);
  }
}

function key() {
  const sample = svg("svg", { width: 22, height: 8, "aria-hidden": "true" }, svg("path", { d: "M1 4H21", "stroke-width": 2 }));
  return element("li", {}, sample, element("span"), element("b"));
}
