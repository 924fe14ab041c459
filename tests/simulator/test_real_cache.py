"""The cache of the product, asked for the same prompts, finds the same pages as the replay: to the block.

A page of the trace is one token, its number; a prompt ends with one more token, since a match never includes the last
one, which is not computed here.
"""

import numpy as np
import pytest

from kvpager import KVLayout, open_cache
from kvpager.eviction.make import POLICIES
from kvpager.prefix.hashing import Scope, block_key, page_key, root_key
from kvpager.simulator.replay import replay
from kvpager.simulator.replay_cache import LevelPlan, ReplayClock, SimulatedCache
from kvpager.simulator.report import TraceFacts
from kvpager.simulator.trace import Trace
from tests.simulator.forest import random_trace

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=1, dtype="bfloat16", page_size=1)
# What the others learn from (output tokens, the share found) depends on the extra token.
COMPARED = [
    pytest.param(name, marks=() if at < 4 else pytest.mark.heavy)
    for at, name in enumerate(("lru", "lru_k", "slru", "sieve", "fifo", "lfu", "arc", "s3fifo"))
    if name in POLICIES
]


def hits_of_the_product(trace: Trace, policy: str, capacity: int) -> list[int]:
    clock = ReplayClock()
    hits = []
    with open_cache(LAYOUT, num_blocks=capacity, eviction=policy, match_inside_pages=False, clock=clock) as cache:
        for request, now in enumerate(trace.times.tolist()):
            clock.now = now
            pages = trace.pages[trace.first[request] : trace.first[request + 1]].tolist()[:capacity]
            seq = cache.sequence([*pages, len(trace.parent)])
            hits.append(seq.prefix_tokens)
            if seq.prefix_tokens < len(pages):
                with cache.step({seq: len(pages) - seq.prefix_tokens}):
                    pass
            seq.free()
        cache.check()
    return hits


def keys_of_the_product(trace: Trace) -> np.ndarray:
    root = root_key(b"", LAYOUT.describe(), Scope())
    keys: list[bytes] = []
    for page, parent in enumerate(trace.parent.tolist()):
        above = root if parent < 0 else keys[parent]
        keys.append(page_key(above, np.int32(page).tobytes(), b""))  # type: ignore[arg-type]
    return np.array([int.from_bytes(block_key(key, 0)[:8], "little") for key in keys], np.uint64)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", COMPARED)
def test_the_cache_of_the_product_hits_what_the_replay_hits(policy: str) -> None:
    for seed, capacity in ((0, 9), (1, 25)):
        trace = random_trace(seed, requests=150, width=4)
        real = hits_of_the_product(trace, policy, capacity)
        cache = SimulatedCache(trace, [LevelPlan("device", capacity, policy)], keys=keys_of_the_product(trace))
        for request, now in enumerate(trace.times.tolist()):
            cache.depart(request, cache.arrive(request, now), now)
        assert cache.found[0].tolist() == real
        assert sum(real) > 0
        assert cache.counts[0].evicted > 0
        if policy == "lru":
            assert replay(TraceFacts(trace), "lru", capacity).whole.blocks == sum(real)


def test_what_differs_is_seen() -> None:
    trace = random_trace(0, requests=60, width=4)
    assert hits_of_the_product(trace, "lru", 9) != hits_of_the_product(trace, "lru", 10)
