"""Open case O-13, library part: the whole prompt is cached."""

import pytest

from kvpager import KVLayout, open_cache
from tests.stamp import Stamp, T, block_counts, run_step

LAYOUT = KVLayout(layers=1, kv_heads=2, head_dim=4, dtype="bfloat16", page_size=16)


@pytest.mark.parametrize("inside", [False, True], ids=["whole pages", "inside pages"])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 48, 64])
def test_at_least_one_token_is_computed_however_much_is_cached(length: int, inside: bool) -> None:
    prompt, whole_pages = T(1, length), (length - 1) // 16 * 16
    with open_cache(LAYOUT, num_blocks=64, match_inside_pages=inside) as cache:
        stamp = Stamp(cache)
        for turn, new_tokens in enumerate((8, 8, 1)):
            seq = cache.sequence(prompt)
            batch = [seq]
            if turn == 1:
                batch.append(cache.sequence(T(900, 939)))  # a cold neighbour in the same step
            expected = 0 if turn == 0 else (length - 1 if inside else whole_pages)
            assert seq.prefix_tokens == expected
            assert seq.num_tokens - seq.length >= 1
            run_step(stamp, batch)
            for token in T(500, 500 + new_tokens - 1):
                for each in batch:
                    each.append(token)
                run_step(stamp, batch)
                block_counts(cache)
            for each in batch:
                stamp.verify(each)
            cache.free(batch)
            block_counts(cache)
        found = cache.statistics()
        assert found.prefix.prompt_tokens == 3 * length + 40
        assert found.computed_tokens == found.prefix.prompt_tokens - found.prefix.hit_tokens + 8 + 2 * 8 + 1
