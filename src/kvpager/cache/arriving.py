"""Pages that arrive on the device without having been computed there: from a lower tier, or from a file.

    resident_blocks    the device's own pages of the prefix, which have to stay while others come
    take_held          fresh blocks that nobody maps, for the bytes
    attach             what came becomes findable under the root of its scope, as if it had been computed
    let_go             all of them are cached pages like others from now on

Moves no bytes and waits for nothing.
"""

from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.taking import take
from kvpager.eviction.policy import History
from kvpager.types import ContentKey, PageReason

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache

PageOfGroup = tuple[int, int]  # page of the prefix, layer group
_NO_HISTORIES: Mapping[int, History] = MappingProxyType({})


def resident_blocks(
    cache: "PagedCache", root_key: ContentKey, labels: Sequence[bytes], missing: Container[PageOfGroup]
) -> np.ndarray:
    """The device's blocks of the prefix ``labels``, but for those ``missing``."""
    index = cache.index
    root = index.find_root(root_key)
    chain = [] if root is None else index.match(root, list(labels))
    blocks = [
        block
        for group in range(cache.layout.num_groups)
        for page, block in enumerate(index.blocks_in_group(chain, group))
        if block is not None and (page, group) not in missing
    ]
    return np.array(blocks, np.int32)


def hold(cache: "PagedCache", blocks: np.ndarray) -> None:
    """Published blocks that must not go. Pair with ``let_go``."""
    cache.evictable.held(cache.pool.pin(blocks))


def take_held(cache: "PagedCache", count: int) -> np.ndarray:
    """Fresh blocks that nobody maps and this transfer holds. Raises OutOfBlocks. Pair with ``let_go``."""
    blocks = take(cache, count)
    cache.pool.pin(blocks)
    cache.pool.release(blocks)
    return blocks


def let_go(cache: "PagedCache", blocks: np.ndarray) -> None:
    """One hold less for each block; published ones are cached then, others free."""
    cache.evictable.settled(cache.pool.unpin(blocks).cached)


def let_arrive(cache: "PagedCache", blocks: np.ndarray, histories: Mapping[int, History] = _NO_HISTORIES) -> None:
    """``let_go`` of blocks that were attached meanwhile, the last page first. ``histories``: of those that have one."""
    cache.evictable.arrived(cache.pool.unpin(blocks).cached, histories)


def attach(
    cache: "PagedCache", root_key: ContentKey, labels: Sequence[bytes], came: Mapping[PageOfGroup, int]
) -> dict[PageOfGroup, int]:
    """Hangs the blocks that ``came`` under the root of their scope, as far as they reach from the start without a gap,
    and publishes them. Returns those that the index has taken; the others were there already, or can't be reached.
    """
    index, taken = cache.index, dict[PageOfGroup, int]()
    root = node = index.enter_root(root_key)
    full = [g for g, group in enumerate(cache.layout.groups) if group.window is None]
    for page, label in enumerate(labels):
        child = index.open_child(node, label)
        if any(index.block(child, group) is None and (page, group) not in came for group in full):
            index.prune(child)
            break
        cache.evictable.got_child(node)
        node = child
        for group in range(cache.layout.num_groups):
            block = came.get((page, group))
            if block is not None and index.block(node, group) is None:
                index.attach(node, group, block, PageReason.ARRIVED)
                taken[page, group] = block
    if node != root:
        index.prune(node)
    index.leave_root(root)
    blocks = np.array(list(taken.values()), np.int32)
    cache.pool.publish(blocks)
    cache.evictable.entered(blocks)
    return taken
