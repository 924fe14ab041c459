// The connection to /v1/kv/stream: frames as they come, and its state in words. Comes back by itself.

import { ask } from "./ask.js";
import { readEvents } from "./sse.js";

const FIRST_WAIT = 1000;
const LONGEST_WAIT = 15000;
const SILENCE = 40000; // pings come every 15 s: longer silence is a lost line
const LATE = 3000; // frames come several times a second, unless a step of the engine takes longer
const GONE_AFTER = 4; // failures in a row

/** States: connecting, live, waiting (the line stands, the engine is busy), reconnecting, gone, unauthorised, unavailable; `onState(state, words)`. */
export class Stream {
  constructor(url, { onFrame, onState }) {
    this.url = url;
    this.onFrame = onFrame;
    this.onState = onState;
    this.failures = 0;
    this.stop = null;
    // A page that is kept for the way back must not keep its place among the watchers.
    addEventListener("pagehide", () => this.stop?.abort());
  }

  async run() {
    this.onState("connecting", "connecting");
    for (;;) {
      const verdict = await this.once();
      this.failures++;
      await this.rest(verdict);
    }
  }

  /** One connection, until it ends. Returns what ended it. */
  async once() {
    const stop = (this.stop = new AbortController());
    let watchdog = setTimeout(() => stop.abort(), SILENCE);
    let frameAt = performance.now();
    const late = setInterval(() => {
      const silent = performance.now() - frameAt;
      if (silent > LATE) this.onState("waiting", `no frame for ${Math.round(silent / 1000)} s: the engine is busy`);
    }, 1000);
    this.reason = "";
    try {
      const answer = await ask(this.url, { signal: stop.signal, headers: { Accept: "text/event-stream" } });
      if (answer.status === 401 || answer.status === 403) return "unauthorised";
      if (answer.status === 404) return "unavailable";
      if (!answer.ok) return await this.refused(answer);
      for await (const { event, data } of readEvents(answer.body)) {
        clearTimeout(watchdog);
        watchdog = setTimeout(() => stop.abort(), SILENCE);
        if (event === "gone") return this.gone(data);
        if (event !== "frame") continue;
        this.failures = 0;
        frameAt = performance.now();
        this.onFrame(data);
        this.onState("live", "live");
      }
      return "failed";
    } catch {
      return "failed";
    } finally {
      clearTimeout(watchdog);
      clearInterval(late);
      stop.abort();
    }
  }

  /** Too many watch, or the engine is not there: the server says so in words. */
  async refused(answer) {
    return this.gone(await answer.text());
  }

  gone(text) {
    try {
      this.reason = JSON.parse(text).error.message;
    } catch {
      this.reason = "";
    }
    return this.reason ? "told" : "failed";
  }

  async rest(verdict) {
    const wait = Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** Math.min(this.failures - 1, 5));
    const until = performance.now() + wait;
    for (;;) {
      const left = Math.ceil((until - performance.now()) / 1000);
      if (left <= 0) return;
      this.onState(...this.words(verdict, left));
      await new Promise((done) => setTimeout(done, Math.min(1000, until - performance.now())));
    }
  }

  words(verdict, left) {
    if (verdict === "unauthorised") return ["unauthorised", "not allowed: this page needs an operator's key"];
    if (verdict === "unavailable") return ["unavailable", "this server has no memory stream"];
    if (verdict === "told") return ["gone", `${this.reason}; next try in ${left} s`];
    if (this.failures >= GONE_AFTER) return ["gone", `the server does not answer; next try in ${left} s`];
    return ["reconnecting", `connection lost; next try in ${left} s`];
  }
}
