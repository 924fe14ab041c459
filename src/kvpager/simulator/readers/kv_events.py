"""KV cache events as vLLM publishes them, one batch a line of JSON:

    {"ts": 12.5, "events": [
        {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null, "token_ids": [..], "block_size": 16},
        {"type": "BlockRemoved", "block_hashes": [2]},
        {"type": "AllBlocksCleared"}]}

or as lists, as older versions do: ``[12.5, [["BlockStored", [1, 2], null, [..], 16], ["BlockRemoved", [2]]]]``.
On the wire they are msgpack; whoever writes them down writes JSON. A hash is a number or a text. Token ids are ignored.

What can be told from events, and what can't:
- A stored chain was computed. Its ancestors were in the cache at that moment, so storing it is a use of them.
- A block that is stored again after it was removed was computed again: a larger cache would have hit it. That is what
  a replay finds, because the chain appears twice.
- A request that found *all* its pages stores nothing and leaves no event. Hits of the real cache are therefore missing
  here, and ratios of a replay are too low, the more so the larger the real cache was. Record with our own recorder
  (simulator/recording.py) where ratios matter.
- A chain that grows within ``_SAME_REQUEST`` seconds is one request: chunks of a prompt, then blocks of its output.
- Only what is stored on the device counts, and of models with several cache groups only the first group.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvpager.simulator.readers.chains import Requests, build_trace
from kvpager.simulator.readers.lines import Lines, json_of, seconds
from kvpager.simulator.trace import Trace

_SAME_REQUEST = 2.0  # seconds
_FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}

Hash = int | str


@dataclass(slots=True)
class _Chain:
    """One request: the blocks it used, root first, and when it last stored one."""

    time: float
    pages: list[int]
    last_stored: float


class _Book:
    """Chains by the blocks they end in, and what hangs under what. Grows with the distinct blocks of the file."""

    def __init__(self) -> None:
        self.chains: list[_Chain] = []
        self.page_tokens = 0
        self._page_of: dict[Hash, int] = {}
        self._parent: list[int] = []
        self._growing: dict[int, _Chain] = {}  # by their last page

    def store(self, time: float, event: dict[str, Any]) -> None:
        tokens = event["block_size"]
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
            raise ValueError("'block_size' must be a whole number, at least 1")
        if self.page_tokens not in (0, tokens):
            raise ValueError(f"'block_size' is {tokens} here and {self.page_tokens} before")
        hashes = _hashes(event)
        if event.get("medium") not in (None, "GPU") or event.get("group_idx") not in (None, 0) or not hashes:
            return
        before = event["parent_block_hash"]
        if before is not None and not _is_hash(before):
            raise ValueError("'parent_block_hash' must be a number or a text")
        self.page_tokens = tokens
        parent = -1 if before is None else self._page(before, -1)
        stored: list[int] = []
        for block in hashes:
            stored.append(self._page(block, stored[-1] if stored else parent))
        self._grow(time, parent, stored)

    def _grow(self, time: float, parent: int, stored: list[int]) -> None:
        chain = self._growing.pop(parent, None)
        if chain is None or time - chain.last_stored > _SAME_REQUEST:
            chain = _Chain(time, self._path_to(parent), time)
            self.chains.append(chain)
        chain.pages += stored
        chain.last_stored = time
        self._growing[stored[-1]] = chain

    def _page(self, block: Hash, parent: int) -> int:
        page = self._page_of.setdefault(block, len(self._parent))
        if page == len(self._parent):
            self._parent.append(parent)
        return page

    def _path_to(self, page: int) -> list[int]:
        path = []
        while page >= 0:
            path.append(page)
            page = self._parent[page]
        return path[::-1]


def read_kv_events(lines: Lines, page_tokens: int | None = None) -> Trace:
    book = _Book()

    def take(line: bytes) -> None:
        time, events = batch_of(line)
        for event in events:
            if event["type"] == "BlockStored":
                book.store(time, event)
            elif event["type"] == "BlockRemoved":
                _hashes(event)

    lines.each(take)
    requests = Requests()
    for chain in book.chains:
        requests.add(chain.time, np.array(chain.pages, np.int32), len(chain.pages) * book.page_tokens, 0)
    own = book.page_tokens or 1
    return build_trace(lines.path.name, requests, own, joined=page_tokens, skipped_lines=lines.skipped)


def batch_of(line: bytes) -> tuple[float, list[dict[str, Any]]]:
    """Time and events of a batch, each as a dictionary with its ``type``. Raises ValueError or KeyError."""
    batch = json_of(line)
    if not is_batch(batch):
        raise ValueError("not a batch of KV events")
    if isinstance(batch, list):
        batch = {"ts": batch[0], "events": batch[1]}
    return seconds(batch, "ts"), [_named(event) for event in batch["events"]]


def is_batch(batch: Any) -> bool:
    if isinstance(batch, list):
        return len(batch) in (2, 3) and isinstance(batch[1], list)
    return isinstance(batch, dict) and "ts" in batch and isinstance(batch.get("events"), list)


def _named(event: Any) -> dict[str, Any]:
    if isinstance(event, list) and event and event[0] in _FIELDS:
        return {"type": event[0], **dict(zip(_FIELDS[event[0]], event[1:], strict=False))}
    if not isinstance(event, dict) or event.get("type") not in _FIELDS:
        raise ValueError(f"an event must be one of {', '.join(_FIELDS)}")
    return event


def _hashes(event: dict[str, Any]) -> list[Hash]:
    hashes = event["block_hashes"]
    if not isinstance(hashes, list) or not all(map(_is_hash, hashes)):
        raise ValueError("'block_hashes' must be a list of numbers or texts")
    return hashes


def _is_hash(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)
