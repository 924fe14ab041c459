"""What native calls do to the books of a cache is what Python does: the same random life with and without them."""

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kvpager import native
from kvpager.assemble import open_cache
from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.sequence import Sequence
from kvpager.errors import ConfigError, OutOfBlocks
from kvpager.eviction.fifo import FIFO
from kvpager.eviction.lru import LRU
from kvpager.memory.layout import KVLayout, LayerSpec
from kvpager.memory.page_table import UNMAPPED, PageTable
from kvpager.prefix.hashing import Media, Scope

LAYOUT = KVLayout(layers=2, kv_heads=1, head_dim=8, dtype="bfloat16", page_size=4)
TWO_GROUPS = KVLayout.mixed([LayerSpec(1, 8), LayerSpec(2, 8)], dtype="bfloat16", page_size=4)
WINDOWED = KVLayout.mixed([LayerSpec(1, 8), LayerSpec(1, 8, window=8)], dtype="bfloat16", page_size=4)
BLOCKS = 40
PLAIN = Scope()
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
        assert end(cache, twin)
        assert end(cache, seq)
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
            assert not end(cache, seq)
            assert np.array_equal(cache.pool.refcount, before)
        entries[:8] = right[:8]
        assert end(cache, seq)
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


# -- the end of a sequence ------------------------------------------------------------------------------------------


def computed(cache: PagedCache, tokens: list[int], scope: Scope = PLAIN) -> Sequence:
    seq = cache.sequence(tokens, scope=scope)
    with cache.step({seq: seq.num_tokens - seq.length}):
        pass
    return seq


def end(cache: PagedCache, seq: Sequence) -> bool:
    """What the native kernels say, with nothing bound anew before."""
    return cache.books.end(seq, cache.evictable, cache.sequences)


def test_a_row_keeps_the_table_of_its_sequence_for_the_next_one() -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS) as cache:
        first = computed(cache, [1] * 9)
        tables, row = first.tables, first.row
        kept = id(tables[0])
        del tables
        first.free()
        assert (first.row, first.is_freed, first.tables) == (-1, True, ())
        second = cache.sequence([2] * 9)
        assert second.row == row
        assert id(second.tables[0]) == kept
        assert len(second.tables[0]) == 0
        assert (second.tables[0].entries == UNMAPPED).all()
        with cache.step({second: 9}):
            cache.check()


@pytest.mark.parametrize(
    "hold", [lambda seq: seq.tables, lambda seq: seq.tables[0], lambda seq: seq.tables[0].entries[1:2]]
)
def test_a_table_that_somebody_has_is_not_given_to_another_sequence(hold: Callable[[Sequence], object]) -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS) as cache:
        seq = computed(cache, [1] * 9)
        entries, held = seq.tables[0].entries.tobytes(), hold(seq)
        table = id(seq.tables[0])
        assert end(cache, seq)
        other = computed(cache, [2] * 9)
        assert id(other.tables[0]) != table
        if isinstance(held, PageTable):
            assert held.entries.tobytes() == entries
        cache.check()


def test_a_snapshot_of_a_step_outlives_the_sequence() -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS) as cache:
        seq = cache.sequence([1] * 9)
        with cache.step({seq: 9}) as step:
            before = step.batch.tables[0][0].copy()
        assert end(cache, seq)
        computed(cache, [2] * 9)
        assert np.array_equal(step.batch.tables[0][0], before)


def test_a_table_that_is_too_short_or_very_long_is_not_taken_over() -> None:
    with open_cache(LAYOUT, num_blocks=4 * BLOCKS) as cache:
        seq = computed(cache, [1] * 9)
        short = id(seq.tables[0])
        seq.free()
        longer = computed(cache, [2] * (4 * 3 * BLOCKS))
        assert id(longer.tables[0]) != short
        longer.free()
        cache.check()
    with open_cache(LAYOUT, num_blocks=1040) as cache:
        seq = computed(cache, [1] * (4 * 1030))
        seq.free()
        assert set(cache.rows.kept_tables) == {None}


