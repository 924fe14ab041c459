// A small chat box that makes the memory move: a question, eight with one prefix, or a long context.

import { $, element, setText } from "./dom.js";
import * as format from "./format.js";
import { ANSWERABLE, longText, PREFIX, QUESTIONS } from "./prompts.js";
import { charactersPerToken, complete, readModel } from "./openai.js";

const TURNS = 24; // kept on the page
const REMEMBERED = 12; // messages that are sent along
const LONGEST = 6000; // tokens of the long context: what a machine without an accelerator computes in a while

export class Chat {
  constructor({ log, form, text, quick, stop }) {
    Object.assign(this, { log, form, text, stop });
    this.messages = [];
    this.running = new Set();
    this.asked = 0;
    this.session = `page-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;
    this.log.append(element("p", { class: "hint" }, "What is asked here runs on the server like any other request. Watch the map."));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    for (const button of quick) button.addEventListener("click", () => this.load(button.dataset.quick));
    stop.addEventListener("click", () => this.running.forEach((each) => each.abort()));
  }

  send() {
    const question = this.text.value.trim();
    if (!question) return;
    this.text.value = "";
    this.ask(question);
  }

  load(kind) {
    if (kind === "one") return this.ask(ANSWERABLE[this.asked++ % ANSWERABLE.length]);
    return kind === "prefix" ? this.askEight() : this.askLong();
  }

  async ask(question) {
    const turn = this.turn(question);
    const messages = [...this.messages.slice(-REMEMBERED), { role: "user", content: question }];
    const answer = await this.run(turn, { messages, maxTokens: 256, session: this.session });
    if (answer) this.messages.push({ role: "user", content: question }, { role: "assistant", content: answer });
  }

  /** One prefix, eight questions at once: its pages are shared while they run. */
  async askEight() {
    const turn = this.turn("Eight questions about one text, at once");
    turn.answer.remove();
    setText(turn.meter, "");
    const list = element("ul", { class: "many" });
    turn.root.insertBefore(list, turn.meter);
    const model = await this.model(turn);
    if (!model) return;
    const ratio = await charactersPerToken(model, PREFIX);
    const prefix = PREFIX.slice(0, Math.floor(Math.max(40, (model.limit * 0.5 - 40) * ratio)));
    const jobs = QUESTIONS.map((question, index) => {
      const answer = element("span", { class: "answer" });
      const meter = element("span", { class: "meter" });
      list.append(element("li", {}, answer, meter));
      const messages = [{ role: "user", content: `${prefix}\n\n${question}` }];
      return this.run({ ...turn, answer, meter, isShort: true }, { messages, maxTokens: 48, session: `${this.session}-${index + 1}` });
    });
    await Promise.all(jobs);
  }

  async askLong() {
    const turn = this.turn("A long context, then one question about it");
    const model = await this.model(turn);
    if (!model) return;
    const ratio = await charactersPerToken(model, longText(2000));
    const text = longText(Math.floor(Math.min(model.limit * 0.7, LONGEST) * ratio));
    const messages = [{ role: "user", content: `${text}\n\nWhat is said of the first page?` }];
    await this.run(turn, { messages, maxTokens: 96, session: `${this.session}-long` });
  }

  async model(turn) {
    try {
      this.known ??= await readModel();
      return this.known;
    } catch (error) {
      this.fail(turn, error);
      return null;
    }
  }

  /** Returns the answer's text, null if none came. */
  async run(turn, { messages, maxTokens, session }) {
    const model = await this.model(turn);
    if (!model) return null;
    const abort = new AbortController();
    this.began(abort);
    const start = performance.now();
    const seen = { text: "", first: null, pending: false };
    const onText = (piece) => {
      seen.first ??= performance.now() - start;
      seen.text += piece;
      this.write(turn, seen);
    };
    try {
      const limit = Math.max(1, Math.min(maxTokens, Math.floor(model.limit / 4)));
      const usage = await complete({ model, messages, maxTokens: limit, session, signal: abort.signal, onText });
      setText(turn.meter, meterWords(usage, seen.first, (performance.now() - start) / 1000, turn.isShort));
      return seen.text;
    } catch (error) {
      if (abort.signal.aborted) setText(turn.meter, "stopped");
      else this.fail(turn, error);
      return null;
    } finally {
      this.ended(abort);
    }
  }

  /** One write in each animation frame, however many pieces came. */
  write(turn, seen) {
    if (seen.pending) return;
    seen.pending = true;
    requestAnimationFrame(() => {
      seen.pending = false;
      const isAtEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
      setText(turn.answer, turn.isShort ? seen.text.slice(0, 90) : seen.text);
      if (isAtEnd) this.log.scrollTop = this.log.scrollHeight;
    });
  }

  turn(question) {
    $(".hint", this.log)?.remove();
    const answer = element("p", { class: "answer" });
    const meter = element("p", { class: "meter" }, "…");
    const root = element("div", { class: "turn" }, element("p", { class: "asked" }, question), answer, meter);
    this.log.append(root);
    while (this.log.children.length > TURNS) this.log.firstElementChild.remove();
    this.log.scrollTop = this.log.scrollHeight;
    return { root, answer, meter, isShort: false };
  }

  fail(turn, error) {
    turn.meter.classList.add("fault");
    setText(turn.meter, error instanceof TypeError ? "the server does not answer" : error.message);
  }

  began(abort) {
    this.running.add(abort);
    this.stop.hidden = false;
  }

  ended(abort) {
    this.running.delete(abort);
    this.stop.hidden = this.running.size === 0;
  }
}

function meterWords(usage, first, seconds, isShort) {
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  if (!usage) return `${seconds.toFixed(1)} s`;
  if (isShort) return `${format.count(cached)} of ${format.count(usage.prompt_tokens)} cached`;
  const pace = usage.completion_tokens / Math.max(seconds, 1e-3);
  return [
    `${format.count(usage.prompt_tokens)} in, ${format.count(cached)} cached`,
    `${format.count(usage.completion_tokens)} out`,
    `${format.rate(pace)}/s`,
    first === null ? "" : `first after ${format.seconds(first / 1000)}`,
  ]
    .filter(Boolean)
    .join(" · ");
}
