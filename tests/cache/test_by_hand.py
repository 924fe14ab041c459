"""Rows written and read by hand, without a model: bytes in, the same bytes out, and no gaps."""

import pytest
import torch

from kvpager import ConfigError, KVLayout, LayerSpec, OutOfBlocks
from kvpager.types import FaultKind
from tests.cache.caches import LAYOUT, MIXED, opened, published_blocks
from tests.stamp import Stamp, T, block_counts, prefill


def bits(rows: torch.Tensor) -> list[int]:
    """The bytes of a tensor: NaN patterns compare as well."""
    return rows.contiguous().view(torch.uint8).flatten().tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("mixed", [False, True], ids=["uniform", "mixed"])
def test_what_is_written_is_read(dtype: str, mixed: bool) -> None:
    specs = [LayerSpec(2, 4), LayerSpec(2, 4, window=100 if mixed else None), LayerSpec(2, 4)]
    with opened(KVLayout.mixed(specs, dtype=dtype, page_size=4)) as stamp:
        seq = stamp.cache.sequence()
        k, v = stamp.kv(T(1, 11), 0, 11)
        seq.write(0, k, v)
        for start, stop in ((0, 11), (3, 9), (10, 11), (0, 0), (11, 11)):
            got_k, got_v = seq.read(start, stop)
            assert tuple(got_k.shape) == tuple(got_v.shape) == (3, stop - start, 2, 4)
            assert bits(got_k) == bits(k[:, start:stop])
            assert bits(got_v) == bits(v[:, start:stop])


def test_writing_goes_on_where_it_ended_and_may_go_over_old_rows() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence()
        old, new = T(1, 12), [*T(1, 5), *T(50, 65)]
        for stop in (1, 3, 4, 9, 12):
            seq.write(seq.length, *stamp.kv(old, seq.length, stop))
            stamp.cache.check()
        stamp.verify(seq, old)
        seq.write(5, *stamp.kv(new, 5, 21))
        assert (seq.length, seq.num_tokens) == (21, 21)
        stamp.verify(seq, new)
        seq.write(6, *stamp.kv(new, 6, 8))
        stamp.verify(seq, new)
        assert stamp.cache.statistics().faults[FaultKind.COPY_ON_WRITE].pages == 0


def test_what_is_read_is_a_copy() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence()
        seq.write(0, *stamp.kv(T(1, 6), 0, 6))
        for rows in seq.read(0, 6):
            rows.zero_()
        stamp.verify(seq, T(1, 6))


def test_a_sequence_written_by_hand_shares_nothing_by_content() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence()
        stamp.write(seq, T(1, 8))
        assert stamp.cache.lookup([*T(1, 8), 9]).num_tokens == 0
        with pytest.raises(ConfigError, match="without token ids"):
            seq.append(1)
        seq.free()
        assert block_counts(stamp.cache)["free"] == 16


@pytest.mark.parametrize("start", [0, 2, 4, 6, 9])
def test_writing_over_shared_pages_copies_them(start: int) -> None:
    with opened() as stamp:
        one, other = T(1, 10), T(1, 10)[:start] + T(80, 95 - start)
        seq = stamp.cache.sequence()
        stamp.write(seq, one)
        twin = seq.fork()
        twin.write(start, *stamp.kv(other, start, len(other)))
        stamp.cache.check()
        stamp.verify(seq, one)
        stamp.verify(twin, other)
        seq.free()
        twin.write(0, *stamp.kv(one, 0, 4))  # the last owner writes in place
        assert stamp.cache.statistics().faults[FaultKind.COPY_ON_WRITE].pages == 3 - start // 4


def test_a_sequence_with_ids_is_written_by_hand_where_nothing_is_published_yet() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence(T(1, 10))
        stamp.write(seq)
        stamp.verify(seq)
        seq.write(8, *stamp.kv(T(1, 10), 8, 10))
        stamp.verify(seq)
        assert stamp.cache.lookup(T(1, 10)).num_tokens == 8
        hit = stamp.cache.sequence([*T(1, 6), 99])
        hit.write(5, *stamp.kv([*T(1, 6), 99], 5, 7))  # inside the page that was found: copied first
        stamp.verify(hit)
        stamp.verify(seq)


@pytest.mark.parametrize("start", [0, 3, 4, 7])
def test_a_published_page_is_never_overwritten_by_hand(start: int) -> None:
    """What token ids can find is what they say; a sequence that leaned on an overwritten page would publish lies."""
    with opened() as stamp:
        seq = prefill(stamp, T(1, 10))
        before = published_blocks(stamp.cache)
        with pytest.raises(ConfigError, match="positions before 8 are published"):
            seq.write(start, *stamp.kv(T(50, 61), start, start + 1))
        assert published_blocks(stamp.cache) == before
        stamp.verify(seq)
        seq.truncate(start)
        seq.append(T(50, 61))
        stamp.write(seq)
        stamp.verify(seq)


