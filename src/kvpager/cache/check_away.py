"""Invariants of pages that are away from the device: tables, columns, copies and tiers tell the same of them."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.page_copies import PageCopy
from kvpager.errors import InvariantError
from kvpager.memory.page_table import UNMAPPED, entry_of_slot
from kvpager.types import TierKind

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache
    from kvpager.cache.sequence import Sequence


def check_away(cache: "PagedCache") -> None:
    """Raises InvariantError unless every page away from the device is accounted for, and nothing else is held."""
    owners: Counter[PageCopy] = Counter()
    users: Counter[PageCopy] = Counter()
    first_owner: dict[tuple[TierKind, int], tuple[Sequence, int]] = {}
    for seq in cache.sequences.values():
        for group in range(cache.layout.num_groups if seq.away is not None else 0):
            _check_columns(cache, seq, group, owners, users)
            _check_sharing(cache, seq, group, first_owner)
    for parting in cache.paging.partings.leaving():
        for copy, is_used in parting:
            owners[copy] += 1
            users[copy] += is_used
    held: dict[TierKind, set[int]] = defaultdict(set)
    num_held: Counter[TierKind] = Counter()
    for copy in owners:
        if (copy.owners, copy.users) != (owners[copy], users[copy]) or (copy.slot is not None) != (copy.users > 0):
            raise InvariantError(f"a copy has {copy.owners} owners and {copy.users} users, not {owners[copy]}")
        if copy.tier is not None and copy.slot is not None:
            held[copy.tier.kind].add(copy.slot.index)
            num_held[copy.tier.kind] += 1
    copies = cache.paging.copies
    if copies is not None and +copies.num_held != num_held:
        raise InvariantError(f"tiers hold {dict(copies.num_held)} pages for sequences, which use {dict(num_held)}")
    for tier in () if cache.lower is None else cache.lower.migration.tiers:
        usage, wanted = tier.usage(), len(held[tier.kind])  # what is also being read counts as moving
        if not wanted - usage.moving <= usage.used <= wanted:
            raise InvariantError(f"{tier.name} counts {usage.used} pages in use, not {wanted}")


def _check_sharing(
    cache: "PagedCache", seq: "Sequence", group: int, first_owner: "dict[tuple[TierKind, int], tuple[Sequence, int]]"
) -> None:
    """I9, below the device: two sequences use a slot only with equal scope and equal tokens up to the end of it."""
    assert seq.away is not None
    assert seq.tokens is not None
    for page, copy in seq.away[group].copies.items():
        if copy.tier is None or copy.slot is None or not seq.away[group].lies_below(page):
            continue
        other, at = first_owner.setdefault((copy.tier.kind, copy.slot.index), (seq, page))
        end = min((page + 1) * cache.layout.page_size, seq.length, other.length)
        assert other.tokens is not None
        is_alike = seq.scope.up_to(end) == other.scope.up_to(end) and seq.tokens[:end] == other.tokens[:end]
        if at != page or not is_alike:
            raise InvariantError(f"I9: slot {copy.slot.index} is used by sequences of different content")


def _check_columns(
    cache: "PagedCache", seq: "Sequence", group: int, owners: Counter[PageCopy], users: Counter[PageCopy]
) -> None:
    assert seq.away is not None
    away, table, first = seq.away[group], seq.tables[group], int(cache.rows.first_page[group, seq.row])
    away.reach(len(table))
    tiers, entries = away.rest.tier[: len(table)], table.snapshot()[: len(table)]
    below = entries < UNMAPPED
    if not np.array_equal(np.where(below, table.tiers(), 0), tiers) or away.rest.tier[len(table) :].any():
        raise InvariantError(f"sequence {seq.row}: its table and its columns differ on what lies below the device")
    if not np.array_equal(entries[below], entry_of_slot(away.rest.slot[: len(table)][below])):
        raise InvariantError(f"sequence {seq.row}: a page lies in another slot than its table says")
    gone = np.flatnonzero(away.gone)
    if len(gone) and (gone[0] < first or gone[-1] >= len(table) or (entries[gone] != UNMAPPED).any()):
        raise InvariantError(f"sequence {seq.row}: a page that was given back is there")
    if (int(below.sum()), len(gone)) != (away.num_out, away.num_gone):
        raise InvariantError(f"sequence {seq.row}: the pages away from the device are counted wrong")
    if not set(np.flatnonzero(below).tolist()) <= set(away.copies):
        raise InvariantError(f"sequence {seq.row}: a page lies below the device, and no tier is known to hold it")
    if (away.rest.address[: len(table)][~below] != 0).any():
        raise InvariantError(f"sequence {seq.row}: a page that is not below the device has an address there")
    full = int(cache.rows.reserved[seq.row]) // cache.layout.page_size
    for page, copy in away.copies.items():
        is_used = bool(below[page])
        if not is_used and (page >= full or not copy.is_private):
            raise InvariantError(f"sequence {seq.row}: a copy of page {page} is known that is none")
        if is_used and (copy.slot is None or copy.slot.index != away.rest.slot[page]):
            raise InvariantError(f"sequence {seq.row}: page {page} lies in a slot that nobody holds")
        owners[copy] += 1
        users[copy] += is_used
