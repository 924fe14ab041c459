// One frame of the stream: its arrays decoded, and how they change a picture of the memory.

import { decodeBytes, decodeUint16, decodeUint32 } from "./base64.js";

export const FREE = 0;
export const USED = 1;
export const CACHED = 2;
export const MOVING = 3;

/** {meta, full, since, at, state, owner, mappings, filled, bytes}; `at` is null in a full frame. */
export function decodeFrame(text) {
  const meta = typeof text === "string" ? JSON.parse(text) : text;
  const blocks = meta.blocks;
  delete meta.blocks; // the decoded arrays take its place
  const frame = {
    meta,
    full: blocks.full,
    since: blocks.since,
    at: blocks.full ? null : decodeUint32(blocks.at),
    state: decodeBytes(blocks.state),
    owner: decodeUint16(blocks.owner),
    mappings: decodeBytes(blocks.mappings),
    filled: decodeBytes(blocks.tokens),
    bytes: 0,
  };
  // What keeping it costs: the arrays, and the objects of `meta` (a few times their text).
  const arrays = frame.state.length * (frame.full ? 5 : 9);
  frame.bytes = arrays + 2000 + 400 * (meta.owners?.length ?? 0) + 200 * (meta.activity?.length ?? 0);
  return frame;
}

/** The state of every block at one moment. */
export class Memory {
  constructor(count = 0) {
    this.resize(count);
  }

  resize(count) {
    this.count = count;
    this.state = new Uint8Array(count);
    this.owner = new Uint16Array(count);
    this.mappings = new Uint8Array(count);
    this.filled = new Uint8Array(count);
  }

  /** Returns the blocks that the frame names, or null for all of them. */
  apply(frame) {
    if (frame.full) {
      if (frame.state.length !== this.count) this.resize(frame.state.length);
      this.state.set(frame.state);
      this.owner.set(frame.owner);
      this.mappings.set(frame.mappings);
      this.filled.set(frame.filled);
      return null;
    }
    const { at, state, owner, mappings, filled } = frame;
    for (let i = 0; i < at.length; i++) {
      const block = at[i];
      this.state[block] = state[i];
      this.owner[block] = owner[i];
      this.mappings[block] = mappings[i];
      this.filled[block] = filled[i];
    }
    return at;
  }

  /** A full frame of what is now. */
  snapshot(meta) {
    const arrays = {
      state: this.state.slice(),
      owner: this.owner.slice(),
      mappings: this.mappings.slice(),
      filled: this.filled.slice(),
    };
    return { meta, full: true, at: null, ...arrays, bytes: this.count * 5 + 2000 };
  }
}
