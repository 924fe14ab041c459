"""A sequence from its prompt to its last free."""

from array import array

import numpy as np
import pytest
import torch

from kvpager import ConfigError, KVLayout, Scope, open_cache
from kvpager.cache.sequence import token_array
from kvpager.types import TierKind
from tests.cache.caches import LAYOUT, opened
from tests.stamp import Stamp, T, block_counts, prefill, run_step


def test_a_new_sequence_knows_its_tokens_and_holds_no_block() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence(T(1, 9))
        assert (seq.length, seq.num_tokens, seq.prefix_tokens) == (0, 9, 0)
        assert block_counts(stamp.cache) == {"free": 16, "used": 0, "cached": 0, "moving": 0}
        assert repr(seq) == "<Sequence length=0 num_tokens=9 prefix_tokens=0>"


def test_pages_are_the_tokens_rounded_up() -> None:
    with opened() as stamp:
        for length in (1, 3, 4, 5, 8, 9):
            seq = prefill(stamp, [length] * length)
            assert [len(table) for table in seq.tables] == [-(-length // 4)]
            stamp.verify(seq)
            seq.free()
            block_counts(stamp.cache)


@pytest.mark.parametrize(
    "make",
    [list, tuple, iter, np.array, torch.tensor, lambda ids: array("i", ids)],
    ids=["list", "tuple", "iterator", "numpy", "torch", "array"],
)
def test_token_ids_come_in_any_form(make: object) -> None:
    assert token_array(make([1, 2, 2**31 - 1])).tolist() == [1, 2, 2**31 - 1]
    with opened() as stamp:
        seq = stamp.cache.sequence(make([1, 2]))
        seq.append(make([3, 4]))
        assert seq.tokens.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("make", [int, np.int64, np.int32, torch.tensor])
def test_one_token_id_comes_in_any_form(make: object) -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence([1])
        seq.append(make(7))
        assert seq.tokens.tolist() == [1, 7]


@pytest.mark.parametrize("tokens", [[-1], [2**31], [1.5], ["a"], "abc", [[1, 2]], [None], 7, np.array([1.0])], ids=str)
def test_wrong_token_ids_are_refused_and_nothing_is_left_behind(tokens: object) -> None:
    with opened() as stamp:
        with pytest.raises(ConfigError):
            stamp.cache.sequence(tokens)
        with pytest.raises(ConfigError):
            stamp.cache.lookup(tokens)
        seq = stamp.cache.sequence([1])
        if tokens != 7:
            with pytest.raises(ConfigError):
                seq.append(tokens)
        assert seq.tokens.tolist() == [1]
        assert stamp.cache.statistics().sequences == 1


@pytest.mark.parametrize("token", [-1, 2**31, 2**70, np.int64(-1)])
def test_one_wrong_token_id_is_refused(token: int) -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence([1])
        with pytest.raises(ConfigError, match="token id"):
            seq.append(token)
        assert seq.num_tokens == 1


def test_an_empty_prompt_is_refused_and_says_what_to_do() -> None:
    with opened() as stamp, pytest.raises(ConfigError, match="give at least one, or None"):
        stamp.cache.sequence([])


def test_a_sequence_keeps_its_own_copy_of_the_ids() -> None:
    with opened() as stamp:
        ids = array("i", [1, 2, 3])
        seq = stamp.cache.sequence(ids)
        ids[0] = 9
        seq.append(4)
        assert seq.tokens.tolist() == [1, 2, 3, 4]
        assert ids.tolist() == [9, 2, 3]


def test_a_freed_sequence_refuses_everything() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 6))
        other = prefill(stamp, T(1, 6))
        seq.free()
        before = block_counts(stamp.cache)
        rows = stamp.kv(T(1, 6), 0, 1)
        for call in (
            seq.free,
            seq.fork,
            lambda: seq.append(1),
            lambda: seq.truncate(0),
            lambda: seq.read(0, 1),
            lambda: seq.write(0, *rows),
            lambda: seq.translate(0),
            lambda: stamp.cache.step({seq: 1}),
        ):
            with pytest.raises(ConfigError, match="was freed"):
                call()
        assert block_counts(stamp.cache) == before
        assert (seq.length, repr(seq)) == (0, "<Sequence freed>")
        stamp.verify(other)


