"""One frame of the memory page: figures and the block map as JSON, whole or as what changed since the frame before.

    {"seq": 7, "time": ..., "pool": {...}, "owners": [...], ..., "blocks":
        {"full": true,                     "state": b64, "owner": b64, "mappings": b64, "tokens": b64}      every block
     or {"full": false, "since": 6, "at": b64 uint32[k], "state": b64, "owner": b64, ...}}                  k of them

Columns are bytes in base64, little-endian: ``owner`` two bytes a block, the others one (metrics/block_view.py says what
they mean). A change costs nine bytes and a block of a whole frame five, so many changes are sent as a whole frame.
Knows no engine: whoever shows a frame reads it with this file.
"""

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvpager.memory.block import BlockState
from kvpager.metrics.block_view import BlockView

STATES = [state.name.lower() for state in BlockState]
_COLUMNS = {"state": "<u1", "owner": "<u2", "mappings": "<u1", "tokens": "<u1"}
_BYTES_OF_BLOCK, _BYTES_OF_CHANGE = 5, 9


@dataclass(frozen=True, slots=True)
class Encoded:
    """A frame as JSON. ``is_whole``: it can be read without the frame before it."""

    text: str
    is_whole: bool


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """``figures``: all but the blocks, ready for JSON. ``seq`` goes up; ``time``: unix seconds."""

    seq: int
    time: float
    figures: dict[str, Any]
    blocks: BlockView

    def encode(self, before: "Frame | None" = None) -> Encoded:
        """As changes since ``before``; whole where that is None, of another size, or nothing would be saved."""
        blocks = encode_blocks(self.blocks, None if before is None else before.blocks)
        if before is not None and not blocks["full"]:
            blocks["since"] = before.seq
        text = json.dumps({**self.figures, "blocks": blocks}, separators=(",", ":"), allow_nan=False)
        return Encoded(text, blocks["full"])


def read_frame(text: str, before: Frame | None = None) -> Frame:
    """What ``encode`` wrote. Raises ValueError for anything else, and for changes to a frame that isn't ``before``."""
    figures = json.loads(text)
    if not isinstance(figures, dict) or not isinstance(figures.get("blocks"), dict):
        raise ValueError("this is not a frame: it has no blocks")
    payload = figures.pop("blocks")
    seq, time = int(figures["seq"]), float(figures["time"])
    if not payload["full"] and (before is None or before.seq != payload["since"]):
        raise ValueError(f"frame {seq} says what changed since frame {payload['since']}, which is not there")
    return Frame(seq, time, figures, decode_blocks(payload, None if before is None else before.blocks))


def encode_blocks(view: BlockView, before: BlockView | None = None) -> dict[str, Any]:
    if before is not None and len(before) == len(view):
        at = view.changes_since(before)
        if len(at) * _BYTES_OF_CHANGE < len(view) * _BYTES_OF_BLOCK:
            changed = {name: _text(getattr(view, name)[at], kind) for name, kind in _COLUMNS.items()}
            return {"full": False, "at": _text(at, "<u4"), **changed}
    return {"full": True, **{name: _text(getattr(view, name), kind) for name, kind in _COLUMNS.items()}}


def decode_blocks(payload: dict[str, Any], before: BlockView | None = None) -> BlockView:
    """Raises ValueError where columns differ in length, or there is nothing that the changes could be made to."""
    columns = {name: np.frombuffer(b64decode(payload[name]), kind) for name, kind in _COLUMNS.items()}
    if len({len(column) for column in columns.values()}) != 1:
        raise ValueError("the columns of the blocks differ in length")
    if payload["full"]:
        return BlockView(**columns)
    if before is None:
        raise ValueError("these are changes, and there is no frame before them")
    at = np.frombuffer(b64decode(payload["at"]), "<u4")
    if len(at) != len(columns["state"]) or (len(at) and int(at.max()) >= len(before)):
        raise ValueError("the changes don't fit the frame before them")
    changed = {}
    for name, column in columns.items():
        changed[name] = getattr(before, name).copy()
        changed[name][at] = column
    return BlockView(**changed)


def _text(column: np.ndarray, kind: str) -> str:
    return b64encode(column.astype(kind, copy=False).tobytes()).decode("ascii")
