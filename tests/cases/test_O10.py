"""Open case O-10: a hash collision cannot give wrong content."""

import random

import pytest

from kvpager import KVLayout, open_cache
from kvpager.prefix import hashing
from kvpager.prefix.hashing import digest_fields
from tests.stamp import Stamp, block_counts, prefill

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=4, dtype="float32", page_size=16)


@pytest.mark.parametrize("seed", [0])
def test_a_with_digests_of_8_bits_no_prompt_finds_another_s_content(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    full = digest_fields
    monkeypatch.setattr(hashing, "digest_fields", lambda fields: full(fields)[:1])
    generator = random.Random(seed)
    prompts = [[generator.randrange(50_000) for _ in range(48)] for _ in range(1000)]
    with open_cache(LAYOUT, num_blocks=4096) as cache:
        stamp = Stamp(cache)
        for number, prompt in enumerate(prompts):
            seq = prefill(stamp, prompt)
            assert seq.prefix_tokens <= 2, f"seed={seed} prompt={number}"  # a first token may be equal by chance
            stamp.verify(seq)
            seq.free()
        block_counts(cache)
        nodes = {cache.index.node_of_block(block) for block in cache.index.all_blocks().tolist()}
        keys = {cache.index.key(node) for node in nodes}
        assert len(nodes) == 3000
        assert len(keys) <= 256, "the control: keys did collide"
        for number, prompt in enumerate(prompts):
            hit = cache.sequence([*prompt, 1])
            assert hit.prefix_tokens >= 48, f"seed={seed} prompt={number}"
            stamp.verify(hit)
            hit.free()


def test_b_keys_are_whole_sha256_everywhere() -> None:
    with open_cache(LAYOUT, num_blocks=64) as cache:
        stamp = Stamp(cache)
        prefill(stamp, list(range(48)))
        nodes = [cache.index.node_of_block(block) for block in cache.index.all_blocks().tolist()]
        assert {len(cache.index.key(node)) for node in nodes} == {32}
        assert {len(key) for key in cache.index._root_by_key} == {32}
        assert {len(key) for key in cache._root_keys.values()} == {32}
