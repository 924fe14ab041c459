"""Open case O-08, library part: a cached prefix is never changed by its users."""

import hashlib

import pytest

from kvpager import KVLayout, PagedCache, open_cache
from tests.stamp import Stamp, T, block_bytes, block_counts, run_step

LAYOUT = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype="bfloat16", page_size=16)
A = T(1, 40)


def checksums(cache: PagedCache) -> dict[bytes, str]:
    """Content key -> checksum of the block, for everything in the index."""
    nodes = {block: cache.index.node_of_block(int(block)) for block in cache.index.all_blocks().tolist()}
    return {
        cache.index.key(node): hashlib.sha256(block_bytes(cache, block)).hexdigest() for block, node in nodes.items()
    }


def generate(stamp: Stamp, prompt: list[int], new: list[int]) -> tuple[list[int], int]:
    """A request: the prompt, then one token at a time. Returns its tokens and how many were found."""
    before = checksums(stamp.cache)
    seq = stamp.cache.sequence(prompt)
    found = seq.prefix_tokens
    stamp.verify(seq)
    run_step(stamp, [seq])
    for token in new:
        seq.append(token)
        run_step(stamp, [seq])
        block_counts(stamp.cache)
    stamp.verify(seq)
    tokens = list(seq.tokens)
    seq.free()
    after = checksums(stamp.cache)
    assert {key: after[key] for key in before if key in after} == {key: before[key] for key in before if key in after}
    assert before.keys() <= after.keys(), "the pool is large enough: nothing has to leave the index"
    return tokens, found


@pytest.mark.parametrize("inside", [False, True], ids=["whole pages", "inside pages"])
def test_an_indexed_block_keeps_its_bytes(inside: bool) -> None:
    with open_cache(LAYOUT, num_blocks=64, match_inside_pages=inside) as cache:
        stamp = Stamp(cache)
        a_tokens, found = generate(stamp, A, T(500, 509))
        assert found == 0
        _, found = generate(stamp, A, T(600, 629))
        assert found == (39 if inside else 32)
        _, found = generate(stamp, [*A[:36], *T(700, 703)], [])
        assert found == (36 if inside else 32)
        _, found = generate(stamp, [*a_tokens, *T(800, 804)], [])
        assert found >= 48
        assert inside or found == 48


def test_the_checksums_see_a_single_changed_byte() -> None:
    with open_cache(LAYOUT, num_blocks=64) as cache:
        stamp = Stamp(cache)
        generate(stamp, A, [])
        before = checksums(cache)
        cache.arena.blocks[cache.index.all_blocks()[0], 5] ^= 1
        assert checksums(cache) != before
