"""One sequence: its token ids, its page tables, and what may be done with it. The cache does the work.

Half-open ranges of token positions, and who answers for them:

    [0, prefix_tokens)            content found in the prefix index when the sequence was made; never computed here
    [0, length)                   K and V written: readable, and published page by page where the page is full
    [length, num_tokens)          known token ids, not computed yet: the next steps take them
"""

from array import array
from collections.abc import Iterable
from struct import error, pack
from typing import TYPE_CHECKING

import numpy as np

from kvpager import native
from kvpager.cache.attention_state import AttentionState
from kvpager.cache.away import AwayPages
from kvpager.cache.by_hand import read_rows, write_rows
from kvpager.cache.fault import SequenceFaults
from kvpager.errors import ConfigError
from kvpager.eviction.policy import DEFAULT_PRIORITY, StopReason, Use
from kvpager.memory.page_table import Location, PageTable
from kvpager.prefix.hashing import Scope
from kvpager.tiers.row_access import Rows
from kvpager.types import NodeId, TierKind

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache
    from kvpager.cache.retention_terms import Retained, Retention

MAX_TOKEN_ID = 2**31 - 1
_ONE_ID = array("i", [0])


def token_array(tokens: Iterable[int]) -> "array[int]":
    """Token ids as int32. Raises ConfigError for ids below 0, above 2^31-1, or that are not whole numbers."""
    if type(tokens) is list and (found := _native_ids(tokens)) is not None:
        return found
    if isinstance(tokens, array) and tokens.typecode == "i":
        ids = tokens[:]
    else:
        tolist = getattr(tokens, "tolist", None)
        try:
            ids = _int32(tokens if type(tokens) is list else list(tokens) if tolist is None else tolist())
        except (TypeError, OverflowError) as wrong:
            raise ConfigError(f"token ids must be whole numbers from 0 to {MAX_TOKEN_ID}: {wrong}") from None
    if ids and (lowest := int(np.frombuffer(ids, np.int32).min())) < 0:
        raise ConfigError(f"token id {lowest} is negative")
    return ids


def _native_ids(tokens: list[int]) -> "array[int] | None":
    """The ids of a list, where the native kernels are there and nothing is wrong with it."""
    module = native.module()
    if module is None:
        return None
    ids = _ONE_ID * len(tokens)
    return ids if module.read_token_ids(tokens, ids) else None


def _int32(numbers: list[int]) -> "array[int]":
    """As ``array("i", numbers)``, and raises what that would, in half the time."""
    ids = array("i")
    try:
        ids.frombytes(pack(f"{len(numbers)}i", *numbers))
    except error:
        return array("i", numbers)
    return ids