@pytest.mark.parametrize("start", [-1, 7, 10**9])
def test_a_gap_is_refused(start: int) -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence()
        stamp.write(seq, T(1, 6))
        with pytest.raises(ConfigError, match="no gaps are kept"):
            seq.write(start, *stamp.kv(T(1, 6), 0, 2))
        stamp.verify(seq, T(1, 6))
        seq.write(6, *stamp.kv(T(1, 7), 6, 7))


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 7), (7, 7)])
def test_reading_what_is_not_there_is_refused(start: int, stop: int) -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence()
        stamp.write(seq, T(1, 6))
        with pytest.raises(ConfigError, match="the sequence has 6 tokens"):
            seq.read(start, stop)
        seq.read(6, 6)


GOOD = torch.zeros(2, 3, 2, 4, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("k", "v", "reason"),
    [
        (GOOD[:1], GOOD, "k has shape"),
        (GOOD, GOOD[..., :3], "v has shape"),
        (GOOD.transpose(1, 2), GOOD, "k has shape"),
        (GOOD[0], GOOD, "k has shape"),
        (GOOD.view(2, 3, 8), GOOD, "k has shape"),
        (GOOD, GOOD[:, :2], "k has 3 tokens, v has 2"),
        (GOOD.float(), GOOD, "the cache holds bfloat16"),
        (GOOD, GOOD.half(), "the cache holds bfloat16"),
        (GOOD.float().numpy(), GOOD, "must be a torch tensor, not ndarray"),
        (None, None, "must be a torch tensor, not NoneType"),
    ],
)
def test_wrong_rows_are_refused_and_nothing_is_changed(k: object, v: object, reason: str) -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence()
        stamp.write(seq, T(1, 6))
        before = block_counts(stamp.cache)
        with pytest.raises(ConfigError, match=reason):
            seq.write(6, k, v)
        assert block_counts(stamp.cache) == before
        stamp.verify(seq, T(1, 6))
        seq.write(6, GOOD, GOOD)
        assert seq.length == 9


def test_layers_of_different_head_shapes_can_not_be_written_as_one_tensor() -> None:
    with opened(KVLayout.mixed([LayerSpec(1, 4), LayerSpec(2, 4)], page_size=4)) as stamp:
        seq = stamp.cache.sequence()
        with pytest.raises(ConfigError, match="differ in head shape"):
            seq.write(0, GOOD, GOOD)
        tokens = T(1, 6)
        with stamp.cache.step({seq: 6}) as step:  # in a step each layer is written by itself
            stamp.fill(step, [tokens])
        stamp.verify(seq, tokens)


def test_no_rows_is_no_change() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence()
        seq.write(0, GOOD[:, :0], GOOD[:, :0])
        assert seq.length == 0
        assert block_counts(stamp.cache)["used"] == 0


def test_a_write_that_finds_no_room_changes_nothing() -> None:
    with opened(num_blocks=3) as stamp:
        seq = stamp.cache.sequence()
        stamp.write(seq, T(1, 10))
        twin = seq.fork()
        before = block_counts(stamp.cache)
        for start, count in ((0, 1), (5, 1), (10, 5), (9, 2)):
            with pytest.raises(OutOfBlocks):
                twin.write(start, *stamp.kv(T(50, 70), start, start + count))
            assert block_counts(stamp.cache) == before
            assert twin.length == 10
        for each in (seq, twin):
            stamp.verify(each, T(1, 10))


def test_a_write_past_the_known_ids_is_refused() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence(T(1, 4))
        with pytest.raises(ConfigError, match="append them first"):
            seq.write(0, *stamp.kv(T(1, 5), 0, 5))
        assert seq.length == 0


def test_a_windowed_sequence_is_written_by_hand() -> None:
    with opened(MIXED, num_blocks=24) as stamp:
        seq = stamp.cache.sequence()
        for stop in (3, 17, 18, 30):
            stamp.write(seq, T(1, stop))
            stamp.verify(seq, T(1, stop))
            stamp.cache.check()


def test_stamp_finds_a_single_wrong_byte() -> None:
    """The control of all comparisons by STAMP."""
    with opened(LAYOUT) as stamp:
        seq = prefill(stamp, T(1, 10))
        assert stamp.mismatch(seq) is None
        address = stamp.layout.slot_offset(0, 1, 1, 1, 2) + 3
        block = int(seq.tables[0].mapped_blocks()[1])
        stamp.cache.arena.blocks[block, address] ^= 1
        found = stamp.mismatch(seq)
        assert found is not None
        assert (found.layer, found.half, found.position) == (1, "V", 6)
        stamp.cache.arena.blocks[block, address] ^= 1
        assert Stamp(stamp.cache).mismatch(seq, [*T(1, 9), 99]) is not None
        assert stamp.mismatch(seq) is None
