// Puts the parts together: frames come in, become the picture that is shown, and every part draws it.
//
//   stream --> decode --> memory now, history --> view (now, or a moment of the past) --> map and panels

import { ask } from "./ask.js";
import { $, $$, setText, watchVisible, watchWidth } from "./dom.js";
import { decodeFrame, Memory } from "./frame.js";
import { History } from "./history.js";
import { Series } from "./series.js";
import { Schedule } from "./schedule.js";
import { Stream } from "./stream.js";
import { startTheme } from "./theme.js";
import { Colouring } from "./palette.js";
import { BlockMap } from "./blockmap.js";
import { Legend } from "./legend.js";
import { Explore } from "./explore.js";
import { Follow } from "./follow.js";
import { Scrub } from "./scrub.js";
import { Figures } from "./figures.js";
import { Tiers } from "./tiers.js";
import { HitRate } from "./hitrate.js";
import { Waste } from "./waste.js";
import { Requests } from "./requests.js";
import { Tables } from "./tables.js";
import { Timeline } from "./timeline.js";
import { Alerts } from "./alerts.js";
import { Chat } from "./chat.js";
import * as format from "./format.js";

const PAST = 300; // seconds of history asked for when the page is opened
const PATIENCE = 4000; // milliseconds that the past may take to come
const SLICE = 8; // milliseconds of reading it before the browser may draw
const TEXT_EVERY = 450; // milliseconds between two writings of the panels: faster nobody reads

startTheme($("#theme"));

const now = new Memory();
const past = new Memory();
const history = new History();
const series = new Series();
const schedule = new Schedule();
const colouring = new Colouring();
const map = new BlockMap($("#map-canvas"), $("#map-overlay"), colouring);
let shown = null; // the view: {meta, memory, time, isLive}
let changed = []; // blocks to draw; null: all of them
let wroteAt = 0;
let uptime = 0;
let lastSeq = null;
const view = () => shown;
const pageOfBlock = () => (scrub.isLive ? tables.pageOfBlock : new Map()); // the tables are only known as they are now

const legend = new Legend($("#legend"));
const follow = new Follow({ body: $("#inspector-body"), release: $("#unfollow") }, map, colouring, { view, pageOfBlock });
const explore = new Explore(
  { sheet: $("#sheet"), stage: $("#stage"), tip: $("#tip"), speech: $("#map-spoken") },
  map,
  colouring,
  { view, pageOfBlock, onFollow: (block) => follow.follow(block) },
);
const scrub = new Scrub(
  { root: $("#scrub"), slider: $("#scrubber"), live: $("#live"), moment: $("#moment") },
  history,
  () => schedule.add("move", showMoment),
);
const tables = new Tables(
  { stage: $("#table-stage"), canvas: $("#table-canvas"), empty: $("#tables-empty"), caption: $("#tables-caption") },
  colouring,
  {
    view,
    onPoint: (block, event) => {
      explore.at = event && { x: event.clientX, y: event.clientY };
      explore.set(block);
    },
    onPick: (block) => block !== null && follow.follow(block),
  },
);
const timeline = new Timeline($("#lanes"), $("#lanes-canvas"), { button: $("#trace"), words: $("#trace-words") });
const inView = new Set(["alerts", "map"]); // panels that somebody can see; alerts have a badge at the top
const panels = {
  figures: new Figures($("#figures"), series),
  legend,
  requests: new Requests(
    { rows: $("#request-rows"), empty: $("#requests-empty"), caption: $("#requests-caption") },
    colouring,
    (owner) => map.mark(shown?.memory, { owner }),
  ),
  tiers: new Tiers($("#tier-list"), series),
  waste: new Waste($("#waste-body")),
  hits: new HitRate($("#hits-plot"), $("#hits-keys"), series),
  timeline,
  alerts: new Alerts({ list: $("#alert-list"), empty: $("#alerts-empty"), badge: $("#badge") }),
};
new Chat({ log: $("#chat-log"), form: $("#chat-form"), text: $("#chat-text"), quick: $$("[data-quick]"), stop: $("#chat-stop") });

// -- frames ---------------------------------------------------------------------------------------------------------

/** Takes a frame into the books. Returns the blocks it changed, null for all; undefined if it builds on one that is
 * not known (then a full one follows by itself). */
function record(frame) {
  if (!frame.full && frame.since !== undefined && frame.since !== lastSeq) return undefined;
  lastSeq = frame.meta.seq;
  if (frame.meta.uptime < uptime - 1) forget(); // another process: its counters begin again
  uptime = frame.meta.uptime;
  const blocks = now.apply(frame);
  history.push(frame, now);
  series.record(frame.meta);
  timeline.record(frame.meta);
  return blocks;
}

function forget() {
  history.clear();
  series.clear();
  timeline.clear();
  scrub.number = null;
}