class Sequence:
    """Made by ``cache.sequence()``; not thread-safe, like the cache it belongs to."""

    __slots__ = (
        "_attention",
        "_cache",
        "_node",
        "_resident_limit",
        "_root",
        "away",
        "exact_until",
        "faults",
        "is_freed",
        "is_lost",
        "matched_tokens",
        "prefix_by_tier",
        "prefix_tokens",
        "priority",
        "prompt_tokens",
        "retained",
        "row",
        "scope",
        "stop",
        "tables",
        "tenant",
        "tokens",
        "wishes",
    )

    def __init__(self, cache: "PagedCache", row: int, tokens: "array[int] | None", scope: Scope) -> None:
        self._cache = cache
        self.row = row
        self.tokens = tokens  # None: written by hand, content unknown, never shared by content
        self.scope = scope
        self.tables: tuple[PageTable, ...] = ()
        self.prefix_tokens = 0
        self.prefix_by_tier: dict[TierKind, int] = {}  # where its prefix was found when the sequence was made
        self.is_freed = False
        self.prompt_tokens = 0 if tokens is None else len(tokens)
        self.matched_tokens: int | None = None  # where an earlier sequence began its request; else as found
        self.stop = StopReason.UNKNOWN
        self.priority = DEFAULT_PRIORITY
        self.tenant = scope.salt if scope.tenant is None else scope.tenant
        self.wishes: tuple[Retention, ...] = ()  # what it was asked to retain
        self.retained: tuple[Retained, ...] = ()  # and the answers
        self.away: tuple[AwayPages, ...] | None = None  # by layer group: pages below the device, or gone for good
        self.exact_until: int | None = None  # K and V from this position on are approximate; None: none are
        self.is_lost = False  # pages can't be read any more: it can only be freed
        self.faults = SequenceFaults()
        self._attention: AttentionState | None = None
        self._resident_limit: int | None = None
        self._node: NodeId | None = None  # the node of the last published page, or the scope's root
        self._root: NodeId | None = None

    @property
    def length(self) -> int:
        """Tokens whose K and V are written."""
        return int(self._cache.rows.committed[self.row]) if not self.is_freed else 0

    @property
    def resident_limit(self) -> int | None:
        """Pages of each layer group that stay on the device at most, those of a step included; None: all of them.

        Raises ConfigError, when it is set, where pages can't be used below the device.
        """
        return self._resident_limit

    @resident_limit.setter
    def resident_limit(self, limit: int | None) -> None:
        self._cache.check_usable(self)
        if limit is not None:
            self._cache.paging.check_limit(limit, self.tokens)
            self._cache.rows.mark_special(self.row)
        self._resident_limit = limit

    @property
    def attention(self) -> AttentionState | None:
        """Set by whoever attends in another way than plainly."""
        return self._attention

    @attention.setter
    def attention(self, state: AttentionState | None) -> None:
        self._cache.check_usable(self)
        self._attention = state
        if state is not None:
            self._cache.rows.mark_special(self.row)

    @property
    def num_tokens(self) -> int:
        """Known token ids."""
        return self.length if self.tokens is None else len(self.tokens)

    def append(self, tokens: Iterable[int] | int) -> None:
        """Adds token ids for the next steps to compute. O(tokens); gives out no block."""
        ids = self.tokens
        if self.is_freed or ids is None:
            self._cache.check_usable(self)
            raise ConfigError("this sequence was made without token ids; write its K and V by hand")
        if type(tokens) is int and 0 <= tokens <= MAX_TOKEN_ID:  # a decode step
            ids.append(tokens)
        elif not isinstance(tokens, int):
            is_scalar = getattr(tokens, "ndim", 1) == 0  # of numpy or torch: what argmax gives
            ids.extend(token_array([tokens] if is_scalar else tokens))  # type: ignore[list-item]
        elif 0 <= tokens <= MAX_TOKEN_ID:
            ids.append(tokens)
        else:
            raise ConfigError(f"token id {tokens} is not between 0 and {MAX_TOKEN_ID}")

    def truncate(self, length: int) -> None:
        """Forgets everything from position ``length`` on, token ids included; pages behind it are given back at once.

        Raises ConfigError while a step on the sequence is open, or where a window has given back what would be needed.
        """
        self._cache.truncate(self, length)

    def fork(self) -> "Sequence":
        """A second sequence with the same content. Shares every page; the first write to a shared page copies it."""
        return self._cache.fork(self)

    def free(self, stop: StopReason = StopReason.UNKNOWN) -> None:
        """Gives all pages back; full ones stay findable until they are reclaimed. Freeing twice is an error.

        ``stop``: why the request ended, where that is known; some eviction policies learn from it.
        """
        self.stop = stop
        cache = self._cache
        if native.is_off or not cache.books.end(self, cache.evictable, cache.sequences):
            cache.free((self,))

    def use(self) -> Use:
        """What eviction policies are told when pages are let go."""
        prompt = max(1, self.prompt_tokens)
        matched = self.prefix_tokens if self.matched_tokens is None else self.matched_tokens
        return Use(
            output_tokens=max(0, self.num_tokens - self.prompt_tokens),
            matched=min(1.0, matched / prompt),
            stop=self.stop,
            priority=self.priority,
            tenant=self.tenant,
        )

    def write(self, start: int, k: Rows, v: Rows) -> None:
        """Writes K and V rows by hand at positions ``start`` on; both [layers, tokens, kv_heads, head_dim].

        Extends the sequence where the rows go past its end. Raises ConfigError for a gap, wrong shape or dtype, or a
        page that is published already; OutOfBlocks where the pool is full. Quantized layouts take any float dtype.
        """
        write_rows(self._cache, self, start, k, v)

    def read(self, start: int, stop: int) -> tuple[Rows, Rows]:
        """Copies of K and V at positions ``start .. stop-1``: two tensors [layers, tokens, kv_heads, head_dim].

        In the dtype of the layout; where that is quantized, in float32, and not quite what was written.
        """
        return read_rows(self._cache, self, start, stop)

    def translate(self, position: int, layer: int = 0) -> Location:
        """Tier, block and slot that hold ``position`` of ``layer``. Raises ConfigError if there is no such place."""
        self._cache.check_usable(self)
        if position < 0 or not 0 <= layer < self._cache.layout.layers:
            raise ConfigError(f"there is no position {position} of layer {layer}")
        group = self._cache.layout.places[layer].group
        return self.tables[group].translate(position)

    def __repr__(self) -> str:
        if self.is_freed:
            return "<Sequence freed>"
        return f"<Sequence length={self.length} num_tokens={self.num_tokens} prefix_tokens={self.prefix_tokens}>"
