// The strip of key figures under the title.

import { $, setText, svg } from "./dom.js";
import * as format from "./format.js";

const SPARK_SECONDS = 120;
const SPARK_POINTS = 60;

export class Figures {
  constructor(root, series) {
    this.series = series;
    this.parts = {};
    for (const node of root.querySelectorAll(".figure")) {
      this.parts[node.dataset.figure] = { value: $(".value", node), note: $(".note", node), node };
    }
    for (const name of ["tokens", "memory", "hits", "faults"]) this.parts[name].spark = spark(this.parts[name].node);
  }

  show({ meta, time }) {
    const { pool } = meta;
    this.write("tokens", format.rate(meta.rates?.tokens_per_second), `${format.count(meta.generated_tokens)} generated so far`);
    this.write("requests", format.count(meta.running), `running, ${format.count(meta.waiting)} waiting`);
    const held = pool.used + (pool.moving ?? 0);
    const size = format.bytes(held * pool.block_bytes).split(" ");
    this.write("memory", size[0], `${format.percent(held / Math.max(1, pool.blocks))} of ${format.bytes(pool.blocks * pool.block_bytes)}`, size[1]);
    const hitRate = meta.rates?.hit_rate;
    const [share, sign] = format.percent(hitRate).split(" ");
    this.write("hits", share, `${format.count(meta.prefix?.hit_tokens)} tokens so far`, sign);
    const faults = Object.values(meta.faults ?? {}).reduce((sum, each) => sum + (each.pages ?? 0), 0);
    this.write("faults", format.rate(meta.rates?.faults_per_second), `${format.count(faults)} pages so far`);
    this.write("pressure", format.count(meta.evictions), format.many(meta.preemptions, "preemption"));
    this.draw(time);
  }

  write(name, value, note, unit = "") {
    const part = this.parts[name];
    const text = `${value}\u0000${unit}`;
    if (part.text !== text) {
      part.text = text;
      part.value.replaceChildren(value);
      if (unit) {
        const small = document.createElement("small");
        small.textContent = unit;
        part.value.append(small);
      }
    }
    setText(part.note, note);
  }

  draw(time) {
    const window = this.series.window(time, SPARK_SECONDS);
    line(this.parts.tokens.spark, window, time, (sample) => sample.tokens);
    line(this.parts.memory.spark, window, time, (sample) => sample.used, 1);
    line(this.parts.faults.spark, window, time, (sample) => sample.faults);
    const hits = (sample) => (sample.prompt ? sample.hit / sample.prompt : 0);
    line(this.parts.hits.spark, window, time, hits, 1);
  }
}

function spark(node) {
  const path = svg("path");
  node.append(svg("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }, path));
  return path;
}

function line(path, window, time, read, top = null) {
  if (window.length < 3 || time - window[0].time < SPARK_SECONDS / 10) return path.setAttribute("d", "");
  const step = Math.max(1, Math.floor(window.length / SPARK_POINTS));
  let most = top ?? 0;
  if (top === null) for (const sample of window) most = Math.max(most, read(sample));
  let text = "";
  for (let i = (window.length - 1) % step; i < window.length; i += step) {
    const x = 100 - ((time - window[i].time) / SPARK_SECONDS) * 100;
    const y = 23 - (most ? read(window[i]) / most : 0) * 22;
    text += `${text ? "L" : "M"}${Math.max(0, x).toFixed(1)} ${y.toFixed(1)}`;
  }
  return path.setAttribute("d", text);
}
