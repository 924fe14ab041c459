"""open_cache: sizes in, a cache or a clear error out."""

import pytest

from kvpager import ConfigError, KVLayout, open_cache
from kvpager.memory.arena import HostArena
from tests.cache.caches import LAYOUT, opened
from tests.stamp import T, prefill


@pytest.mark.parametrize(("capacity", "blocks"), [("64 KiB", 512), (128 * 10, 10), (128 * 10 + 127, 10), ("128 B", 1)])
def test_capacity_is_rounded_down_to_whole_blocks(capacity: int | str, blocks: int) -> None:
    layout = KVLayout(1, 1, 4, dtype="float32", page_size=4)
    assert layout.block_stride == 128
    with open_cache(layout, capacity) as cache:
        assert cache.statistics().blocks.total == blocks


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "either capacity"),
        ({"capacity": "1 MiB", "num_blocks": 4}, "either capacity"),
        ({"capacity": "1 B"}, "holds no block of"),
        ({"capacity": "lots"}, "size"),
        ({"num_blocks": 0}, "between 1 and"),
        ({"num_blocks": -4}, "between 1 and"),
        ({"num_blocks": 2**31}, "choose larger pages"),
        ({"num_blocks": 4, "rewind": -1}, "rewind"),
        ({"num_blocks": 4, "eviction": "best"}, "unknown eviction policy"),
    ],
)
def test_wrong_sizes_and_names_are_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_cache(LAYOUT, **options)


def test_an_arena_of_another_size_is_refused() -> None:
    arena = HostArena(8, LAYOUT.block_stride)
    for wrong in (7, 9):
        with pytest.raises(ConfigError, match="arena"):
            open_cache(LAYOUT, num_blocks=wrong, arena=arena)
    with pytest.raises(ConfigError, match="arena"):
        open_cache(LAYOUT, num_blocks=8, arena=HostArena(8, LAYOUT.block_stride + 64))
    with open_cache(LAYOUT, num_blocks=8, arena=arena) as cache:
        cache.check()


def test_with_debug_a_freed_block_reads_as_nan() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 3))
        block = int(seq.tables[0].mapped_blocks()[0])
        seq.free()
        assert set(stamp.cache.arena.blocks[block].tolist()) == {255}


def test_check_finds_a_table_and_a_pool_that_disagree() -> None:
    """The controls of all calls of check(): each of these lies is found, by its invariant."""
    from kvpager import InvariantError

    def lie_refcount(stamp: object) -> None:
        stamp.cache.pool.refcount[seq.tables[0].mapped_blocks()[0]] += 1

    def lie_length(stamp: object) -> None:
        stamp.cache.rows.committed[seq.row] = stamp.cache.rows.reserved[seq.row] = 40

    def lie_reserved(stamp: object) -> None:
        stamp.cache.rows.reserved[seq.row] += 1

    def lie_tail(stamp: object) -> None:
        stamp.cache.rows.tail[0, seq.row] += 1

    def lie_published(stamp: object) -> None:
        stamp.cache.pool.indexed[stamp.cache.index.all_blocks()[0]] = False

    def lie_tokens(stamp: object) -> None:
        seq.tokens[0] = 77

    def lie_depth(stamp: object) -> None:
        stamp.cache.rows.published[seq.row] -= 1

    lies = {
        lie_refcount: "I2",
        lie_length: "I7",
        lie_reserved: "reserved",
        lie_tail: "not the one noted",
        lie_published: "I11",
        lie_tokens: "I14",
        lie_depth: "I14",
    }
    for lie, reason in lies.items():
        with open_cache(LAYOUT, num_blocks=16) as cache:
            from tests.stamp import Stamp

            stamp = Stamp(cache)
            seq = prefill(stamp, T(1, 10))
            other = prefill(stamp, T(1, 10))
            cache.check()
            lie(stamp)
            with pytest.raises(InvariantError, match=reason):
                cache.check()
            assert other.length == 10
