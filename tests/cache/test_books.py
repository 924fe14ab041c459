"""What native calls do to the books of a cache is what Python does: the same random life with and without them."""

import random
from collections.abc import Iterator

import numpy as np
import pytest

from kvpager import native
from kvpager.assemble import open_cache
from kvpager.cache.ending import end_natively
from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.sequence import Sequence
from kvpager.errors import ConfigError, OutOfBlocks
from kvpager.memory.layout import KVLayout, LayerSpec
from kvpager.prefix.hashing import Media, Scope

LAYOUT = KVLayout(layers=2, kv_heads=1, head_dim=8, dtype="bfloat16", page_size=4)
TWO_GROUPS = KVLayout.mixed([LayerSpec(1, 8), LayerSpec(2, 8)], dtype="bfloat16", page_size=4)
WINDOWED = KVLayout.mixed([LayerSpec(1, 8), LayerSpec(1, 8, window=8)], dtype="bfloat16", page_size=4)
BLOCKS = 40
WITH_PICTURE = Scope(media=(Media(1, bytes(32)),))


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    if not hasattr(native.module(), "Books"):
        pytest.skip(f"no native books: {native.why_not() or 'the kernels are built from older sources'}")
    yield
    native.choose("auto")


def books_of(cache: PagedCache) -> list[object]:
    """Everything that one life could do otherwise than another."""
    pool, rows = cache.pool, cache.rows
    live = sorted(cache.sequences)
    index, published = cache.index, cache.index.all_blocks().tolist()
    leaves = getattr(cache.evictable.policy, "_leaves", None)
    return [
        [each.tobytes() for each in (pool.refcount, pool.pins, pool.indexed, pool.states())],
        pool._free[: pool.num_free].tolist(),
        rows.numbers[:, live].tolist(),
        rows.tail[:, live].tolist(),
        [[table.entries[: len(table)].tobytes() for table in cache.sequences[row].tables] for row in live],
        [[table.tiers().tobytes() for table in cache.sequences[row].tables] for row in live],
        None if leaves is None else leaves.ordered(),
        published,
        [(node := index.node_of_block(block), index.parent(node), index.label(node)) for block in published],
        (
            index.num_nodes,
            index.num_entries,
            {node: index._tree.num_users[node] for node in index._root_by_key.values()},
        ),
        cache.statistics().prefix,
        cache.pool.counts(),
    ]


def life(seed: int, layout: KVLayout, eviction: str, steps: int = 120) -> Iterator[list[object]]:
    """Sequences that begin alike are made, computed, forked, cut and freed in a pool too small for all of them."""
    draw = random.Random(seed)
    with open_cache(layout, num_blocks=BLOCKS, eviction=eviction, clock=lambda: 0.0) as cache:
        live: list[Sequence] = []

        def make() -> None:
            scope = draw.choice([Scope(), Scope(), Scope("a"), WITH_PICTURE])
            live.append(cache.sequence([draw.randrange(2) for _ in range(draw.choice([3, 8, 17, 30]))], scope=scope))

        def compute() -> None:
            chosen = [seq for seq in live if draw.random() < 0.7]
            counts = [min(draw.choice([1, 1, 6, 40]), seq.num_tokens - seq.length) for seq in chosen]
            for seq, count in zip(chosen, counts, strict=True):
                if count == 0:
                    seq.append(draw.randrange(2))
            todo = [max(1, count) for count in counts]
            with cache.step_over(chosen, np.array(todo, np.int64)):
                if draw.random() < 0.2:
                    live.remove(chosen[0])
                    chosen[0].free()
                if draw.random() < 0.1:
                    raise InterruptedError

        def fork() -> None:
            live.append(draw.choice(live).fork())

        def cut() -> None:
            seq = draw.choice(live)
            seq.truncate(draw.randrange(seq.length + 1))
            seq.append(draw.randrange(2))

        def free() -> None:
            live.pop(draw.randrange(len(live) or 1)).free()

        def free_some() -> None:
            cache.free([live.pop() for _ in range(min(3, len(live)))])

        for _ in range(steps):
            try:
                draw.choice([make, make, compute, compute, compute, compute, fork, cut, free, free_some])()
                told = ""
            except (ConfigError, OutOfBlocks, IndexError, InterruptedError) as error:
                told = f"{type(error).__name__}: {error}"
            cache.check()
            yield [told, *books_of(cache)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("layout", "eviction"), [(LAYOUT, "lru"), (TWO_GROUPS, "lru"), (WINDOWED, "lru"), (LAYOUT, "s3fifo")]
)
def test_the_books_of_a_life_are_the_same(seed: int, layout: KVLayout, eviction: str) -> None:
    lives = []
    for kernels in ("auto", "off"):
        native.choose(kernels)
        lives.append(list(life(seed, layout, eviction)))
    for number, (with_kernels, without) in enumerate(zip(*lives, strict=True)):
        assert with_kernels == without, f"after operation {number}"


