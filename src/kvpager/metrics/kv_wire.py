"""Page events as KV events of the wire: what vLLM and SGLang publish, so that their routers understand it. No sockets.

A batch is an array, ``[unix seconds, [event, ...], data parallel rank]``. An event is a map, as both engines send it
now, or an array with the same fields in the same order, as both sent it before:

    BlockStored       block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name, extra_keys
                      [, group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window]
    BlockRemoved      block_hashes, medium [, group_idx]
    AllBlocksCleared

"Block" is their word for a page. A hash is the last 64 bits of a content key, as an unsigned number. ``medium`` is GPU
(the device, also where that is a CPU), CPU, DISK or EXTERNAL (a remote store). Pages that follow each other go into
one event. ``extra_keys`` has a list per block, or nil: digests of media in it, and for the first page of a prompt in
another scope than the plain one ``kvpager-scope:`` and a name of that; salts are never sent. What is in brackets is
there only if the model has several layer groups. kvpager serves no adapters, so the LoRA fields are nil.

Token ids are known of pages that were on the device since somebody listened, and of so many at most; other events go
without (``token_ids`` is empty). Pages that only one running sequence can find are not told.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from kvpager.cache.page_log import PageEvent, What
from kvpager.memory.layout import KVLayout
from kvpager.types import ContentKey, PageReason, TierKind

MEDIUM = {
    TierKind.DEVICE: "GPU",
    TierKind.HOST: "CPU",
    TierKind.DISK: "DISK",
    TierKind.REMOTE: "EXTERNAL",
}
MOST_TOKENS = 1 << 23  # token ids that are remembered of pages
_MOST_BLOCKS = 512  # of one event
_DIGEST_BYTES = 32
_POSITION_BYTES = 8

Wire = dict[str, object] | list[object]


class Form(Enum):
    """``MAPS``: vLLM since mid 2026, and SGLang. ``ARRAYS``: earlier ones."""

    MAPS = "maps"
    ARRAYS = "arrays"


@dataclass(slots=True)
class _Page:
    """``tiers``: one bit for each that has it. ``content``: None where the token ids are not known."""

    parent: ContentKey | None
    group: int
    content: bytes | None = None
    scope: str | None = None
    tiers: int = 0


class Translator:
    """Keeps the pages that were told, which is what a subscriber should know. One thread's."""

    def __init__(self, layout: KVLayout, form: Form = Form.MAPS, most_tokens: int = MOST_TOKENS) -> None:
        self._page_size = layout.page_size
        self._windows = [group.window for group in layout.groups]
        self._form = form
        self._most_contents = most_tokens // layout.page_size
        self._num_contents = 0
        self._pages: dict[ContentKey, _Page] = {}
        self._in_tier: dict[TierKind, int] = dict.fromkeys(MEDIUM, 0)

    @property
    def num_pages(self) -> int:
        """Pages that are somewhere."""
        return len(self._pages)

    def events(self, events: Iterable[PageEvent]) -> list[Wire]:
        """What a subscriber has to be told."""
        wire: list[Wire] = []
        for each in self._runs(events):
            wire += each
        return wire

    def everything(self) -> list[Wire]:
        """What a subscriber has to be told who knows nothing, or something wrong."""
        wire: list[Wire] = [self._event("AllBlocksCleared", {})]
        for tier in MEDIUM:
            run = _Run(What.STORED, tier)
            for key, page in self._pages.items():
                if page.tiers >> tier & 1:
                    if not run.goes_on(What.STORED, tier, key, page):
                        wire += self._close(run)
                        run = _Run(What.STORED, tier)
                    run.add(key, page)
            wire += self._close(run)
        return wire

    # -- runs of pages ------------------------------------------------------------------------------------------

    def _runs(self, events: Iterable[PageEvent]) -> Iterator[list[Wire]]:
        run = _Run(What.STORED, TierKind.NONE)
        for event in events:
            if event.what is What.CLEARED:
                yield self._close(run)
                run = _Run(What.STORED, TierKind.NONE)
                yield self._cleared(event.tier)
                continue
            page = self._apply(event)
            if page is None or event.key is None:
                continue
            if not run.goes_on(event.what, event.tier, event.key, page):
                yield self._close(run)
                run = _Run(event.what, event.tier)
            run.add(event.key, page)
        yield self._close(run)

    def _apply(self, event: PageEvent) -> _Page | None:
        """Keeps what has happened; the page, where it is worth telling."""
        key, bit = event.key, 1 << event.tier
        if key is None or event.tier not in MEDIUM:
            return None
        page = self._pages.get(key)
        if event.what is What.STORED and event.reason is not PageReason.PRIVATE:
            if page is None:
                page = self._pages[key] = _Page(event.parent, event.group)
            self._learn(page, event)
            if page.tiers & bit:
                return None
            page.tiers |= bit
            self._in_tier[event.tier] += 1
            return page
        if event.what is What.REMOVED and page is not None and page.tiers & bit:
            self._leave(key, page, event.tier)
            return page
        return None

    def _learn(self, page: _Page, event: PageEvent) -> None:
        page.parent = event.parent or page.parent
        page.scope = event.scope if event.scope is not None else page.scope
        if event.content is not None and page.content is None and self._num_contents < self._most_contents:
            page.content = event.content
            self._num_contents += 1

    def _leave(self, key: ContentKey, page: _Page, tier: TierKind) -> None:
        page.tiers &= ~(1 << tier)
        self._in_tier[tier] -= 1
        if not page.tiers:
            del self._pages[key]
            self._num_contents -= page.content is not None

    def _cleared(self, tier: TierKind) -> list[Wire]:
        """The format can clear everything only: with pages elsewhere, those of one tier are removed one by one."""
        if tier not in MEDIUM or not self._in_tier[tier]:
            return []
        is_all = all(not count for other, count in self._in_tier.items() if other is not tier)
        gone = [(key, page) for key, page in self._pages.items() if page.tiers >> tier & 1]
        wire: list[Wire] = []
        run = _Run(What.REMOVED, tier)
        for key, page in gone:
            if not run.goes_on(What.REMOVED, tier, key, page):
                wire += self._close(run)
                run = _Run(What.REMOVED, tier)
            run.add(key, page)
            self._leave(key, page, tier)
        wire += self._close(run)
        return [self._event("AllBlocksCleared", {})] if is_all else wire

    # -- fields -------------------------------------------------------------------------------------------------

    def _close(self, run: "_Run") -> list[Wire]:
        if not run.keys:
            return []
        first, hashes = run.pages[0], [block_hash(key) for key in run.keys]
        group: dict[str, object] = {"group_idx": first.group} if len(self._windows) > 1 else {}
        if run.what is What.REMOVED:
            return [self._event("BlockRemoved", {"block_hashes": hashes, "medium": MEDIUM[run.tier], **group})]
        parent = first.parent if first.scope is None else None  # the first page of a prompt has none
        if group:
            window = self._windows[first.group]
            group["kv_cache_spec_kind"] = "full_attention" if window is None else "sliding_window"
            group["kv_cache_spec_sliding_window"] = window
        fields: dict[str, object] = {
            "block_hashes": hashes,
            "parent_block_hash": None if parent is None else block_hash(parent),
            "token_ids": self._token_ids(run.pages),
            "block_size": self._page_size,
            "lora_id": None,
            "medium": MEDIUM[run.tier],
            "lora_name": None,
            "extra_keys": self._extra_keys(run.pages),
        }
        return [self._event("BlockStored", {**fields, **group})]

    def _token_ids(self, pages: Sequence[_Page]) -> list[int]:
        width = 4 * self._page_size
        contents = [page.content for page in pages if page.content is not None]
        if len(contents) < len(pages):
            return []
        return np.frombuffer(b"".join(content[:width] for content in contents), "<i4").tolist()

    def _extra_keys(self, pages: Sequence[_Page]) -> list[list[str] | None] | None:
        keys = [self._extra(page) or None for page in pages]
        return keys if any(keys) else None

    def _extra(self, page: _Page) -> list[str]:
        media = b"" if page.content is None else page.content[4 * self._page_size :]
        size = _POSITION_BYTES + _DIGEST_BYTES
        found = [media[at + _POSITION_BYTES : at + size].hex() for at in range(0, len(media), size)]
        return [f"kvpager-scope:{page.scope}", *found] if page.scope else found

    def _event(self, name: str, fields: dict[str, object]) -> Wire:
        if self._form is Form.MAPS:
            return {"type": name, **fields}
        return [name, *fields.values()]


class _Run:
    """Pages of one event: of one tier and group; stored ones hang under each other, and all or none have token ids."""

    __slots__ = ("keys", "pages", "tier", "what")

    def __init__(self, what: What, tier: TierKind) -> None:
        self.what, self.tier = what, tier
        self.keys: list[ContentKey] = []
        self.pages: list[_Page] = []

    def goes_on(self, what: What, tier: TierKind, key: ContentKey, page: _Page) -> bool:
        if not self.keys:
            return what is self.what and tier is self.tier
        if (what, tier, page.group) != (self.what, self.tier, self.pages[0].group) or len(self.keys) >= _MOST_BLOCKS:
            return False
        if what is What.REMOVED:
            return True
        return page.parent == self.keys[-1] and (page.content is None) == (self.pages[-1].content is None)

    def add(self, key: ContentKey, page: _Page) -> None:
        self.keys.append(key)
        self.pages.append(page)


def block_hash(key: ContentKey) -> int:
    """What a page is called on the wire."""
    return int.from_bytes(key[-8:], "big")
