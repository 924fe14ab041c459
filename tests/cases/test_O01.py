"""Open case O-01: a reused block loses its old name."""

import numpy as np

from kvpager import KVLayout, open_cache
from kvpager.prefix.hashing import Scope, page_key, root_key
from tests.stamp import Stamp, T, block_counts, prefill

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=4, dtype="float32", page_size=4)
ROUNDS = 1000


def fresh(round_number: int, first: int, last: int) -> list[int]:
    return [round_number * 1000 + token for token in T(first, last)]


def keys_of(tokens: list[int]) -> list[bytes]:
    """The keys of the full pages of a prompt, computed from its ids alone."""
    key, keys = root_key(b"", LAYOUT.describe(), Scope()), []
    for start in range(0, len(tokens) - 3, 4):
        key = page_key(key, np.array(tokens[start : start + 4], "<i4").tobytes(), b"")
        keys.append(key)
    return keys


def test_a_block_given_to_another_prompt_is_found_under_its_new_name_only() -> None:
    with open_cache(LAYOUT, num_blocks=4) as cache:
        stamp = Stamp(cache)
        for number in range(ROUNDS):
            a, b = fresh(number, 1, 8), fresh(number, 101, 116)
            if number == 0:
                prefill(stamp, a).free()
                assert block_counts(cache) == {"free": 2, "used": 0, "cached": 2, "moving": 0}
            else:  # the pool is full of the last round's B
                prefill(stamp, a).free()
                assert block_counts(cache) == {"free": 0, "used": 0, "cached": 4, "moving": 0}
                assert cache.lookup([*a, a[-1] + 1]).num_tokens == 8  # the control: A was there
            second = prefill(stamp, b)
            block_counts(cache)
            second.free()
            block_counts(cache)
            assert cache.lookup([*a, a[-1] + 1]).num_tokens == 0, f"round {number}"
            assert cache.lookup([*b, b[-1] + 1]).num_tokens == 16, f"round {number}"
            hit = cache.sequence([*b, b[-1] + 1])
            block_counts(cache)
            stamp.verify(hit)
            hit.free()
            block_counts(cache)
        assert cache.index.num_entries == 4
        nodes = [cache.index.node_of_block(block) for block in range(4)]
        assert {cache.index.key(node) for node in nodes} == set(keys_of(b))
        for node, position in zip(cache.lookup([*b, 0]).nodes, range(4), strict=True):
            block = cache.index.block(node, 0)
            held = cache.arena.blocks[block][:16].tobytes()  # the K rows of one layer and head, slot by slot
            assert held[:16] == stamp.row(0, "K", b[: 4 * position + 1])
            assert cache.index.key(node) == keys_of(b)[position]