def test_the_kernels_take_plain_steps_and_ends() -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS) as cache:
        seq = cache.sequence([1] * 9)
        books = cache.books.native()
        one = np.ones(1, np.int64)
        starts, pages, tails = np.empty(1, np.int64), np.empty(1, np.int64), np.empty((1, 1), np.int32)
        rows = np.array([seq.row])
        assert books.open(rows, 9 * one, (seq,), starts, tails, pages) == 3  # and nothing has changed
        assert books.open(rows, 10 * one, (seq,), starts, tails, pages) == -1  # there are nine ids
        assert books.open(rows, 0 * one, (seq,), starts, tails, pages) == -1
        lru = cache.evictable.lru
        assert lru is not None
        with cache.step({seq: 9}):
            assert not books.end(seq, cache.evictable, cache.sequences)
        twin = seq.fork()
        assert books.open(rows, one, (seq,), starts, tails, pages) == -1  # the begun page is shared
        assert end_natively(cache, twin)
        assert end_natively(cache, seq)
        cache.check()


def test_the_kernels_publish_and_find_what_is_plain() -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS) as cache:
        books, page = cache.books.native(), LAYOUT.page_size
        plain, pictured = cache.sequence([1] * 9), cache.sequence([2] * 9, scope=WITH_PICTURE)
        rows, growing = np.array([plain.row, pictured.row]), np.arange(2)
        with cache.step({plain: 9, pictured: 9}):
            cache.rows.committed[rows] = 9  # as if it had ended
            assert books.publish(rows, (plain, pictured), growing, 0, 2) == (1, 2)  # and stopped before the second
            cache.index.hung(2)
            assert books.publish(rows, (plain, pictured), growing, 1, 2) == (1, 0)
            cache.rows.committed[rows] = 0
        found, depth = books.find(plain._root, plain.tokens, 9 // page)
        assert (found, depth) == (cache.index.match_pages(plain._root, plain.tokens[:8].tobytes()), 2)
        cache.check()


def test_a_table_that_names_a_block_twice_is_left_to_be_refused() -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS) as cache:
        seq = cache.sequence([1] * 30)
        with cache.step({seq: 30}):
            pass
        entries, right = seq.tables[0].entries, seq.tables[0].entries.copy()
        for wrong in ([0, 1, 2, 3, 4, 5, 6, 6], [3, 0, 1, 2, 3, 4, 5, 7]):
            entries[:8] = right[wrong]
            before = cache.pool.refcount.copy()
            assert not end_natively(cache, seq)
            assert np.array_equal(cache.pool.refcount, before)
        entries[:8] = right[:8]
        assert end_natively(cache, seq)
        cache.check()


def test_columns_that_are_laid_out_anew_are_bound_anew() -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS, max_capacity=2 * BLOCKS * LAYOUT.block_stride) as cache:
        before = cache.books.native()
        assert cache.books.native() is before
        cache.resize(BLOCKS + 8)
        assert cache.books.native() is not before


@pytest.mark.parametrize(
    ("name", "changed"),
    [("rows", np.zeros(1, np.int32)), ("starts", np.zeros(0, np.int64)), ("tails", np.zeros((1, 0), np.int32))],
)
def test_arrays_of_other_sizes_are_refused(name: str, changed: np.ndarray) -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS) as cache:
        seq = cache.sequence([1] * 9)
        given = {
            "rows": np.array([seq.row]),
            "counts": np.ones(1, np.int64),
            "sequences": (seq,),
            "starts": np.zeros(1, np.int64),
            "tails": np.zeros((1, 1), np.int32),
            "new_pages": np.zeros(1, np.int64),
        }
        assert cache.books.native().open(**given) == 1
        with pytest.raises(ValueError, match="another size, or too few"):
            cache.books.native().open(**{**given, name: changed})
