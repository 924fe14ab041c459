// One page on its way through the tiers. Keeps to the page, not to the block: the block may hold another one later.

import { ask } from "./ask.js";
import { element } from "./dom.js";
import { describe, factList, headline } from "./facts.js";
import * as format from "./format.js";

const PAUSE = 1000; // milliseconds from an answer to the next question
const HINT = "Point at a block to see whose page it is. Click it to follow the page on its way through the tiers.";

export class Follow {
  constructor({ body, release }, map, colouring, { view, pageOfBlock }) {
    Object.assign(this, { body, release, map, colouring, view, pageOfBlock });
    this.block = null;
    this.round = 0;
    release.addEventListener("click", () => this.follow(null));
    this.show();
  }

  follow(block) {
    this.block = block;
    this.key = null;
    this.journey = null;
    this.note = "";
    this.alsoIn = [];
    this.text = null;
    this.release.hidden = block === null;
    this.map.mark(this.view()?.memory, { followed: block });
    this.show();
    this.round++;
    if (block !== null) this.poll(this.round);
  }

  async poll(round) {
    while (round === this.round) {
      if (document.visibilityState === "visible") await this.read(round);
      await new Promise((done) => setTimeout(done, PAUSE));
    }
  }

  async read(round) {
    try {
      const answer = await ask(`/v1/kv/follow?block=${this.block}`);
      if (round !== this.round) return;
      if (answer.ok) this.take(await answer.json());
      else this.note = `The server has no journey for this block (${answer.status}).`;
    } catch {
      return; // the stream says what is wrong with the connection
    }
    if (round === this.round) this.show();
  }

  take({ key, journey, state, also_in: alsoIn }) {
    this.alsoIn = alsoIn ?? [];
    if (this.key && key !== this.key) {
      this.note = "The page has left: the block holds something else now.";
      return;
    }
    this.key = key;
    this.journey = journey ?? [];
    this.note = this.journey.length ? "" : this.words(state);
  }

  words(state) {
    if (state === "free") return "Nothing lies here now.";
    return this.key ? "It has not moved since it was written." : "It can be followed once it is full and findable.";
  }

  /** Also after each frame. Rebuilds only what says something new. */
  show() {
    const view = this.view();
    if (this.block === null || !view) {
      if (this.text !== HINT) this.body.replaceChildren(element("p", { class: "hint" }, HINT));
      this.text = HINT;
      return;
    }
    if (this.block >= view.memory.count) return;
    const known = describe(this.block, view, this.pageOfBlock());
    const tiers = (view.meta.tiers ?? []).map((tier) => tier.name);
    const text = JSON.stringify([known, this.key, this.journey, this.note, this.alsoIn, tiers]);
    if (text === this.text) return;
    this.text = text;
    const tier = known.facts.find(([name]) => name === "tier");
    if (this.alsoIn?.length) tier[1] += `, copy in ${this.alsoIn.join(", ")}`;
    if (this.key) known.facts.push(["content", this.key]);
    const steps = (this.journey ?? []).slice(-60).reverse();
    this.body.replaceChildren(
      headline(known, this.colouring),
      factList(known),
      element("ol", { class: "journey", "aria-label": "Journey, the newest first" }, ...steps.map((each) => step(each, tiers))),
      element("p", { class: "hint" }, this.note),
    );
  }
}

function step({ time, tier, what }, tiers) {
  const index = Math.min(Math.max(tiers.indexOf(tier), 0), 3);
  const words = element("span", {}, element("strong", {}, tier ?? ""), ` ${what ?? ""}`);
  return element("li", { class: `tier-${index}` }, element("time", {}, format.clock(time)), words);
}
