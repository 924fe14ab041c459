"""The page tables of the running branches as rows: where each page lies, who shares it, how full it is.

Read in two parts: arrays are copied on the engine's thread, rows are made of them elsewhere. Never shows what a page
holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvpager.memory.page_table import UNMAPPED
from kvpager.types import TierKind

if TYPE_CHECKING:
    from kvpager.engine.engine import Engine
    from kvpager.engine.request import Branch
    from kvpager.metrics.frame_taker import Named


@dataclass(frozen=True, slots=True, eq=False)
class TableCopy:
    """One layer group of one branch. ``entries``, ``tiers``, ``is_shared`` [pages] begin at page ``first_page``;
    ``num_pages``: of the whole table. ``parent``: the branch that this one was forked from, while that runs."""

    owner: int
    request: str
    choice: int
    group: int
    parent: int | None
    tokens: int
    num_pages: int
    first_page: int
    entries: np.ndarray
    tiers: np.ndarray
    is_shared: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class TablesCopy:
    """``left_out``: pages that there was no room for."""

    tables: tuple[TableCopy, ...]
    page_size: int
    left_out: int


def copy_tables(engine: "Engine", branches: "Sequence[Named]", limit: int, only: int | None) -> TablesCopy:
    """At most ``limit`` pages, shared out evenly; ``only``: of that owner. REQUIRES: the engine's thread."""
    chosen = [each for each in branches if each.branch.sequence is not None and only in (None, each.owner)]
    number_of_branch = {id(each.branch): each.owner for each in branches}
    num_tables = len(chosen) * engine.layout.num_groups
    copies = []
    left = limit
    left_out = 0
    for each in chosen:
        for group in range(engine.layout.num_groups):
            room = left // num_tables
            copy = _copy(engine, each, group, _parent(each.branch, number_of_branch), room)
            copies.append(copy)
            left_out += copy.num_pages - copy.first_page - len(copy.entries)
            left, num_tables = left - len(copy.entries), num_tables - 1
    return TablesCopy(tuple(copies), engine.layout.page_size, left_out)


def _parent(branch: "Branch", number_of_branch: dict[int, int]) -> int | None:
    return number_of_branch.get(id(branch.request.branches[0])) if branch.choice else None


def _copy(engine: "Engine", named: "Named", group: int, parent: int | None, room: int) -> TableCopy:
    seq = named.branch.running_sequence
    table, refcount = seq.tables[group], engine.cache.pool.refcount
    first = int(engine.cache.rows.first_page[group, seq.row])
    entries = table.snapshot()[first : min(len(table), first + room)].copy()
    return TableCopy(
        owner=named.owner,
        request=named.request,
        choice=named.branch.choice,
        group=group,
        parent=parent,
        tokens=seq.length,
        num_pages=len(table),
        first_page=first,
        entries=entries,
        tiers=table.tiers()[first : first + len(entries)].copy(),
        is_shared=(refcount[np.maximum(entries, 0)] > 1) & (entries >= 0),
    )


def rows_of(copied: TablesCopy) -> list[dict[str, Any]]:
    """Ready for JSON. A page without a block has ``block`` null, and ``tier`` "none" if it is gone for good."""
    return [_row(table, copied.page_size) for table in copied.tables]


def _row(table: TableCopy, page_size: int) -> dict[str, Any]:
    numbers = range(table.first_page, table.first_page + len(table.entries))
    filled = np.clip(table.tokens - np.array(numbers, np.int64) * page_size, 0, page_size)
    filled[table.entries == UNMAPPED] = 0
    names = [kind.name.lower() for kind in TierKind]
    columns = zip(
        numbers,
        table.entries.tolist(),
        table.tiers.tolist(),
        table.is_shared.tolist(),
        filled.tolist(),
        strict=True,
    )
    return {
        "owner": table.owner,
        "request": table.request,
        "choice": table.choice,
        "group": table.group,
        "parent": table.parent,
        "num_pages": table.num_pages,
        "first_page": table.first_page,
        "pages": [
            {
                "page": page,
                "block": entry if entry >= 0 else None,
                "tier": names[tier],
                "shared": shared,
                "filled": fill,
            }
            for page, entry, tier, shared, fill in columns
        ],
    }
