// Colours of requests and sessions: the seven of Okabe and Ito, told apart with every kind of colour vision, and each
// of them once darker and once lighter. Grey, white and black are left to cached, free and moving.

const HUES = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#d9c62b"];
export const NUM_COLOURS = HUES.length * 3;

const parse = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
export const toRgb = (text) => (text.startsWith("#") ? parse(expand(text)) : text.match(/\d+(\.\d+)?/g).slice(0, 3).map(Number));
const expand = (hex) => (hex.length === 4 ? `#${[...hex.slice(1)].map((digit) => digit + digit).join("")}` : hex);
export const mix = (a, b, share) => a.map((value, i) => Math.round(value + (b[i] - value) * share));
export const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
/** As ImageData holds it in memory, little-endian. */
export const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

/** Index -> [r, g, b]; neighbours differ in hue, every seven in lightness. */
export const COLOURS = [0, 1, 2].flatMap((step) =>
  HUES.map((hex) => {
    const colour = parse(hex);
    if (step === 1) return mix(colour, [0, 0, 0], 0.36);
    return step === 2 ? mix(colour, [255, 255, 255], 0.46) : colour;
  }),
);

/** FNV-1a of a name. */
function hash(name) {
  let value = 0x811c9dc5;
  for (let i = 0; i < name.length; i++) value = Math.imul(value ^ name.charCodeAt(i), 0x01000193);
  return value >>> 0;
}

/** Which colour an owner has. The same one as long as the page is open, however the owners around it change. */
export class Colouring {
  constructor() {
    this.mode = "request";
    this.ofOwner = new Uint8Array(65536); // owner -> colour + 1; 0 where there is no owner
    this.sessions = new Map();
    this.last = [];
  }

  setMode(mode) {
    this.mode = mode;
    this.learn(this.last);
  }

  /** Returns whether an owner's colour is another than before. */
  learn(owners) {
    this.last = owners;
    let hasChanged = false;
    for (const each of owners) {
      const colour = 1 + (this.mode === "session" ? this.ofSession(each) : each.owner - 1) % NUM_COLOURS;
      if (this.ofOwner[each.owner] !== colour) {
        hasChanged ||= this.ofOwner[each.owner] !== 0;
        this.ofOwner[each.owner] = colour;
      }
    }
    return hasChanged;
  }

  /** By its name; the next one free if another session that is known has that colour. Without a name: by request. */
  ofSession(each) {
    const name = each.session || each.request;
    let colour = this.sessions.get(name);
    if (colour === undefined) {
      const taken = new Set(this.sessions.values());
      colour = hash(name) % NUM_COLOURS;
      for (let i = 0; i < NUM_COLOURS && taken.has(colour); i++) colour = (colour + 1) % NUM_COLOURS;
      if (this.sessions.size > 4096) this.sessions.delete(this.sessions.keys().next().value);
      this.sessions.set(name, colour);
    }
    return colour;
  }

  css(owner) {
    const colour = this.ofOwner[owner];
    return colour ? css(COLOURS[colour - 1]) : "var(--ink-3)";
  }
}
