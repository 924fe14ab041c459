// What a frame says in single numbers, kept over time for lines and rates. Bounded in number.

const MOST = 2400; // ten minutes of a live stream

export class Series {
  constructor() {
    this.samples = [];
  }

  clear() {
    this.samples.length = 0;
  }

  record(meta) {
    if (this.samples.length && meta.time <= this.samples[this.samples.length - 1].time) return;
    const tiers = {};
    for (const tier of meta.tiers ?? []) tiers[tier.name] = tier.evicted ?? 0;
    this.samples.push({
      time: meta.time,
      tokens: meta.rates?.tokens_per_second ?? 0,
      used: meta.pool.used / Math.max(1, meta.pool.blocks),
      faults: meta.rates?.faults_per_second ?? 0,
      evictions: meta.evictions ?? 0,
      prompt: meta.prefix?.prompt_tokens ?? 0,
      hit: meta.prefix?.hit_tokens ?? 0,
      byTier: meta.prefix?.by_tier ?? {},
      evicted: tiers,
    });
    if (this.samples.length > MOST) this.samples.splice(0, MOST / 8);
  }

  /** Index of the last sample at or before a time; -1 becomes 0. */
  indexAt(time) {
    let low = 0;
    let high = this.samples.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.samples[middle].time <= time) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** The samples of the `seconds` up to a time. */
  window(time, seconds) {
    if (!this.samples.length) return [];
    return this.samples.slice(this.indexAt(time - seconds), this.indexAt(time) + 1);
  }

  /** By how much a counter rose in a second, over the `seconds` up to a time; null if that can't be told. */
  rise(time, seconds, read) {
    const window = this.window(time, seconds);
    if (window.length < 2) return null;
    const [first, last] = [window[0], window[window.length - 1]];
    return last.time > first.time ? (read(last) - read(first)) / (last.time - first.time) : null;
  }
}