def test_what_is_not_plain_does_not_end_natively_and_ends_all_the_same() -> None:
    class Uses:
        def hit(self, blocks: np.ndarray) -> None: ...

        def released(self, blocks: np.ndarray) -> None: ...

    def listen(cache: PagedCache) -> None:
        cache.evictable.uses = Uses()

    def retain(cache: PagedCache) -> None:
        cache.retention.retain([5] * 8, pin=True)

    def other_order(cache: PagedCache) -> None:
        cache.evictable.policy = FIFO(BLOCKS)

    def order_without_kernels(cache: PagedCache) -> None:
        native.choose("off")
        cache.evictable.policy = LRU(BLOCKS)
        native.choose("auto")

    def nothing(cache: PagedCache) -> None:
        pass

    for prepare, is_plain in ((nothing, True), (listen, False), (retain, False), (other_order, False)):
        check_end(prepare, is_plain)
    check_end(order_without_kernels, False)


def check_end(prepare: Callable[[PagedCache], None], is_plain: bool) -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS, eviction="lru") as cache:
        prepare(cache)
        seq = computed(cache, [1] * 9)
        before = cache.pool.counts()
        assert end(cache, seq) == is_plain, prepare
        if not is_plain:
            assert cache.pool.counts() == before
            assert not seq.is_freed
            seq.free()
        assert (cache.pool.counts().used, cache.pool.counts().cached) == (0, 2)
        cache.check()


def test_poison_and_runs_end_in_python() -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS, eviction="lru", debug=True) as cache:
        seq = computed(cache, [1] * 9)
        assert cache.books.native() is not None
        assert not end(cache, seq)
    with open_cache(LAYOUT, num_blocks=BLOCKS, eviction="lru", contiguous=True, prefix_cache=False) as cache:
        assert cache.runs is not None
        seq = cache.sequence([1] * 9)
        cache.runs.reserve(seq.row, 3)
        with cache.step({seq: 9}):
            pass
        assert cache.books.native() is not None
        assert not end(cache, seq)
        seq.free()
        assert cache.pool.counts().used == 0


def test_an_end_over_columns_that_were_laid_out_anew_is_left_until_they_are_bound() -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS, eviction="lru", max_capacity=2 * BLOCKS * LAYOUT.block_stride) as cache:
        seq, other, third = (computed(cache, [token] * 9) for token in (1, 2, 3))
        stale = cache.books.end
        assert stale(third, cache.evictable, cache.sequences)
        cache.resize(BLOCKS + 8)
        assert not stale(seq, cache.evictable, cache.sequences)
        seq.free()
        assert seq.is_freed
        stale = cache.books.end
        many = [cache.sequence([7]) for _ in range(70)]  # there are 64 rows at first
        assert not stale(other, cache.evictable, cache.sequences)
        other.free()
        cache.free(many)
        cache.check()


def test_the_kernels_end_nothing_once_they_are_off() -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS, eviction="lru") as cache:
        seq, other = computed(cache, [1] * 9), computed(cache, [2] * 9)
        ended: list[Sequence] = []
        there = cache.books.end
        cache.books.end = lambda seq, evictable, sequences: ended.append(seq) or there(seq, evictable, sequences)  # type: ignore[func-returns-value]
        other.free()
        native.choose("off")
        seq.free()
        assert ended == [other]
        assert seq.is_freed
        cache.check()


def test_a_root_goes_with_its_last_sequence_unless_pages_hang_under_it() -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS, eviction="lru") as cache:
        twins = [computed(cache, [1] * 3, Scope("a")) for _ in range(2)]
        full = computed(cache, [1] * 4, Scope("b"))
        assert end(cache, twins[0])
        assert cache.index.num_scopes == 2
        assert end(cache, twins[1])
        assert end(cache, full)
        assert cache.index.num_scopes == 1
        cache.check()


def test_a_table_of_another_kind_is_refused_before_anything_changes() -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS, eviction="lru") as cache:
        seq = computed(cache, [1] * 9)
        right, before = seq.tables[0].entries, cache.pool.counts()
        for wrong in (right.astype(np.int64), np.repeat(right, 2)[::2], right[:2]):
            seq.tables[0].entries = wrong
            with pytest.raises(ValueError, match=r"another size|too few|not C-contiguous"):
                end(cache, seq)
            assert cache.pool.counts() == before
        seq.tables[0].entries = right
        assert end(cache, seq)
        cache.check()


def test_a_second_end_is_an_error() -> None:
    with open_cache(LAYOUT, num_blocks=BLOCKS, eviction="lru") as cache:
        seq = computed(cache, [1] * 9)
        seq.free()
        assert not end(cache, seq)
        with pytest.raises(ConfigError, match="freed"):
            seq.free()