def test_a_sequence_of_another_cache_is_refused() -> None:
    with opened() as stamp, opened() as other:
        crowd = [other.cache.sequence([1]) for _ in range(200)]  # more than the first cache has rows for
        stranger = crowd[-1]
        for call in (
            lambda: stamp.cache.step({stranger: 1}),
            lambda: stamp.cache.fork(stranger),
            lambda: stamp.cache.truncate(stranger, 0),
            lambda: stamp.cache.free([stranger]),
        ):
            with pytest.raises(ConfigError, match="another cache"):
                call()


def test_freeing_many_is_all_or_nothing() -> None:
    with opened() as stamp:
        one, two = prefill(stamp, T(1, 6)), prefill(stamp, T(11, 16))
        gone = prefill(stamp, T(21, 26))
        gone.free()
        before = block_counts(stamp.cache)
        for batch in ([one, gone], [one, two, one]):
            with pytest.raises(ConfigError):
                stamp.cache.free(batch)
            assert block_counts(stamp.cache) == before
            assert not one.is_freed
        stamp.cache.free([one, two])
        assert block_counts(stamp.cache)["used"] == 0


def test_truncate_gives_pages_behind_the_new_end_back_at_once() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 14))
        assert block_counts(stamp.cache)["used"] == 4
        seq.truncate(5)
        assert (seq.length, seq.num_tokens) == (5, 5)
        assert block_counts(stamp.cache) == {"free": 13, "used": 2, "cached": 1, "moving": 0}
        stamp.verify(seq)
        seq.append(T(50, 59))
        run_step(stamp, [seq])
        stamp.verify(seq)
        seq.truncate(0)
        assert seq.tokens.tolist() == []
        assert block_counts(stamp.cache)["used"] == 0
        seq.append([8])
        run_step(stamp, [seq])
        stamp.verify(seq)


@pytest.mark.parametrize("length", [-1, 7, 10**9])
def test_truncating_to_what_is_not_there_is_refused(length: int) -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 6))
        with pytest.raises(ConfigError, match="the sequence has 6 tokens"):
            seq.truncate(length)
        stamp.verify(seq)
        seq.truncate(6)
        assert seq.length == 6


def test_truncate_forgets_ids_that_were_not_computed_yet() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 6))
        seq.append([90, 91])
        seq.truncate(6)
        assert seq.tokens.tolist() == T(1, 6)


def test_a_truncated_published_page_keeps_its_bytes_for_those_who_find_it() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 8))
        seq.truncate(6)
        seq.append([77, 78])
        run_step(stamp, [seq])
        stamp.verify(seq)
        found = stamp.cache.sequence([*T(1, 8), 9])
        assert found.prefix_tokens == 8
        stamp.verify(found)


def test_a_position_translates_to_the_block_that_holds_it() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 6))
        blocks = seq.tables[0].mapped_blocks().tolist()
        place = seq.translate(5, layer=1)
        assert (place.tier, place.block, place.offset) == (TierKind.DEVICE, blocks[1], 1)
        assert not seq.translate(8).is_mapped
        for position, layer in ((-1, 0), (0, 2), (0, -1)):
            with pytest.raises(ConfigError):
                seq.translate(position, layer)


def test_a_longer_and_longer_table_of_a_million_tokens_stays_small() -> None:
    layout = KVLayout(1, 1, 1, dtype="float16", page_size=16)
    with open_cache(layout, num_blocks=65_536 + 16) as cache:
        seq = cache.sequence()
        for _ in range(16):
            with cache.step({seq: 65_536}):
                pass
        assert seq.length == 1_048_576
        assert cache.statistics().table_bytes < 4_000_000
        assert cache.statistics().blocks.used == 65_536
        with cache.step({seq: 1}):
            pass
        seq.free()
        assert cache.statistics().table_bytes == 0


def test_leaving_the_cache_frees_every_sequence() -> None:
    with open_cache(LAYOUT, num_blocks=16) as cache:
        stamp = Stamp(cache)
        seqs = [prefill(stamp, T(base, base + 5), scope=Scope(salt=str(base))) for base in (1, 50)]
    assert all(seq.is_freed for seq in seqs)
    assert block_counts(cache)["used"] == 0
    cache.close()  # twice is no harm