function onFrame(text) {
  const blocks = record(decodeFrame(text));
  if (blocks === undefined) return;
  if (!scrub.isLive) {
    if (scrub.show()) schedule.add("move", showMoment);
    return;
  }
  // A full frame of a memory that is already drawn says nothing new, but is drawn again to be sure.
  changed = blocks === null || changed === null ? null : [...changed, blocks];
  shown = { meta: history.meta(history.last), memory: now, time: history.meta(history.last).time, isLive: true };
  if (colouring.learn(shown.meta.owners ?? [])) changed = null;
  schedule.add("map", drawMap);
  if (performance.now() - wroteAt > TEXT_EVERY) drawPanels();
}

function showMoment() {
  if (history.last < history.first) return;
  const number = scrub.number ?? history.last;
  const memory = scrub.isLive ? now : history.rebuild(number, past);
  const meta = history.meta(number);
  shown = { meta, memory, time: meta.time, isLive: scrub.isLive };
  colouring.learn(meta.owners ?? []);
  changed = null;
  schedule.add("map", drawMap);
  drawPanels();
}

// -- drawing --------------------------------------------------------------------------------------------------------

function drawMap() {
  if (!shown) return;
  const { memory, meta } = shown;
  if (memory.count !== map.count) layout();
  else if (!inView.has("map")) {
    changed = null; // drawn when it comes into sight
    return;
  } else if (changed === null) map.drawAll(memory);
  else for (const blocks of changed) map.draw(memory, blocks);
  if (map.marks.owner && changed !== null) map.drawMarks(memory);
  changed = [];
  setText($("#map-caption"), `${format.count(memory.count)} blocks of ${format.count(meta.pool.page_size)} tokens, ${format.bytes(meta.pool.block_bytes)} each`);
  explore.refresh();
  scrub.show();
}

function drawPanels() {
  wroteAt = performance.now();
  for (const name of inView) schedule.add(name, () => panels[name]?.show(shown));
  schedule.add("follow", () => follow.show());
  schedule.add("title", () => {
    setText($("#model"), shown.meta.model);
    setText($("#uptime"), `up ${format.duration(shown.meta.uptime)}`);
  });
}

function layout() {
  const stage = $("#stage");
  $("#stage-empty").hidden = true;
  // The stage grows with what stands beside it; on a phone nothing does.
  const height = Math.max(Math.min(innerHeight * 0.74, 760) - 8, 240);
  map.layout(shown.memory, shown.meta.pool.page_size, stage.clientWidth - 8, Math.min(height, stageHeight(stage)));
}

function stageHeight(stage) {
  return innerWidth <= 860 ? 360 : Math.max(440, stage.clientHeight - 8);
}

// -- the outside ----------------------------------------------------------------------------------------------------

watchWidth($("#stage"), () => shown && schedule.add("layout", layout));

document.addEventListener("theme", () => {
  if (!shown) return;
  changed = null;
  schedule.add("map", drawMap);
  drawPanels();
});

const switches = $$("[data-colour]");
function colourBy(button) {
  colouring.setMode(button.dataset.colour);
  for (const each of switches) {
    each.setAttribute("aria-checked", String(each === button));
    each.tabIndex = each === button ? 0 : -1;
  }
  changed = null;
  schedule.add("map", drawMap);
  drawPanels();
  tables.draw();
}
for (const button of switches) {
  button.addEventListener("click", () => colourBy(button));
  button.addEventListener("keydown", (event) => {
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    const other = switches[(switches.indexOf(button) + 1) % switches.length];
    other.focus();
    colourBy(other);
  });
}

for (const name of Object.keys(panels)) {
  watchVisible($(`#${name}`), (isVisible) => {
    if (!isVisible) return name !== "alerts" && inView.delete(name);
    inView.add(name);
    return shown && schedule.add(name, () => panels[name]?.show(shown));
  });
}
watchVisible($("#map"), (isVisible) => {
  if (!isVisible) return inView.delete("map");
  inView.add("map");
  return schedule.add("map", drawMap);
});
watchVisible($("#tables"), (isVisible) => tables.want(isVisible));

async function readPast() {
  try {
    const answer = await ask(`/v1/kv/history?seconds=${PAST}`, { signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) return;
    let since = performance.now();
    for (const frame of (await answer.json()).frames) {
      record(decodeFrame(frame));
      if (performance.now() - since < SLICE) continue;
      await new Promise((done) => setTimeout(done));
      since = performance.now();
    }
  } catch {
    // without a past the page begins now
  }
}

const stream = new Stream("/v1/kv/stream", {
  onFrame,
  onState: (state, words) => {
    $("#connection").dataset.state = state;
    setText($("#connection-words"), words);
  },
});
await document.fonts.ready; // the map's numbers are drawn, not laid out: they need the font
await readPast();
stream.run();

/** For the console and for tests: import("/page/js/main.js") gives the parts of the page that runs. */
export { history, map, now, schedule, scrub, tables, view };
