"""The pool: which blocks are free, used, cached or moving, and who counts on them. Decides nothing, evicts nothing.

Two counts per block, both exact:

    refcount  page-table entries that name the block
    pins      holds by open steps and transfers, which forbid giving the block out again

and two bits. ``indexed``: the prefix index can find its content. ``kept``: a retention pins its content, so reclaim
looks elsewhere; that changes no state. State follows from the others (memory/block.py):
refcount > 0 is USED; otherwise pins > 0 is MOVING; otherwise indexed is CACHED; otherwise FREE.

Every call takes a batch and costs O(blocks in the batch), and either does all of it or raises and changes nothing.
Batches must name distinct blocks; one that names a block twice is refused, since that is how double frees look.
"""

from array import array
from dataclasses import dataclass

import numpy as np

from kvpager import native
from kvpager.errors import ConfigError, InvariantError, OutOfBlocks
from kvpager.memory.arena import Arena
from kvpager.memory.block import BlockEvent, BlockState, advance, following
from kvpager.memory.layout import KVLayout

_NO_BLOCKS = np.empty(0, np.int32)
# Plain: an enum's member is looked up anew with every use, and numpy compares with numbers several times faster.
_FREE, _USED, _CACHED, _MOVING = (
    int(state) for state in (BlockState.FREE, BlockState.USED, BlockState.CACHED, BlockState.MOVING)
)
_AFTER_ALLOCATE = following(BlockEvent.ALLOCATE)
_AFTER_RELEASE = following(BlockEvent.DROP), following(BlockEvent.KEEP)
_CAN_BE_PUBLISHED = np.isin(np.arange(len(BlockState)), [BlockState.USED, BlockState.MOVING])
_STALE = -1  # free blocks of columns that were laid out anew: so native kernels see that they hold the old ones
_POISON = 0xFF  # NaN in every float dtype: a read of freed memory shows


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Blocks by state; they add up to ``total`` at every reading. ``pinned``: held by open steps and transfers."""

    total: int
    free: int
    used: int
    cached: int
    moving: int
    pinned: int

    @property
    def utilisation(self) -> float:
        """Share of the pool that holds live or findable content, 0 to 1."""
        return 1.0 - self.free / self.total


@dataclass(frozen=True, slots=True)
class Released:
    """What a release did: blocks that became ``freed``, and blocks that became ``cached``, in the order given.

    ``unmapped``: findable ones that nobody maps any more, cached or held.
    """

    freed: np.ndarray
    cached: np.ndarray
    unmapped: np.ndarray


class BlockPool:
    """Blocks 0 .. num_blocks-1 of one arena. One thread owns it."""

    def __init__(self, layout: KVLayout, arena: Arena, *, poison: bool = False) -> None:
        if arena.num_blocks < 1:
            raise ConfigError("a pool needs at least one block")
        self.layout = layout
        self.arena = arena
        self.num_blocks = arena.num_blocks
        self._poison = poison  # freed blocks are overwritten, and looked at when they are given out again
        self._poisoned = np.zeros(self.num_blocks, np.bool_)
        self.refcount = np.zeros(self.num_blocks, np.int32)
        self.pins = np.zeros(self.num_blocks, np.int32)
        self.indexed = np.zeros(self.num_blocks, np.bool_)
        self.kept = np.zeros(self.num_blocks, np.bool_)
        self._states = np.full(self.num_blocks, BlockState.FREE, np.uint8)
        self._counts = array("q", [0] * len(BlockState))  # as many are free as lie on the stack
        self._counts[_FREE] = self.num_blocks
        self._marks = np.zeros(self.num_blocks, np.int64)  # scratch: finds a block named twice in a batch
        self._order = np.arange(self.num_blocks)
        # A stack of free ids. High ids lie at the bottom: neighbours are given out together.
        self._free = np.arange(self.num_blocks - 1, -1, -1, dtype=np.int32)

    # -- questions ----------------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return self._counts[_FREE]

    def counts(self) -> PoolCounts:
        free, used, cached, moving = map(int, self._counts)
        return PoolCounts(
            total=self.num_blocks,
            free=free,
            used=used,
            cached=cached,
            moving=moving,
            pinned=int(np.count_nonzero(self.pins)),
        )

    def state(self, block: int) -> BlockState:
        return BlockState(int(self._states[block]))

    def states(self) -> np.ndarray:
        """uint8 [blocks]: the state of every block now (a copy)."""
        return self._states.copy()

    def is_cached(self, ids: np.ndarray) -> np.ndarray:
        """Bool per block: unmapped, unheld and findable."""
        return self._states[ids] == _CACHED

    @property
    def num_kept(self) -> int:
        """Cached blocks that a retention pins. O(blocks)."""
        return int(np.count_nonzero(self.kept & (self._states == BlockState.CACHED)))

    def is_write_protected(self, ids: np.ndarray) -> np.ndarray:
        """Bool per block: mapped more than once, findable, or held by a step or transfer that may still read it.

        Whoever writes it needs a copy of its own (I5, I8).
        """
        return (self.refcount[ids] > 1) | self.indexed[ids] | (self.pins[ids] > 0)

    def address(self, block: int) -> int:
        """Byte address of a block on its device. Raises ConfigError for a block that the pool does not have."""
        if not 0 <= block < self.num_blocks:
            raise ConfigError(f"block {block} is not in the pool (0 to {self.num_blocks - 1})")
        return self.arena.address + block * self.arena.block_stride

    def slot_address(self, block: int, layer: int, head: int, half: int, slot: int) -> int:
        """Byte address of one token's K (``half`` 0) or V (1) row in a block, for model layer ``layer``."""
        place = self.layout.places[layer]
        return self.address(block) + self.layout.slot_offset(place.group, place.index, head, half, slot)

    def columns(self) -> tuple[np.ndarray, ...]:
        """What the native kernels work on, in their order."""
        return (
            self.refcount,
            self.pins,
            self.indexed,
            self._states,
            self._marks,
            self._free,
            np.frombuffer(self._counts, np.int64),
            _AFTER_ALLOCATE,
            *_AFTER_RELEASE,
        )

    @property
    def has_poison(self) -> bool:
        """Whether freed blocks are overwritten."""
        return self._poison

    # -- changes ------------------------------------------------------------------------------------------------

    def allocate(self, count: int) -> np.ndarray:
        """``count`` free blocks, each mapped once. Raises OutOfBlocks (``reclaimable`` = cached blocks)."""
        top = self._counts[_FREE]
        if count > top:
            counts = self.counts()
            raise OutOfBlocks(count, counts.free, counts.pinned, counts.cached, counts.total)
        if count == 0:
            return _NO_BLOCKS
        ids = self._free[top - count : top][::-1].copy()
        if self._poison:
            self._check_poison(ids)
        at = ids.astype(np.int64)
        advance(self._states, at, BlockEvent.ALLOCATE)
        self.refcount[at] = 1
        self._move(count, BlockState.FREE, BlockState.USED)
        return ids

    def allocate_these(self, ids: np.ndarray) -> None:
        """Maps these free blocks once each, for whoever chooses blocks by their place. O(free blocks)."""
        chosen = np.zeros(self.num_blocks, np.bool_)
        chosen[self._distinct(ids)] = True
        if self._poison:
            self._check_poison(ids)
        advance(self._states, ids, BlockEvent.ALLOCATE)
        free = self._free[: self.num_free]
        left = free[~chosen[free]]
        self._free[: len(left)] = left
        self.refcount[ids] = 1
        self._move(len(ids), BlockState.FREE, BlockState.USED)

    def retain(self, ids: np.ndarray) -> np.ndarray:
        """One more mapping for each block; they must hold content (not be free). Returns those that were cached."""
        ids = self._distinct(ids)
        before = self._states[ids]
        advance(self._states, ids, BlockEvent.MAP)
        self.refcount[ids] += 1
        was_cached = ids[before == BlockState.CACHED]
        self._move(len(was_cached), BlockState.CACHED, BlockState.USED)
        self._move(int((before == BlockState.MOVING).sum()), BlockState.MOVING, BlockState.USED)
        return was_cached

    def release(self, ids: np.ndarray) -> Released:
        """One mapping less for each block. The order given is the order in which cached ones may be evicted."""
        counts = self._release_run(ids)
        if counts is not None:
            return self._released_run(ids, *counts)
        ids = self._distinct(ids)
        counts = self.refcount[ids]
        if (counts < 1).any():
            bad = int(ids[int(np.argmax(counts < 1))])
            raise InvariantError(f"block {bad} is {self.state(bad).name} and was released: freed twice?")
        self.refcount[ids] = counts - 1
        last = ids[counts == 1]
        if len(last) == 0:
            return Released(_NO_BLOCKS, _NO_BLOCKS, _NO_BLOCKS)
        held, indexed = self.pins[last] > 0, self.indexed[last]
        if not held.any() and indexed.all():  # the common case: a finished sequence of published pages
            moving, cached, freed, unmapped = _NO_BLOCKS, last, _NO_BLOCKS, last
        else:
            moving, cached, freed = last[held], last[~held & indexed], last[~held & ~indexed]
            unmapped = last[indexed]
        self._apply(moving, BlockEvent.HOLD, BlockState.USED, BlockState.MOVING)
        self._apply(cached, BlockEvent.KEEP, BlockState.USED, BlockState.CACHED)
        self._give_back(freed, BlockEvent.DROP, BlockState.USED)
        return Released(freed, cached, unmapped)

    def pin(self, ids: np.ndarray) -> np.ndarray:
        """One more hold by a step or transfer. Returns the blocks that were cached."""
        ids = self._distinct(ids)
        states = self._states[ids]
        if (states == BlockState.FREE).any():
            raise InvariantError(f"block {int(ids[int(np.argmax(states == BlockState.FREE))])} is free and was pinned")
        was_cached = ids[states == BlockState.CACHED]
        self._apply(was_cached, BlockEvent.PIN, BlockState.CACHED, BlockState.MOVING)
        self.pins[ids] += 1
        return was_cached

    def unpin(self, ids: np.ndarray) -> Released:
        """One hold less for each block."""
        ids = self._distinct(ids)
        pins = self.pins[ids]
        if (pins < 1).any():
            raise InvariantError(f"block {int(ids[int(np.argmax(pins < 1))])} is not pinned and was unpinned")
        self.pins[ids] -= 1
        settled = ids[(pins == 1) & (self.refcount[ids] == 0)]
        indexed = self.indexed[settled]
        cached, freed = settled[indexed], settled[~indexed]
        self._apply(cached, BlockEvent.SETTLE_CACHED, BlockState.MOVING, BlockState.CACHED)
        self._give_back(freed, BlockEvent.SETTLE_FREE, BlockState.MOVING)
        return Released(freed, cached, _NO_BLOCKS)

    def publish(self, ids: np.ndarray) -> None:
        """The prefix index can find these blocks from now on. REQUIRES: mapped, or held by what filled them."""
        ids = self._distinct(ids)
        wrong = ~_CAN_BE_PUBLISHED.take(self._states[ids]) | self.indexed[ids]
        if np.count_nonzero(wrong):
            bad = int(ids[int(np.argmax(wrong))])
            raise InvariantError(f"block {bad} is {self.state(bad).name} and can't be published")
        self.indexed[ids] = True

    def unpublish(self, ids: np.ndarray) -> np.ndarray:
        """The index forgets these blocks. Cached ones become free; returns those."""
        ids = self._distinct(ids)
        if not self.indexed[ids].all():
            raise InvariantError(f"block {int(ids[int(np.argmin(self.indexed[ids]))])} is not published")
        freed = ids[self._states[ids] == BlockState.CACHED]
        self.indexed[ids] = False
        self._give_back(freed, BlockEvent.EVICT, BlockState.CACHED)
        return freed

    def resize(self, num_blocks: int) -> None:
        """Grows or shrinks the pool. REQUIRES when shrinking: blocks ``num_blocks`` and above are free."""
        if num_blocks < 1:
            raise ConfigError(f"a pool needs at least one block, not {num_blocks}")
        if (self._states[num_blocks:] != BlockState.FREE).any():
            raise InvariantError("a block above the new size is not free")
        self.arena.resize(num_blocks)
        old, self.num_blocks = self.num_blocks, num_blocks
        kept = self._free[: self.num_free]
        added = np.arange(num_blocks - 1, old - 1, -1, dtype=np.int32)
        free = np.concatenate([added, kept[kept < num_blocks]])
        self._free = np.concatenate([free, np.zeros(num_blocks - len(free), np.int32)])
        for name in ("refcount", "pins", "indexed", "kept", "_marks", "_poisoned"):
            setattr(self, name, _resized(getattr(self, name), num_blocks, 0))
        self._order = np.arange(num_blocks)
        self._states = _resized(self._states, num_blocks, BlockState.FREE)
        stale, self._counts = self._counts, self._counts[:]
        self._counts[_FREE] = len(free)
        stale[_FREE] = _STALE

    def move(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Gives everything the used or cached blocks ``sources`` are to the free blocks ``targets``, bytes included.

        The caller changes whatever names them. REQUIRES: nothing holds the sources.
        """
        self._distinct(np.concatenate([sources, targets]))
        if (self._states[targets] != BlockState.FREE).any() or (self.pins[sources] > 0).any():
            raise InvariantError("blocks move from unheld to free ones only")
        self.arena.copy(sources, targets)
        for column in (self.refcount, self.indexed, self.kept, self._states):
            column[targets] = column[sources]
            column[sources] = 0
        self._poisoned[targets] = False
        taken = np.isin(self._free[: self.num_free], targets)
        free = np.concatenate([self._free[: self.num_free][~taken], sources.astype(np.int32)])
        self._free[: len(free)] = free

    # -- inside -------------------------------------------------------------------------------------------------

    def _release_run(self, ids: np.ndarray) -> tuple[int, int] | None:
        """The common case natively: a finished sequence's pages, those that are not full, so not findable, first, and
        last those that others map too. How many become free and cached; None, with nothing changed, where the blocks
        are not like that."""
        release = getattr(native.module(), "release_blocks", None)
        if release is None:
            return None
        return release(ids, self.refcount, self.pins, self.indexed, self._states, self._marks, *_AFTER_RELEASE)

    def _released_run(self, ids: np.ndarray, num_freed: int, num_cached: int) -> Released:
        freed, cached = ids[:num_freed], ids[num_freed : num_freed + num_cached]
        self._move(num_cached, _USED, _CACHED)
        if num_freed:
            self._stack(freed)
            self._move(num_freed, _USED, _FREE)
        return Released(freed, cached, cached)

    def _apply(self, ids: np.ndarray, event: BlockEvent, before: BlockState, after: BlockState) -> None:
        if len(ids):
            advance(self._states, ids, event)
            self._move(len(ids), before, after)

    def _give_back(self, ids: np.ndarray, event: BlockEvent, before: BlockState) -> None:
        if len(ids) == 0:
            return
        advance(self._states, ids, event)
        self._stack(ids)
        self._move(len(ids), before, _FREE)

    def _stack(self, ids: np.ndarray) -> None:
        """These are free in a moment, the first of them to be given out first."""
        top = self.num_free
        self._free[top : top + len(ids)] = ids[::-1]
        if self._poison:
            self.arena.fill(ids, _POISON)
            self._poisoned[ids] = True

    def _check_poison(self, ids: np.ndarray) -> None:
        poisoned = ids[self._poisoned[ids]]
        intact = self.arena.is_filled(poisoned, _POISON)
        if not intact.all():
            raise InvariantError(f"block {poisoned[int(np.argmin(intact))]} was written after it had been freed")
        self._poisoned[ids] = False

    def _move(self, count: int, before: int, after: int) -> None:
        self._counts[before] -= count
        self._counts[after] += count

    def _check_range(self, ids: np.ndarray) -> None:
        if len(ids) and int(ids.view(f"u{ids.itemsize}").max()) >= self.num_blocks:  # a negative one is very large
            bad = ids[(ids < 0) | (ids >= self.num_blocks)][0]
            raise InvariantError(f"block {int(bad)} is not in the pool (0 to {self.num_blocks - 1})")

    def _distinct(self, ids: np.ndarray) -> np.ndarray:
        """The ids as int64 (which numpy indexes with much faster), once they are known to be distinct and in range."""
        self._check_range(ids)
        ids = ids.astype(np.int64)
        if len(ids) > 1:
            order = self._order[: len(ids)] if len(ids) <= self.num_blocks else np.arange(len(ids))
            self._marks[ids] = order
            twice = self._marks[ids] != order
            if np.count_nonzero(twice):
                raise InvariantError(f"block {int(ids[int(np.argmax(twice))])} is named twice in one call")
        return ids

    def check(self) -> None:
        """Raises InvariantError unless the counts, the states and the free list agree (I1, I3)."""
        expected = np.where(self.indexed, np.uint8(_CACHED), np.uint8(_FREE))
        expected[self.pins > 0] = _MOVING
        expected[self.refcount > 0] = _USED
        if (self.refcount < 0).any() or (self.pins < 0).any():
            raise InvariantError("a count is negative")
        if (expected != self._states).any():
            bad = int(np.argmax(expected != self._states))
            raise InvariantError(
                f"block {bad} is {self.state(bad).name}, but refcount {self.refcount[bad]}, pins {self.pins[bad]}, "
                f"indexed {self.indexed[bad]} say {BlockState(int(expected[bad])).name}"
            )
        if not np.array_equal(np.bincount(self._states, minlength=len(self._counts)), self._counts):
            raise InvariantError("the counts per state are wrong")
        free = np.sort(self._free[: self.num_free])
        if not np.array_equal(free, np.flatnonzero(self._states == _FREE)):
            raise InvariantError("the free list is not the set of free blocks")


def _resized(column: np.ndarray, length: int, fill: int) -> np.ndarray:
    kept = column[:length]
    return np.concatenate([kept, np.full(length - len(kept), fill, column.dtype)])
